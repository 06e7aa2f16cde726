// Package world runs parties one at a time, on a clock that it moves itself, and has things go
// wrong between them and the broker: messages are lost or late, processes die and sleep, the server
// restarts.
//
// A seed chooses who is next. The package knows nothing of batches and calls; package sim brings
// the parties.
package world

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sim/broker"
)

// World is parties that act one at a time, and the clock. It chooses who is next.
//
// A party is a process: some tasks, each written as the straight code it stands for, that stop
// before every command they give to the server. Killing a process there is the crash between two
// commands.
type World struct {
	*broker.Broker
	Rng       *rand.Rand
	faults    Faults
	Processes []*Process
	inFlight  []inFlight
	commands  int // that were given so far
	names     int // of processes that were given so far
	nonces    int // that were given so far
	history   *strings.Builder
	tally     map[string]int // how often what happened
	// The server answers nothing before away, and no read before unready.
	away, unready time.Time
	Disturbed     time.Time // when something last went wrong
}

// Process is what dies as a whole, with all that it knows.
type Process struct {
	*World
	Name   string
	born   time.Time
	tasks  []*Task
	paused time.Time // it does nothing before
	Slept  time.Time // until then it did not get to do what it was to do
	Doomed bool      // it dies before anybody does anything else
	again  func()    // starts another of its kind, under a new name
	Bye    func()    // what the others notice of its end
}

// Task is one thing that a process does.
type Task struct {
	*Process
	what  string
	wake  time.Time   // it goes on at this time, at the latest
	ready func() bool // or as soon as this holds; nil: not before
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	done  bool
}

// inFlight is a command that arrives late.
type inFlight struct {
	at time.Time
	do func()
}

// killed unwinds a task whose process is gone.
type killed struct{}

// New is a world of which nobody is part yet.
func New(b *broker.Broker, faults Faults, rng *rand.Rand) *World {
	return &World{Broker: b, faults: faults, Rng: rng, tally: map[string]int{}}
}

// Start begins a process. Again starts another of its kind, under a new name, when it dies; nil: it
// does not die.
func (w *World) Start(kind string, again func()) *Process {
	w.names++
	p := &Process{World: w, Name: fmt.Sprint(kind, w.names), born: w.Now, again: again, Bye: func() {}}
	w.Processes = append(w.Processes, p)
	w.Logf(p.Name, "starts", "")
	return p
}

// Spawn adds a task to the process.
func (p *Process) Spawn(what string, run func(*Task)) {
	t := &Task{Process: p, what: what}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			t.done = true
			if cause := recover(); cause != nil && cause != (killed{}) {
				panic(cause)
			}
		}()
		t.yield = yield
		run(t)
	})
	p.tasks = append(p.tasks, t)
}

// Wait lets others go on until the time has come or the condition holds (nil: none).
func (t *Task) Wait(until time.Time, ready func() bool) {
	t.wake, t.ready = until, ready
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
	t.wake, t.ready = time.Time{}, nil
}

// Sleep lets others go on for a while.
func (t *Task) Sleep(d time.Duration) { t.Wait(t.Now.Add(d), nil) }

func (t *Task) runnable() bool {
	return !t.Now.Before(t.paused) && (t.ready != nil && t.ready() || !t.Now.Before(t.wake))
}

// Never is a time that does not come.
var Never = time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)

// Step lets one task go on to its next command, or moves the clock to the next moment at which one
// can. It reports false when nobody waits for anything.
func (w *World) Step() bool {
	for _, p := range slices.Clone(w.Processes) {
		if p.Doomed {
			w.kill(p)
		}
	}
	w.faults.between(w)
	if w.arrive() {
		return true
	}
	var can []*Task
	for _, p := range w.Processes {
		for _, t := range p.tasks {
			if t.runnable() {
				can = append(can, t)
			}
		}
	}
	if len(can) == 0 || w.faults.skip(w) {
		if next := w.next(); next.Before(Never) {
			step := next.Sub(w.Now)
			if len(can) > 0 {
				step = min(step, w.faults.delay())
			}
			w.Advance(step)
			for _, t := range can {
				t.Slept = w.Now
			}
			return true
		}
		return len(can) > 0
	}
	t := can[w.Rng.IntN(len(can))]
	t.next()
	if t.done {
		t.Process.tasks = slices.DeleteFunc(t.Process.tasks, func(other *Task) bool { return other == t })
	}
	return true
}

