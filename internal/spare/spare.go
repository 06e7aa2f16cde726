// Package spare keeps goroutines that have done their work for the next one. A new goroutine begins
// with a small stack, which is copied each time it has to grow; a kept one has grown already.
package spare

import "time"

// keep is how long a goroutine waits for the next function before it ends.
const keep = time.Second

// Goroutines runs functions, each on a goroutine of its own. A goroutine that has done its work is
// kept for a second, and at most until End.
type Goroutines struct {
	next  chan func()
	ended chan struct{}
}

// New returns Goroutines. Call End when no more functions come.
func New() *Goroutines { return &Goroutines{next: make(chan func()), ended: make(chan struct{})} }

// Go runs f, on a kept goroutine if there is one. It does not wait. It also works after End.
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

// End ends the goroutines, those at work as soon as their functions return. Call it once.
func (g *Goroutines) End() { close(g.ended) }
