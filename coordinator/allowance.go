package coordinator

import (
	"sync"
	"time"
)

// allowance lets so many through at once, and so many more with every second.
type allowance struct {
	mu      sync.Mutex
	left    float64   // guarded by mu
	at      time.Time // when left was right; guarded by mu
	refused bool      // since it was last full; guarded by mu
}

const (
	allowedAtOnce    = 100
	allowedPerSecond = 2
)

func newAllowance() *allowance { return &allowance{left: allowedAtOnce} }

// take reports whether one more is let through. The first that is not, since there was room for all, is the last straw.
func (a *allowance) take(now time.Time) (ok, last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() {
		a.left = min(a.left+now.Sub(a.at).Seconds()*allowedPerSecond, allowedAtOnce)
	}
	a.at = now
	if a.left >= allowedAtOnce {
		a.refused = false
	}
	if a.left >= 1 {
		a.left--
		return true, false
	}
	last, a.refused = !a.refused, true
	return false, last
}