// arrive carries out the commands that were late until now, and reports whether there were any.
func (w *World) arrive() (any bool) {
	for n := 0; n < len(w.inFlight); {
		if late := w.inFlight[n]; !w.Now.Before(late.at) {
			w.inFlight = slices.Delete(w.inFlight, n, n+1)
			late.do()
			any = true
			continue
		}
		n++
	}
	return any
}

// next is the first moment after now at which anything can happen by itself.
func (w *World) next() time.Time {
	next := Never
	earlier := func(at time.Time) {
		if at.After(w.Now) && at.Before(next) {
			next = at
		}
	}
	for _, p := range w.Processes {
		earlier(p.paused)
		for _, t := range p.tasks {
			earlier(t.wake)
		}
	}
	for _, late := range w.inFlight {
		earlier(late.at)
	}
	earlier(w.away)
	w.EachDue(earlier)
	return next
}

// kill ends a process between two commands, and starts another in its place.
func (w *World) kill(p *Process) {
	w.Disturbed = w.Now
	w.Logf(p.Name, "DIES", "")
	w.Count("kills")
	w.Processes = slices.DeleteFunc(w.Processes, func(other *Process) bool { return other == p })
	for _, t := range p.tasks {
		t.stop()
	}
	p.Bye()
	p.again()
}

// outage is a restart of the server that takes a while, at most so long. It may have forgotten what
// it removed last.
func (w *World) outage(most time.Duration) {
	w.Logf("", "OUTAGE", "of the server")
	w.Count("outages")
	w.away = w.Now.Add(time.Duration(w.Rng.Int64N(int64(most))))
	w.Disturbed = w.Now
	w.unready = w.away.Add(time.Duration(w.Rng.IntN(3000)) * time.Millisecond)
	w.RestartBehind(func() bool { return w.Rng.IntN(2) == 0 })
}

// Knew reports whether a message was there when the process and the server last came up. How often
// it was delivered before may be forgotten.
func (p *Process) Knew(stored time.Time) bool {
	return !stored.After(p.born) || !stored.After(p.Restarted)
}

// Close ends everything.
func (w *World) Close() {
	for _, p := range w.Processes {
		for _, t := range p.tasks {
			t.stop()
		}
	}
}

// Logf writes a line of the history down, if there is one.
func (w *World) Logf(who, what, format string, args ...any) {
	if w.history != nil {
		fmt.Fprintf(w.history, "%6d %11.3fs  %-4s %-9s %s\n", w.commands, w.Now.Sub(Epoch).Seconds(), who, what, fmt.Sprintf(format, args...))
	}
}

// Epoch is when time begins.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Commands is how many commands were given.
func (w *World) Commands() int { return w.commands }

// Count counts what happened.
func (w *World) Count(what string) { w.tally[what]++ }

// Alive reports whether a process has not died.
func (w *World) Alive(p *Process) bool { return slices.Contains(w.Processes, p) }

// Breaks reports whether a step of a driver meets a bug.
func (p *Process) Breaks() bool { return p.faults.breaks(p) }

// Nonce is unique.
func (t *Task) Nonce() string {
	t.nonces++
	return fmt.Sprint(t.Name, "-", t.nonces)
}

// Tally is how often what happened: faults, runs, results by status. It shows what a test has seen.
func (w *World) Tally() map[string]int { return w.tally }

// Record has the history written down from now on.
func (w *World) Record() { w.history = &strings.Builder{} }

// History is what was written down.
func (w *World) History() string {
	if w.history == nil {
		return ""
	}
	return w.history.String()
}
