// Package batch is the life of one batch as a state machine: events in, effects out.
//
//	Begin, Late, Recorded, Ended, Planned, HandedBack, LetGo, Running, Aborted, Steered, Looked, Tick
//	                               |
//	                          Machine.Step
//	                               |
//	Announce, Dispatch, StorePlan, Look, End, Stop, Tell, Finish   (to be carried out in this order)
//
// What may start is derived, each time, from which calls have ended: the first stage with an open call is
// the one that runs, and of that stage the calls that were handed back run last, each alone. So a coordinator
// that takes a batch over feeds the records it finds in the journal to a new machine, says Begin, and goes
// on; there is no second path for recovery.
//
// The machine is pure: no clock (every step is told the time), no I/O, no goroutine. Two machines that
// are told of the same records want the same things, and one that is told a thing twice wants nothing
// new. It leaves to its shell: carrying effects out, and telling what the journal then holds.
package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Config is the bounds of a batch's life.
type Config struct {
	Digest       string        // of the Batch as received
	Nonce        string        // marks the records that this machine's shell writes
	Window       int           // how many of its calls may be dispatched and not ended
	FirstPoll    time.Duration // from a dispatch to the first look into the journal
	Poll         time.Duration // between looks after that
	QueueTimeout time.Duration // how long a call may wait without a sign of a worker
	Grace        time.Duration // added to every lease and deadline before they are held to have passed
	NotAfter     time.Time     // past it nothing is started; questions to people put it off
	Forgets      time.Time     // past it records of the batch may be gone; zero: they are not
	Waits        time.Duration // by how much they do, in all
	Timeout      time.Duration // active time of the whole batch; 0: no bound
	Poison       int           // claims of one call that may lapse before it is given up; 0: no bound
	// KeepGoing lets later writes of the batch run although the outcome of an earlier one is unknown.
	KeepGoing bool
}

// Machine is the state of one batch. Its methods are for one goroutine.
type Machine struct {
	cfg    Config
	plan   plan.Plan
	calls  []call
	began  bool
	late   bool      // another coordinator may have driven it before
	again  bool      // jobs of it may have been published before
	pollAt time.Time // next look; zero: none wanted

	active      time.Duration // active time used before activeSince
	activeSince time.Time     // zero: the batch only waits for people
	activeSaid  time.Duration // active time by the newest plan record

	abort *Aborted // nobody wants the batch any more
	skip  *Steered // somebody said something that is to be heard first
	after int      // with skip: the last stage of which calls are still run
	from  int      // the stage whose reads may have been running when the batch was taken over; -1: none

	planned  bool // a plan record is stored
	planSeq  uint64
	storing  bool // a plan record is on its way
	finished bool
}

// call is what is known about one call beyond its plan.
type call struct {
	result *messages.Result // set: ended
	told   bool             // its end was told
	// handedBack: its input turned out stricter than its plan, so it runs alone at the end of its stage.
	handedBack bool
	// recorded: the result is in a record that survives power loss: a journal of its own or a plan record.
	recorded   bool
	dispatched bool
	dispatches int
	gone       bool          // its job left the queue, and no worker has it
	held       bool          // it would be dispatched, were there room in the window
	notBefore  time.Time     // of the next dispatch
	attempts   int           // that failed, of a call that does not claim
	since      time.Time     // of the last sign of life: dispatch, or a worker's word
	ran        bool          // a worker said that it runs
	expires    time.Time     // of its question, while it is parked
	waits      time.Duration // the time that people were given for its question
	seq        uint64        // of the newest journal record; 0: it has none
	record     wire.CallRecord
	seen       time.Time // when that record was first seen here
	claimSeen  time.Time // when the claim that it continues was
	endAt      time.Time // when an End was last asked for
	stopped    bool      // a Stop was asked for since the last look
}

// New is the machine of a batch, before anything is known about it but its plan.
func New(p plan.Plan, cfg Config) *Machine {
	m := &Machine{cfg: cfg, plan: p, calls: make([]call, len(p.Calls))}
	m.applyRefusals()
	return m
}

// Plan is the plan that the machine follows: its own, or the one it adopted.
func (m *Machine) Plan() plan.Plan { return m.plan }

// Open is the calls of the running stage that have not ended.
func (m *Machine) Open() []int {
	var open []int
	for _, i := range m.stage() {
		if m.calls[i].result == nil {
			open = append(open, i)
		}
	}
	return open
}

