package approvals

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Anybody on the network can send decisions that are refused. These bound the lines about them in
// the log and the audit log: a burst, and then so many per second.
const (
	refusalBurst      = 100
	refusalsPerSecond = 2
)

// refusalLimiter is a rate limiter that knows whether it is refusing.
type refusalLimiter struct {
	limit *rate.Limiter

	mu       sync.Mutex
	refusing bool // a line was refused since the limiter was last full; guarded by mu
}

func newRefusalLimiter() *refusalLimiter {
	return &refusalLimiter{limit: rate.NewLimiter(refusalsPerSecond, refusalBurst)}
}

// allow reports whether one more line may be written. first is true for the first refused line
// since the limiter was full; the caller logs that once.
func (l *refusalLimiter) allow(now time.Time) (ok, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit.TokensAt(now) >= refusalBurst {
		l.refusing = false
	}
	if l.limit.AllowN(now, 1) {
		return true, false
	}
	first, l.refusing = !l.refusing, true
	return false, first
}
