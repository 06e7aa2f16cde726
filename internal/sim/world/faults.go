package world

import (
	"math/rand/v2"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Calm is a world without faults.
type Calm struct{}

func (Calm) before(*Process) fault { return none }
func (Calm) between(*World)        {}
func (Calm) breaks(*Process) bool  { return false }
func (Calm) skip(*World) bool      { return false }
func (Calm) delay() time.Duration  { return 0 }

// Storm injects faults at random times, until a number of commands has been sent. A command is
// one request from a process to the server.
type Storm struct {
	rng *rand.Rand
	// The next fields say how rare each fault is: one fault in so many commands. 0: never.
	message, crash, restart, power, pause, hurry, bug int
	until                                             int // number of commands until the faults end
}

// NewStorm returns a storm with a random mixture of faults. Some storms have only crashes,
// some only lost messages, and some no faults.
func NewStorm(rng *rand.Rand) *Storm {
	rate := func(most int) int {
		if rng.IntN(3) == 0 {
			return 0
		}
		return most << rng.IntN(5)
	}
	return &Storm{
		rng: rng, message: rate(5), crash: rate(20), restart: rate(40), power: rate(100), pause: rate(30), hurry: rate(10), bug: rate(200),
		until: 100 + rng.IntN(900),
	}
}

func (s *Storm) hits(rate int) bool { return rate > 0 && s.rng.IntN(rate) == 0 }

func (s *Storm) before(p *Process) fault {
	switch {
	case p.commands > s.until:
		return none
	case s.mortal(p) && s.hits(2*s.crash):
		return dies
	case s.mortal(p) && s.hits(2*s.crash):
		return diesAfter
	case s.hits(2 * s.restart):
		return cutOff
	case s.hits(s.message):
		return []fault{lost, ackLost, late, slow}[s.rng.IntN(4)]
	}
	return none
}

// mortal reports whether the process may die. Coordinators and workers may die, agents may
// not.
func (s *Storm) mortal(p *Process) bool { return p.again != nil }

// between injects faults into any process, also into one that is not about to send a command.
func (s *Storm) between(w *World) {
	if w.commands > s.until {
		return
	}
	if s.hits(4 * s.crash) {
		s.any(w, func(p *Process) { p.Doomed = true })
	}
	if s.hits(4 * s.pause) {
		s.any(w, func(p *Process) {
			p.paused = w.Now.Add(time.Duration(s.rng.IntN(40)) * time.Second)
			p.Slept, w.Disturbed = p.paused, w.Now
			w.Logf(p.Name, "PAUSES", "for %v", p.paused.Sub(w.Now))
			w.Count("pauses")
		})
	}
	if s.hits(4 * s.restart) {
		w.Logf("", "RESTART", "of the server")
		w.Disturbed = w.Now
		w.Count("restarts")
		switch s.rng.IntN(3) {
		case 0:
			w.Stop()
		case 1:
			w.Restart()
		default:
			w.outage([]time.Duration{2 * time.Second, 2 * time.Second, 2 * time.Second, 20 * time.Second}[s.rng.IntN(4)])
		}
	}
	if s.hits(4 * s.power) {
		w.Logf("", "POWER", "is lost")
		w.Disturbed = w.Now
		w.Count("power losses")
		w.PowerLoss(func(stored int) int { return s.rng.IntN(stored + 1) })
	}
}

func (s *Storm) any(w *World, do func(*Process)) {
	if p := w.Processes[s.rng.IntN(len(w.Processes))]; s.mortal(p) {
		do(p)
	}
}

func (s *Storm) breaks(p *Process) bool { return p.commands <= s.until && s.hits(s.bug) }

func (s *Storm) skip(w *World) bool { return w.commands <= s.until && s.hits(s.hurry) }

func (s *Storm) delay() time.Duration {
	if s.rng.IntN(2) == 0 {
		return time.Duration(s.rng.IntN(300)) * time.Millisecond
	}
	return time.Duration(s.rng.IntN(15000)) * time.Millisecond
}

// Hit is one fault at one command.
type Hit struct {
	Command int // counted from 1
	What    string
	// Whom is the number of a coordinator or worker. It is for faults that hit another process
	// than the one that sends the command.
	Whom int
}

// hits maps each kind of [Hit] to its fault.
var hits = map[string]fault{
	"lost": lost, "answer lost": ackLost, "late": late, "dies before": dies, "dies after": diesAfter, "cut off": cutOff,
	"restart": none, "power loss": none, "dies meanwhile": none, "pauses": none,
}

// OfMessage reports whether the fault affects only a message. With such a fault, no process
// dies or sleeps.
func (h Hit) OfMessage() bool {
	f := hits[h.What]
	return f != none && f != dies && f != diesAfter
}

// Hits lists every possible fault at a command. parties is the number of coordinators and
// workers in the fleet.
func Hits(command, parties int) []Hit {
	var all []Hit
	for _, what := range rawjson.SortedKeys(hits) {
		all = append(all, Hit{command, what, 0})
		if what == "dies meanwhile" || what == "pauses" {
			for whom := 1; whom < parties; whom++ {
				all = append(all, Hit{command, what, whom})
			}
		}
	}
	return all
}

// Script is the list of the faults to inject. There are no others.
type Script []Hit

func (s Script) before(p *Process) fault {
	for _, hit := range s {
		if hit.Command != p.commands {
			continue
		}
		if f := hits[hit.What]; f == none || (f == dies || f == diesAfter) && p.again == nil {
			s.meanwhile(p.World, hit)
		} else {
			return f
		}
	}
	return none
}

// meanwhile injects a fault of another process or of the server, just before the command.
func (s Script) meanwhile(w *World, hit Hit) {
	w.Disturbed = w.Now
	w.Logf("", "!!", "%s %d", hit.What, hit.Whom)
	var parties []*Process
	for _, p := range w.Processes {
		if p.again != nil {
			parties = append(parties, p)
		}
	}
	switch p := parties[hit.Whom%len(parties)]; hit.What {
	case "restart":
		w.Restart()
	case "power loss":
		w.PowerLoss(func(stored int) int { return stored })
	case "dies meanwhile":
		p.Doomed = true
	case "pauses":
		p.paused = w.Now.Add(15 * time.Second) // longer than a lease
		p.Slept = p.paused
	}
}

func (Script) between(*World)       {}
func (Script) breaks(*Process) bool { return false }
func (Script) skip(*World) bool     { return false }
func (Script) delay() time.Duration { return 7 * time.Second }
