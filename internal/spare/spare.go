// Package spare reuses goroutines. A new goroutine begins with a small stack, which is
// copied each time it has to grow. The stack of a reused goroutine has grown already.
package spare

import "time"

// keep is how long a goroutine waits for the next function before it ends.
const keep = time.Second

// Goroutines runs functions on goroutines. When a function has ended, its goroutine waits a
// second for the next function. It ends earlier if [Goroutines.End] is called.
type Goroutines struct {
	next  chan func()
	ended chan struct{}
}

// New returns Goroutines. Call End after the last function.
func New() *Goroutines { return &Goroutines{next: make(chan func()), ended: make(chan struct{})} }

// Go runs f on a waiting goroutine, or on a new one. It does not wait for f. It may also be
// called after End.
func (g *Goroutines) Go(f func()) {
	select {
	case g.next <- f:
	default:
		go g.run(f)
	}
}

func (g *Goroutines) run(f func()) {
	idle := time.NewTimer(keep)
	defer idle.Stop()
	for {
		f()
		idle.Reset(keep)
		select {
		case f = <-g.next:
		case <-idle.C:
			return
		case <-g.ended:
			return
		}
	}
}

// End ends the waiting goroutines. A busy goroutine ends when its function returns. Call End
// once.
func (g *Goroutines) End() { close(g.ended) }
