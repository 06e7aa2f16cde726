package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
)

// Config holds the limits of a batch and its calls.
type Config struct {
	Digest       string        // of the batch's body
	Nonce        string        // part of every record that this machine's driver writes
	Window       int           // how many calls may be dispatched and open at once
	FirstPoll    time.Duration // time from a dispatch to the first look into the journal
	Poll         time.Duration // time between later looks
	QueueTimeout time.Duration // how long a call may wait until a worker reports it
	// Unserved is how long a call may wait while its pool has workers, but none of them serves
	// its tool. It is at most QueueTimeout. 0: as long as QueueTimeout.
	Unserved time.Duration
	Grace    time.Duration // added to every lease and deadline
	NotAfter time.Time     // no call starts later than this and Machine.Waits
	Forgets  time.Time     // from then on, records of the batch may be deleted; zero: they are kept
	Waits    time.Duration // the most that waiting for people may add to NotAfter
	Timeout  time.Duration // limit on the active time of the whole batch (see keepTime); 0: none
	Poison   int           // number of lapsed claims after which a call is given up; 0: no limit
	// KeepGoing lets later writes of the batch run after a write whose outcome is unknown.
	KeepGoing bool
}

// Machine is the state machine of one batch. Only one goroutine at a time may call its
// methods.
type Machine struct {
	cfg    Config
	plan   plan.Plan
	calls  []call
	began  bool
	late   bool      // another coordinator may drive the batch, or has driven it
	again  bool      // jobs of the batch may have been published before
	pollAt time.Time // when to read the journal next; zero: no read is planned
	// lookedAt is the time of the last read of the journal, or of Begin.
	lookedAt time.Time

	active       time.Duration // active time used up to activeSince
	activeSince  time.Time     // zero while no call uses active time: see keepTime
	activeStored time.Duration // active time in the newest plan record

	turn       Turn     // what the batch may start beside earlier batches of its session
	abort      *Aborted // why the batch was aborted; nil if it was not
	steer      *Steered // the steering that skips calls; nil if there is none
	steerAfter int      // the last stage whose calls still run; only with steer
	tookOver   int      // the stage whose reads may have run under an earlier driver; -1: no stage

	planned  bool // a plan record is stored
	planSeq  uint64
	storing  bool // a StorePlan is under way: no Planned has come since
	finished bool
}

// New returns a machine that has the plan and no events yet.
func New(p plan.Plan, cfg Config) *Machine {
	m := &Machine{cfg: cfg, plan: p, calls: make([]call, len(p.Calls)), turn: Turn{Room: cfg.Window}}
	m.applyRefusals()
	return m
}

// Plan returns the plan in force: this machine's, or the stored plan of another coordinator.
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

// Step applies one event and returns the effects, which the driver carries out in their order.
// now is the time of the event.
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
		// Decide again about each End: the other driver may have news.
		for i := range m.calls {
			m.calls[i].endAt = time.Time{}
		}
	case Planned:
		m.onPlan(ev)
	case Recorded:
		m.onRecord(now, ev)
	case Ended:
		m.end(ev.Index, ev.Result)
		if m.plan.Calls[ev.Index].Claims() { // the call's record has the result
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

// onSteered applies a steering message. After an immediate message, no further call starts.
// After any other message, the calls of later stages do not start. If several messages come,
// the strictest one counts.
func (m *Machine) onSteered(ev Steered) {
	if m.steer == nil {
		m.steer, m.steerAfter = &ev, m.current()
		if !m.started(m.stage()) {
			m.steerAfter--
		}
	}
	m.steer.Now = m.steer.Now || ev.Now
}

// started reports whether one of these calls has begun, as far as the driver knows.
func (m *Machine) started(calls []int) bool {
	for _, i := range calls {
		c := &m.calls[i]
		if c.published || c.seq > 0 || c.state() == ended && m.plan.Calls[i].Refused == nil {
			return true
		}
	}
	return false
}

// advance returns the effects that the present states of the calls require.
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
		case looked && c.base == queued: // this read was too early to find news
			m.pollSoon(c.since)
		}
	}
	return append(wants, m.poll(now, looked)...)
}

// inWindow reports whether the call takes a place in the window. It does if its job is
// published or a worker holds it. The window limits how many such calls there are at once.
func (m *Machine) inWindow(now time.Time, c *call) bool { return c.published || m.live(now, c) }

// needsJob reports whether a job of the call has to be published, because no queue has a job
// that a worker could take.
func (m *Machine) needsJob(now time.Time, c *call) bool {
	switch c.base {
	case waiting, released:
		return true
	case running: // a worker runs the call with the job of another driver
		return !c.published
	case claimed:
		return !c.published || m.lapsed(now, c)
	}
	return false
}

// runnable returns the open calls of the current stage that may run now, in call order. The
// calls that workers have handed back come last, one at a time. exclusive means that the
// returned calls must run one at a time.
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

// stopRun asks the worker of an aborted call to stop the run: once at the abort, and again
// after each read of the journal.
func (m *Machine) stopRun(i int, looked bool) []Effect {
	c := &m.calls[i]
	if m.abort == nil || c.stopped && !looked {
		return nil
	}
	c.stopped = true
	return []Effect{Stop{i, m.abort.Stop}}
}

// tellEnds returns a Tell for each ended call whose end was not published to watchers.
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

// stage returns all calls of the current stage, including those that have ended.
func (m *Machine) stage() []int {
	if s := m.current(); s < len(m.plan.Stages) {
		return m.plan.Stages[s]
	}
	return nil
}

// dispatch returns the effect that publishes the job of a call. If no worker has taken the
// last job, c.since stays: the call has waited since that job.
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
	if m.late || m.again { // another driver may have published a job of the call
		d.Again++
	}
	c.dispatches++
	if m.cfg.Timeout > 0 {
		d.Deadline = max(m.left(now), time.Millisecond)
	}
	return d
}

// results returns all results in call order, and marks those whose runs overlapped.
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
