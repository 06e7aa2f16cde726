package sim

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// World is parties that act one at a time, and the clock. It chooses who is next.
//
// A party is a process: some tasks, each written as the straight code it stands for, that stop before every
// command they give to the server. Killing a process there is the crash between two commands.
type World struct {
	*broker.Broker
	rng       *rand.Rand
	faults    Faults
	processes []*process
	inFlight  []inFlight
	commands  int // that were given so far
	names     int // of processes that were given so far
	nonces    int // that were given so far
	history   *strings.Builder
	tally     map[string]int       // how often what happened
	decidedAt map[string]time.Time // by the nonce of the record
	// submissions holds every batch that an agent publishes, by the bytes that the log has of it.
	submissions map[string]*Submission
	// The server answers nothing before away, and no read before unready.
	away, unready time.Time
	disturbed     time.Time // when something last went wrong
}

// process is what dies as a whole, with all that it knows.
type process struct {
	*World
	name   string
	born   time.Time
	tasks  []*task
	paused time.Time // it does nothing before
	slept  time.Time // until then it did not get to do what it was to do
	doomed bool      // it dies before anybody does anything else
	again  func()    // starts another of its kind, under a new name
	bye    func()    // what the others notice of its end
	// told is what it does when it hears that a call should stop; nil: nothing.
	told func(wire.CallKey)
}

// task is one thing that a process does.
type task struct {
	*process
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

func (w *World) start(kind string, again func()) *process {
	w.names++
	p := &process{World: w, name: fmt.Sprint(kind, w.names), born: w.Now, again: again, bye: func() {}}
	w.processes = append(w.processes, p)
	w.logf(p.name, "starts", "")
	return p
}

// spawn adds a task to the process.
func (p *process) spawn(what string, run func(*task)) {
	t := &task{process: p, what: what}
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

// wait lets others go on until the time has come or the condition holds (nil: none).
func (t *task) wait(until time.Time, ready func() bool) {
	t.wake, t.ready = until, ready
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
	t.wake, t.ready = time.Time{}, nil
}

func (t *task) sleep(d time.Duration) { t.wait(t.Now.Add(d), nil) }

func (t *task) runnable() bool {
	return !t.Now.Before(t.paused) && (t.ready != nil && t.ready() || !t.Now.Before(t.wake))
}

// never is a time that does not come.
var never = time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)

// step lets one task go on to its next command, or moves the clock to the next moment at which one can. It
// reports false when nobody waits for anything.
func (w *World) step() bool {
	for _, p := range slices.Clone(w.processes) {
		if p.doomed {
			w.kill(p)
		}
	}
	w.faults.between(w)
	if w.arrive() {
		return true
	}
	var can []*task
	for _, p := range w.processes {
		for _, t := range p.tasks {
			if t.runnable() {
				can = append(can, t)
			}
		}
	}
	if len(can) == 0 || w.faults.skip(w) {
		if next := w.next(); next.Before(never) {
			step := next.Sub(w.Now)
			if len(can) > 0 {
				step = min(step, w.faults.delay())
			}
			w.Advance(step)
			for _, t := range can {
				t.slept = w.Now
			}
			return true
		}
		return len(can) > 0
	}
	t := can[w.rng.IntN(len(can))]
	t.next()
	if t.done {
		t.process.tasks = slices.DeleteFunc(t.process.tasks, func(other *task) bool { return other == t })
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
	next := never
	earlier := func(at time.Time) {
		if at.After(w.Now) && at.Before(next) {
			next = at
		}
	}
	for _, p := range w.processes {
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
func (w *World) kill(p *process) {
	w.disturbed = w.Now
	w.logf(p.name, "DIES", "")
	w.tally["kills"]++
	w.processes = slices.DeleteFunc(w.processes, func(other *process) bool { return other == p })
	for _, t := range p.tasks {
		t.stop()
	}
	p.bye()
	p.again()
}

// outage is a restart of the server that takes a while, at most so long. It may have forgotten what it removed last.
func (w *World) outage(most time.Duration) {
	w.logf("", "OUTAGE", "of the server")
	w.tally["outages"]++
	w.away = w.Now.Add(time.Duration(w.rng.Int64N(int64(most))))
	w.disturbed = w.Now
	w.unready = w.away.Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
	w.RestartBehind(func() bool { return w.rng.IntN(2) == 0 })
}

// knew reports whether a message was there when the process and the server last came up. How often it was delivered
// before may be forgotten.
func (p *process) knew(stored time.Time) bool {
	return !stored.After(p.born) || !stored.After(p.Restarted)
}

// close ends everything.
func (w *World) close() {
	for _, p := range w.processes {
		for _, t := range p.tasks {
			t.stop()
		}
	}
}

func (w *World) logf(who, what, format string, args ...any) {
	if w.history != nil {
		fmt.Fprintf(w.history, "%6d %11.3fs  %-4s %-9s %s\n", w.commands, w.Now.Sub(epoch).Seconds(), who, what, fmt.Sprintf(format, args...))
	}
}

// epoch is when time begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Commands is how many commands were given.
func (w *World) Commands() int { return w.commands }

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