// Ended counts the calls that have ended.
func (m *Machine) Ended() int {
	n := 0
	for i := range m.calls {
		if m.calls[i].result != nil {
			n++
		}
	}
	return n
}

// Step tells the machine one thing at the given time and returns what it now wants.
func (m *Machine) Step(now time.Time, ev Event) []Effect {
	if m.finished {
		return nil
	}
	var wants []Effect
	looked := false
	switch ev := ev.(type) {
	case Begin:
		m.began, m.late, m.again, m.activeSince = true, ev.Late, ev.Again, now
		m.from = -1
		if ev.Late { // what happens meanwhile may be told to another coordinator
			m.pollSoon(now)
			m.from = m.current()
		}
		if !ev.Resumed {
			wants = append(wants, Announce{})
		}
	case Late:
		m.late = true
		for i := range m.calls { // an end that was asked for is thought over
			m.calls[i].endAt = time.Time{}
		}
	case Planned:
		m.planStored(ev)
	case Recorded:
		m.recorded(now, ev)
	case Ended:
		m.end(ev.Index, ev.Result)
		if m.plan.Calls[ev.Index].Claims() { // a notice of what stands in the call's own journal; of any other it may not
			m.calls[ev.Index].recorded = true
		}
	case HandedBack:
		m.handedBack(ev.Index)
	case LetGo:
		m.letGo(now, ev)
	case Running:
		c := &m.calls[ev.Index]
		c.since, c.ran, c.gone = now, true, false
	case Aborted:
		if m.abort == nil {
			m.abort = &ev
		}
	case Steered:
		m.steered(ev)
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

// recorded follows the newest record in a call's journal.
func (m *Machine) recorded(now time.Time, ev Recorded) {
	c := &m.calls[ev.Index]
	if ev.Seq <= c.seq {
		return
	}
	if ev.Record.State != wire.Renewed || ev.Record.Fence != c.record.Fence && ev.Record.Fence != c.seq {
		c.claimSeen = now
	}
	c.seq, c.record, c.seen = ev.Seq, ev.Record, now
	if q := ev.Record.Approval; q != nil {
		c.waits = max(c.waits, q.Expires.Sub(q.Asked))
	}
	c.since, c.ran, c.endAt, c.gone = now, true, time.Time{}, false
	switch ev.Record.State {
	case wire.Parked:
		c.ran, c.dispatched = false, false
		if c.expires = ev.Expires; c.expires.IsZero() { // a record that asks nothing
			c.expires = now
		}
	case wire.Released, wire.Granted: // to be claimed again
		c.ran, c.gone = false, true
		c.notBefore = now.Add(time.Duration(ev.Record.RetryAfterMS) * time.Millisecond)
		c.since = c.notBefore
	case wire.Ended:
		if ev.Record.Result != nil {
			m.end(ev.Index, *ev.Record.Result)
			c.recorded = true
		}
	}
}

// handedBack makes the call wait for the rest of its stage. What is known of its job is of no use any more: it
// was for a lane that the call may not use.
func (m *Machine) handedBack(i int) {
	if c := &m.calls[i]; !c.handedBack {
		c.handedBack, c.dispatched, c.ran, c.gone = true, false, false, false
	}
}

// letGo wants the job published again when it is time. Without a failed attempt the call still waits for its
// first worker, and its patience is not renewed.
func (m *Machine) letGo(now time.Time, ev LetGo) {
	c := &m.calls[ev.Index]
	if !c.dispatched || c.gone {
		return
	}
	c.gone, c.notBefore = true, now.Add(ev.After)
	if ev.Attempt > c.attempts || c.ran {
		c.attempts, c.since = max(c.attempts, ev.Attempt), c.notBefore
	}
	c.ran = false
}

// steered takes the strictest wish: it is heard once the stage that now runs has ended, or at once.
func (m *Machine) steered(ev Steered) {
	if m.skip == nil {
		m.skip, m.after = &ev, m.current()
		if !m.started(m.stage()) {
			m.after--
		}
	}
	m.skip.Now = m.skip.Now || ev.Now
}

// started reports whether anything is known to have begun of these calls.
func (m *Machine) started(calls []int) bool {
	for _, i := range calls {
		c := &m.calls[i]
		if c.dispatched || c.seq > 0 || c.result != nil && m.plan.Calls[i].Refused == nil {
			return true
		}
	}
	return false
}

// end keeps the first result of a call. Later ones are other tellings of it.
func (m *Machine) end(index int, r messages.Result) {
	if c := &m.calls[index]; c.result == nil {
		c.result = &r
	}
}

// advance derives from what has ended what should be done next.
func (m *Machine) advance(now time.Time, looked bool) []Effect {
	wants := m.tell()
	calls, exclusive := m.turn()
	if len(calls) == 0 {
		m.finished = true
		return append(wants, Finish{m.results()})
	}
	if (exclusive || m.forgetsTime(calls)) && m.wanted(calls[0]) {
		if store, ok := m.planFirst(calls[0]); ok {
			return append(wants, store...)
		}
	}
	room := m.cfg.Window
	for _, i := range calls {
		if m.out(now, &m.calls[i]) {
			room--
		}
	}
	for _, i := range calls {
		c := &m.calls[i]
		c.held = false
		switch {
		case m.live(now, c):
			wants = append(wants, m.stop(i, looked)...)
		case m.over(now, i, c, &wants): // until the end is stored
		case parked(c), now.Before(c.notBefore):
		case !c.dispatched || c.gone || m.lapsed(now, c):
			if !m.out(now, c) {
				if c.held = room <= 0; c.held {
					continue
				}
				room--
			}
			wants = append(wants, m.dispatch(now, i, exclusive))
		case looked && now.Sub(c.since) >= m.cfg.FirstPoll:
			wants = append(wants, m.dispatch(now, i, exclusive))
		case looked && !c.ran: // dispatched a moment ago: that look was too soon for it
			m.pollSoon(c.since)
		}
	}
	return append(wants, m.poll(now, looked)...)
}

// out reports whether the call has a place in the window: it was dispatched, or somebody runs it. Whoever waits for a
// person has given it back.
func (m *Machine) out(now time.Time, c *call) bool { return c.dispatched || m.live(now, c) }

// turn is the open calls that may run now, in call order, and whether it is one that must run alone: the open
// calls of the first stage that has any; when all that are left of it were handed back, the first of these.
func (m *Machine) turn() (calls []int, exclusive bool) {
	var strict []int
	for _, i := range m.stage() {
		switch c := &m.calls[i]; {
		case c.result != nil:
		case c.handedBack:
			strict = append(strict, i)
		default:
			calls = append(calls, i)
			exclusive = exclusive || !m.plan.Calls[i].ConcurrencySafe
		}
	}
	if len(calls) == 0 && len(strict) > 0 {
		return strict[:1], true
	}
	return calls, exclusive
}

// stop wants a run that is not wanted any more told so: at once, and again at every look.
func (m *Machine) stop(i int, looked bool) []Effect {
	c := &m.calls[i]
	if m.abort == nil || c.stopped && !looked {
		return nil
	}
	c.stopped = true
	return []Effect{Stop{i, m.abort.Stop}}
}

// tell wants the end of each call told, once.
func (m *Machine) tell() []Effect {
	var wants []Effect
	for i := range m.calls {
		if c := &m.calls[i]; c.result != nil && !c.told {
			c.told = true
			wants = append(wants, Tell{*c.result})
		}
	}
	return wants
}

// current is the first stage that has an open call; the number of stages when there is none.
func (m *Machine) current() int {
	for s, calls := range m.plan.Stages {
		for _, i := range calls {
			if m.calls[i].result == nil {
				return s
			}
		}
	}
	return len(m.plan.Stages)
}

// stage is the calls of the current stage, the ended ones included.
func (m *Machine) stage() []int {
	if s := m.current(); s < len(m.plan.Stages) {
		return m.plan.Stages[s]
	}
	return nil
}

func (m *Machine) dispatch(now time.Time, i int, exclusive bool) Effect {
	c := &m.calls[i]
	if !c.dispatched || m.lapsed(now, c) { // not when a job that nobody took is published once more
		c.since = now
	}
	if c.since.Equal(now) || c.gone {
		m.pollSoon(now)
	}
	c.dispatched, c.gone = true, false
	d := Dispatch{Index: i, Again: c.dispatches, Exclusive: exclusive, TakeOver: c.seq, Attempt: c.attempts}
	if m.late || m.again { // another driver may have published it before, and a worker may have ended it
		d.Again++
	}
	c.dispatches++
	if m.cfg.Timeout > 0 {
		d.Deadline = max(m.left(now), time.Millisecond)
	}
	return d
}

// results is every result, in call order, each told whether its run overlapped another's.
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
	return a.Started.Before(ended(b)) && b.Started.Before(ended(a))
}

func ended(r messages.Result) time.Time {
	return r.Started.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
}
