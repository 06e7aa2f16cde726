package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
)

// Config bounds how long a batch and its calls may take.
type Config struct {
	Digest       string        // of the Batch as received
	Nonce        string        // part of every record that this machine's driver writes
	Window       int           // how many calls may be dispatched and open at once
	FirstPoll    time.Duration // time from a dispatch to the first look into the journal
	Poll         time.Duration // time between later looks
	QueueTimeout time.Duration // how long a call may wait for a sign of a worker
	// Unserved is how long a call may wait if workers of its pool are there but none has its tool.
	// It is never longer than QueueTimeout; 0: as long as QueueTimeout.
	Unserved time.Duration
	Grace    time.Duration // added to every lease and deadline
	NotAfter time.Time     // no call starts later; time for answers of people is added
	Forgets  time.Time     // records of the batch may be deleted later; zero: they are kept
	Waits    time.Duration // how much time for answers is added to NotAfter at most
	Timeout  time.Duration // how much active time the whole batch has; 0: no bound
	Poison   int           // lapsed claims after which a call is given up; 0: no bound
	// KeepGoing lets later writes of the batch run after a write whose outcome is unknown.
	KeepGoing bool
}

// Machine drives one batch. Its methods are for one goroutine.
type Machine struct {
	cfg    Config
	plan   plan.Plan
	calls  []call
	began  bool
	late   bool      // another coordinator may have driven the batch before, or drives it now
	again  bool      // jobs of the batch may have been published before
	pollAt time.Time // when to look into the journal next; zero: no look is planned
	// lookedAt is the time of the last look, or of the beginning.
	lookedAt time.Time

	active       time.Duration // active time used up to activeSince
	activeSince  time.Time     // zero while the batch only waits for people
	activeStored time.Duration // active time in the newest plan record

	turn       Turn     // what the earlier batches of the session let this one do
	abort      *Aborted // nil, or why the batch was aborted
	steer      *Steered // nil, or the steering that skips calls
	steerAfter int      // with steer: calls of the stages after this one do not run
	tookOver   int      // the stage of which reads may have run under an earlier driver; -1: none

	planned  bool // a plan record is stored
	planSeq  uint64
	storing  bool // a StorePlan was asked for, and its Planned has not come
	finished bool
}

// New returns a machine for a batch. So far it knows only the plan.
func New(p plan.Plan, cfg Config) *Machine {
	m := &Machine{cfg: cfg, plan: p, calls: make([]call, len(p.Calls)), turn: Turn{Room: cfg.Window}}
	m.applyRefusals()
	return m
}

// Plan returns the plan that the machine follows: its own, or that of another coordinator.
func (m *Machine) Plan() plan.Plan { return m.plan }

// Open returns the open calls of the current stage.
func (m *Machine) Open() []int {
	var open []int
	for _, i := range m.stage() {
		if m.calls[i].state() != ended {
			open = append(open, i)
		}
	}
	return open
}

// Ended counts the calls that have ended.
func (m *Machine) Ended() int {
	n := 0
	for i := range m.calls {
		if m.calls[i].state() == ended {
			n++
		}
	}
	return n
}

// Step applies one event at the given time and returns the effects that the driver carries out, in
// order.
func (m *Machine) Step(now time.Time, ev Event) []Effect {
	if m.finished {
		return nil
	}
	var wants []Effect
	looked := false
	switch ev := ev.(type) {
	case Begin:
		m.onBegin(now, ev)
		if !ev.Resumed {
			wants = append(wants, Announce{})
		}
	case Late:
		m.late = true
		for i := range m.calls { // reconsider each End: the other driver may know more
			m.calls[i].endAt = time.Time{}
		}
	case Planned:
		m.onPlan(ev)
	case Recorded:
		m.onRecord(now, ev)
	case Ended:
		m.end(ev.Index, ev.Result)
		if m.plan.Calls[ev.Index].Claims() { // the result is in the records of the call
			m.calls[ev.Index].durable = true
		}
	case HandedBack:
		m.onHandedBack(now, ev.Index)
	case LetGo:
		m.onLetGo(now, ev)
	case Running:
		m.onRunning(now, ev.Index)
	case Unserved:
		m.onUnserved(now, ev)
	case Aborted:
		if m.abort == nil {
			m.abort = &ev
		}
	case Steered:
		m.onSteered(ev)
	case Turn:
		m.turn = ev
	case Looked:
		looked = true
	case Tick:
	}
	if !m.began {
		return nil
	}
	m.keepTime(now)
	return append(wants, m.advance(now, looked)...)
}

func (m *Machine) onBegin(now time.Time, ev Begin) {
	m.began, m.late, m.again, m.activeSince, m.lookedAt, m.tookOver = true, ev.Late, ev.Again, now, now, -1
	if ev.Late { // a worker may send its notices to the other coordinator
		m.pollSoon(now)
	}
	if ev.Late && (ev.Resumed || ev.Jobs) {
		m.tookOver = m.current()
	}
}

// onSteered applies a steering message: no further call starts, either from now on or from the next
// stage on. If there are several messages, the strictest counts.
func (m *Machine) onSteered(ev Steered) {
	if m.steer == nil {
		m.steer, m.steerAfter = &ev, m.current()
		if !m.started(m.stage()) {
			m.steerAfter--
		}
	}
	m.steer.Now = m.steer.Now || ev.Now
}

// started reports whether the driver knows that one of these calls has begun.
func (m *Machine) started(calls []int) bool {
	for _, i := range calls {
		c := &m.calls[i]
		if c.published || c.seq > 0 || c.state() == ended && m.plan.Calls[i].Refused == nil {
			return true
		}
	}
	return false
}

