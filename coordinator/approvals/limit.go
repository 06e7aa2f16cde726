package approvals

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Anybody on the network can send decisions that are refused. So many of them are written to the
// log and the audit log at once, and so many more with every second.
const (
	refusalBurst      = 100
	refusalsPerSecond = 2
)

// refusalLimiter is a rate limiter that remembers whether it is refusing.
type refusalLimiter struct {
	limit *rate.Limiter

	mu       sync.Mutex
	refusing bool // since the limiter was last full; guarded by mu
}

func newRefusalLimiter() *refusalLimiter {
	return &refusalLimiter{limit: rate.NewLimiter(refusalsPerSecond, refusalBurst)}
}

// allow reports whether one more line may be written. first is true for the first refusal after the
// limiter was full, for a log line.
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
