// Package world runs processes, one at a time, on a clock that it moves itself. It injects
// faults: messages are lost or late, processes die and sleep, the server restarts.
//
// A seed decides which process acts next. This package does not know batches and calls.
// Package sim adds the processes of a fleet.
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

// World has the processes and the clock, and decides which process acts next.
//
// A process has some tasks. A task is plain sequential code that stops before every command to
// the server. If its process is killed at such a stop, the process has crashed between two
// commands.
type World struct {
	*broker.Broker
	Rng       *rand.Rand
	faults    Faults
	Processes []*Process
	inFlight  []inFlight
	commands  int // commands sent so far
	names     int // process names used so far
	nonces    int // nonces used so far
	history   *strings.Builder
	tally     map[string]int // counts of what happened
	// The server answers nothing until away, and no reads until unready.
	away, unready time.Time
	Disturbed     time.Time // time of the last fault
}

// Process is a group of tasks. They die together, and everything that they know is lost.
type Process struct {
	*World
	Name   string
	born   time.Time
	tasks  []*Task
	paused time.Time // the process does nothing until then
	Slept  time.Time // end of its last sleep in which it should have acted
	Doomed bool      // the process dies before any process acts again
	again  func()    // starts another process of the same kind, with a new name
	Bye    func()    // called when the process has ended; it does what others notice of the end
}

// Task is one sequence of commands in a process.
type Task struct {
	*Process
	what  string
	wake  time.Time   // the task continues at this time at the latest
	ready func() bool // the task continues when ready returns true; nil: only at wake
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

// killed is the panic value that ends a task whose process is dead.
type killed struct{}

// New returns a world without processes.
func New(b *broker.Broker, faults Faults, rng *rand.Rand) *World {
	return &World{Broker: b, faults: faults, Rng: rng, tally: map[string]int{}}
}

// Start starts a process. When the process dies, again starts another of the same kind. If
// again is nil, the process never dies.
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

// Wait lets other tasks act until a time (until), or until the function ready returns true, if
// that is earlier. ready may be nil.
func (t *Task) Wait(until time.Time, ready func() bool) {
	t.wake, t.ready = until, ready
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
	t.wake, t.ready = time.Time{}, nil
}

// Sleep lets other tasks act for a while.
func (t *Task) Sleep(d time.Duration) { t.Wait(t.Now.Add(d), nil) }

func (t *Task) runnable() bool {
	return !t.Now.Before(t.paused) && (t.ready != nil && t.ready() || !t.Now.Before(t.wake))
}

// Never is later than any time of a run.
var Never = time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)

// Step lets one task run to its next command. If no task can run, it moves the clock to the
// next moment at which a task can. It returns false if no task waits for anything.
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

// arrive executes the late commands that are due. It reports whether there were any.
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

// next returns the next moment at which something can happen.
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

// kill ends a process between two commands, and starts another of the same kind.
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

// outage restarts the server. The server is away for a random time of at most most, and may
// have lost its latest removals.
func (w *World) outage(most time.Duration) {
	w.Logf("", "OUTAGE", "of the server")
	w.Count("outages")
	w.away = w.Now.Add(time.Duration(w.Rng.Int64N(int64(most))))
	w.Disturbed = w.Now
	w.unready = w.away.Add(time.Duration(w.Rng.IntN(3000)) * time.Millisecond)
	w.RestartBehind(func() bool { return w.Rng.IntN(2) == 0 })
}

// Knew reports whether a message was stored before the last start of the process or of the
// server. The delivery count of such a message may be lost.
func (p *Process) Knew(stored time.Time) bool {
	return !stored.After(p.born) || !stored.After(p.Restarted)
}

// Close ends all tasks.
func (w *World) Close() {
	for _, p := range w.Processes {
		for _, t := range p.tasks {
			t.stop()
		}
	}
}

// Logf adds a line to the history, if one is recorded.
func (w *World) Logf(who, what, format string, args ...any) {
	if w.history != nil {
		fmt.Fprintf(w.history, "%6d %11.3fs  %-4s %-9s %s\n", w.commands, w.Now.Sub(Epoch).Seconds(), who, what, fmt.Sprintf(format, args...))
	}
}

// Epoch is the first moment of simulated time.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Commands returns the number of commands sent so far.
func (w *World) Commands() int { return w.commands }

// Count adds one to a count of the tally.
func (w *World) Count(what string) { w.tally[what]++ }

// Alive reports whether a process is alive.
func (w *World) Alive(p *Process) bool { return slices.Contains(w.Processes, p) }

// Breaks reports whether this step of a driver has a bug.
func (p *Process) Breaks() bool { return p.faults.breaks(p) }

// Nonce returns a unique text.
func (t *Task) Nonce() string {
	t.nonces++
	return fmt.Sprint(t.Name, "-", t.nonces)
}

// Tally returns the counts of what happened: faults, runs, results by status. It shows what a
// test covered.
func (w *World) Tally() map[string]int { return w.tally }

// Record starts to record the history.
func (w *World) Record() { w.history = &strings.Builder{} }

// History returns the recorded history.
func (w *World) History() string {
	if w.history == nil {
		return ""
	}
	return w.history.String()
}