// advance returns what to do next. It looks only at the states of the calls.
func (m *Machine) advance(now time.Time, looked bool) []Effect {
	wants := m.tellEnds()
	calls, exclusive := m.runnable()
	if len(calls) == 0 {
		if m.refusesUnstored() {
			store, _ := m.planFirst(len(m.calls) - 1)
			return append(wants, store...)
		}
		m.finished = true
		return append(wants, Finish{m.results()})
	}
	if m.storesFirst(calls, exclusive) {
		if store, ok := m.planFirst(calls[0]); ok {
			return append(wants, store...)
		}
	}
	mayStart := m.mayStart(exclusive)
	room := min(m.cfg.Window, m.turn.Room) - m.Running(now)
	for _, i := range calls {
		c := &m.calls[i]
		c.held = false
		if m.live(now, c) {
			wants = append(wants, m.stopRun(i, looked)...)
			continue
		}
		if end, over := m.giveUp(now, i); over {
			wants = append(wants, end...)
			continue
		}
		switch {
		case c.base == parked, now.Before(c.notBefore):
		case m.needsJob(now, c):
			if c.held = !mayStart || !c.published && room <= 0; c.held {
				continue
			}
			if !c.published {
				room--
			}
			wants = append(wants, m.dispatch(now, i, exclusive))
		case looked && now.Sub(c.since) >= m.cfg.FirstPoll: // the job or the notice about it may be lost
			wants = append(wants, m.dispatch(now, i, exclusive))
		case looked && c.base == queued: // the look came too soon to find anything
			m.pollSoon(c.since)
		}
	}
	return append(wants, m.poll(now, looked)...)
}

// inWindow reports whether the call counts against the window (the largest number of calls that are
// out at once): a job of it is published, or a worker holds it.
func (m *Machine) inWindow(now time.Time, c *call) bool { return c.published || m.live(now, c) }

// needsJob reports whether a job of the call has to be published: none that a worker could take is
// in the queue.
func (m *Machine) needsJob(now time.Time, c *call) bool {
	switch c.base {
	case waiting, released:
		return true
	case running: // a worker runs it by the job of another driver
		return !c.published
	case claimed:
		return !c.published || m.lapsed(now, c)
	}
	return false
}

// runnable returns the open calls of the current stage that may run now, in call order. A call that
// was handed back comes only after all others, and alone. exclusive says that the returned call
// must run alone.
func (m *Machine) runnable() (calls []int, exclusive bool) {
	var handedBack []int
	for _, i := range m.stage() {
		switch c := &m.calls[i]; {
		case c.state() == ended:
		case m.handedBack(i):
			handedBack = append(handedBack, i)
		default:
			calls = append(calls, i)
			exclusive = exclusive || !m.plan.Calls[i].ConcurrencySafe
		}
	}
	if len(calls) == 0 && len(handedBack) > 0 {
		return handedBack[:1], true
	}
	return calls, exclusive
}

// stopRun asks the worker that runs an aborted call to stop it. It asks at once, and again each
// time that the journal was read.
func (m *Machine) stopRun(i int, looked bool) []Effect {
	c := &m.calls[i]
	if m.abort == nil || c.stopped && !looked {
		return nil
	}
	c.stopped = true
	return []Effect{Stop{i, m.abort.Stop}}
}

// tellEnds returns a Tell for each call that has ended since the last time.
func (m *Machine) tellEnds() []Effect {
	var wants []Effect
	for i := range m.calls {
		if c := &m.calls[i]; c.state() == ended && !c.told {
			c.told = true
			wants = append(wants, Tell{*c.result})
		}
	}
	return wants
}

// current returns the first stage that has an open call, or the number of stages if none has.
func (m *Machine) current() int {
	for s, calls := range m.plan.Stages {
		for _, i := range calls {
			if m.calls[i].state() != ended {
				return s
			}
		}
	}
	return len(m.plan.Stages)
}

// stage returns the calls of the current stage, ended ones too.
func (m *Machine) stage() []int {
	if s := m.current(); s < len(m.plan.Stages) {
		return m.plan.Stages[s]
	}
	return nil
}

// dispatch returns the effect that publishes the job of a call. If nobody took the job, publishing
// it again does not reset c.since: the waiting time of the call counts from its first job.
func (m *Machine) dispatch(now time.Time, i int, exclusive bool) Effect {
	c := &m.calls[i]
	if !c.published || m.lapsed(now, c) {
		c.since = now
	}
	if c.since.Equal(now) || c.base == released {
		m.pollSoon(now)
	}
	c.published = true
	if !c.reported() {
		c.become(queued, now)
	}
	d := Dispatch{Index: i, Again: c.dispatches, Exclusive: exclusive, TakeOver: c.seq, Attempt: c.attempts}
	if m.late || m.again { // another driver may have published a job before
		d.Again++
	}
	c.dispatches++
	if m.cfg.Timeout > 0 {
		d.Deadline = max(m.left(now), time.Millisecond)
	}
	return d
}

// results returns every result in call order. It marks results whose runs overlapped.
func (m *Machine) results() []messages.Result {
	results := make([]messages.Result, len(m.calls))
	for i, c := range m.calls {
		results[i] = *c.result
	}
	for i := range results {
		for j := range results {
			if i != j && overlap(results[i], results[j]) {
				results[i].WasConcurrent = true
			}
		}
	}
	return results
}

func overlap(a, b messages.Result) bool {
	if a.Started.IsZero() || b.Started.IsZero() {
		return false
	}
	return a.Started.Before(endOf(b)) && b.Started.Before(endOf(a))
}

func endOf(r messages.Result) time.Time {
	return r.Started.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
}
