package approvals

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Anyone on the network can send decisions that are refused. These constants limit the lines
// about them in the log and the audit log: refusalBurst at once, then refusalsPerSecond.
const (
	refusalBurst      = 100
	refusalsPerSecond = 2
)

// refusalLimiter is a rate limiter that also remembers whether it is refusing lines.
type refusalLimiter struct {
	limit *rate.Limiter

	mu       sync.Mutex
	refusing bool // a line was refused since the limiter last had all its tokens; guarded by mu
}

func newRefusalLimiter() *refusalLimiter {
	return &refusalLimiter{limit: rate.NewLimiter(refusalsPerSecond, refusalBurst)}
}

// allow reports whether another line may be written. first is true for the first refused line
// after the limiter had all its tokens; the caller then logs that lines are missing.
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
