package sim

import (
	"math/rand/v2"
	"time"
)

// Calm is a world in which nothing goes wrong.
type Calm struct{}

func (Calm) before(*process) fault { return none }
func (Calm) between(*World)        {}
func (Calm) skip(*World) bool      { return false }
func (Calm) delay() time.Duration  { return 0 }

// Storm is a world in which anything goes wrong at any time, until it has seen enough commands.
type Storm struct {
	rng *rand.Rand
	// How often something happens: once in so many commands. 0: never.
	message, crash, restart, power, pause, hurry int
	until                                        int // commands
}

// NewStorm is a storm with its own mixture: some are all crashes, some all lost messages, some nothing at all.
func NewStorm(rng *rand.Rand) *Storm {
	rate := func(most int) int {
		if rng.IntN(3) == 0 {
			return 0
		}
		return most << rng.IntN(5)
	}
	return &Storm{
		rng: rng, message: rate(5), crash: rate(20), restart: rate(40), power: rate(100), pause: rate(30), hurry: rate(10),
		until: 100 + rng.IntN(900),
	}
}

func (s *Storm) hits(rate int) bool { return rate > 0 && s.rng.IntN(rate) == 0 }

func (s *Storm) before(p *process) fault {
	switch {
	case p.commands > s.until:
		return none
	case s.mortal(p) && s.hits(2*s.crash):
		return dies
	case s.mortal(p) && s.hits(2*s.crash):
		return diesAfter
	case s.hits(s.message):
		return []fault{lost, ackLost, late, slow}[s.rng.IntN(4)]
	}
	return none
}

// mortal tells coordinators and workers from agents, whose life is not tried here.
func (s *Storm) mortal(p *process) bool { return p.again != nil }

// between hits whoever is not just about to do something, too.
func (s *Storm) between(w *World) {
	if w.commands > s.until {
		return
	}
	if s.hits(4 * s.crash) {
		s.any(w, func(p *process) { p.doomed = true })
	}
	if s.hits(4 * s.pause) {
		s.any(w, func(p *process) {
			p.paused = w.Now.Add(time.Duration(s.rng.IntN(40)) * time.Second)
			w.logf(p.name, "PAUSES", "for %v", p.paused.Sub(w.Now))
		})
	}
	if s.hits(4 * s.restart) {
		w.logf("", "RESTART", "of the server")
		if s.rng.IntN(2) == 0 {
			w.Stop()
		} else {
			w.Restart()
		}
	}
	if s.hits(4 * s.power) {
		w.logf("", "POWER", "is lost")
		w.PowerLoss(func(stored int) int { return s.rng.IntN(stored + 1) })
	}
}

func (s *Storm) any(w *World, do func(*process)) {
	if p := w.processes[s.rng.IntN(len(w.processes))]; s.mortal(p) {
		do(p)
	}
}

func (s *Storm) skip(w *World) bool { return w.commands <= s.until && s.hits(s.hurry) }

func (s *Storm) delay() time.Duration {
	if s.rng.IntN(2) == 0 {
		return time.Duration(s.rng.IntN(300)) * time.Millisecond
	}
	return time.Duration(s.rng.IntN(15000)) * time.Millisecond
}
