package approvals

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Anyone on the network can send decisions that are refused. These are the limits on the
// lines about them in the log and the audit log: a burst, and then so many per second.
const (
	refusalBurst      = 100
	refusalsPerSecond = 2
)

// refusalLimiter is a rate limiter that remembers whether it has refused a line.
type refusalLimiter struct {
	limit *rate.Limiter

	mu       sync.Mutex
	refusing bool // a line was refused since the limiter last had all its tokens; guarded by mu
}

func newRefusalLimiter() *refusalLimiter {
	return &refusalLimiter{limit: rate.NewLimiter(refusalsPerSecond, refusalBurst)}
}

// allow reports whether one more line may be written. first is true for the first line that
// is refused after the limiter had all its tokens; the caller logs that once.
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
