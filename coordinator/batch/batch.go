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
	NotAfter     time.Time     // past it nothing is started
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
	gone       bool      // its job left the queue, and no worker has it
	held       bool      // it would be dispatched, were there room in the window
	notBefore  time.Time // of the next dispatch
	attempts   int       // that failed, of a call that does not claim
	since      time.Time // of the last sign of life: dispatch, or a worker's word
	ran        bool      // a worker said that it runs
	seq        uint64    // of the newest journal record
	record     messages.CallRecord
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

// Event is something that the machine is told.
type Event interface{ event() }

type (
	// Begin starts the batch, once all records that the journal holds have been told. Resumed: there
	// were some, so whoever watches has seen the start already. Late: this is not certainly the first
	// driver, so a worker may be running a call and telling another coordinator.
	Begin struct{ Resumed, Late bool }
	// Late tells, after Begin, that another coordinator drives or drove the batch too.
	Late struct{}
	// Planned tells of a record on the batch's plan subject, ours or another's.
	Planned struct {
		Record messages.PlanRecord
		Seq    uint64
	}
	// Recorded tells of the newest record in a call's journal.
	Recorded struct {
		Index  int
		Record messages.CallRecord
		Seq    uint64
	}
	// Ended tells of the stored result of a call.
	Ended struct {
		Index  int
		Result messages.Result
	}
	// HandedBack tells that the call's frozen input is stricter than its plan: it must run alone.
	HandedBack struct{ Index int }
	// LetGo is a worker's word that it gave the call's job up and that it should be published again after a
	// while. Attempt counts the failed attempts of a call that does not claim. A hint.
	LetGo struct {
		Index   int
		After   time.Duration
		Attempt int
	}
	// Running is a worker's word that it has the call in hand. A hint.
	Running struct{ Index int }
	// Aborted tells that nobody wants the batch any more, who said so and why. What has not started never will.
	Aborted struct{ messages.Stop }
	// Steered tells that somebody wants to be heard before more of the batch runs: before any call that is not
	// dispatched yet when Now is set, else before the next stage.
	Steered struct {
		messages.Stop
		Now bool
	}
	// Looked ends what a Look found.
	Looked struct{}
	// Tick tells the time, at or after [Machine.Wake].
	Tick struct{}
)

func (Begin) event()      {}
func (Late) event()       {}
func (Planned) event()    {}
func (Recorded) event()   {}
func (Ended) event()      {}
func (HandedBack) event() {}
func (LetGo) event()      {}
func (Running) event()    {}
func (Aborted) event()    {}
func (Steered) event()    {}
func (Looked) event()     {}
func (Tick) event()       {}

// Effect is something that the machine wants done.
type Effect interface{ effect() }

type (
	// Announce wants a start event for every call, before anything is dispatched.
	Announce struct{}
	// StorePlan wants the record stored behind the one at sequence Expect, and [Planned] told of what is
	// then the newest there. Nothing exclusive is dispatched before.
	StorePlan struct {
		Record messages.PlanRecord
		Expect uint64
	}
	// Dispatch wants the call's job published. Again counts the times it was before.
	Dispatch struct {
		Index, Again int
		Exclusive    bool
		Deadline     time.Duration // of the run; 0: the tool's own
		TakeOver     uint64        // the record to claim behind: a lapsed claim or a release; 0: none
		Attempt      int           // failed attempts of a call that does not claim
	}
	// Look wants the journal of the open calls read and told, then [Looked].
	Look struct{}
	// End wants the result stored for a call that nobody runs, behind the journal record at Expect, and
	// what is then stored told.
	End struct {
		Index  int
		Result messages.Result
		Expect uint64
	}
	// Stop wants whoever runs the call told to stop it.
	Stop struct {
		Index int
		Why   messages.Stop
	}
	// Tell wants the end of a call published to whoever watches.
	Tell struct{ Result messages.Result }
	// Finish wants the reply made of the results, in call order. It comes last, and once.
	Finish struct{ Results []messages.Result }
)

func (Announce) effect()  {}
func (StorePlan) effect() {}
func (Dispatch) effect()  {}
func (Look) effect()      {}
func (End) effect()       {}
func (Stop) effect()      {}
func (Tell) effect()      {}
func (Finish) effect()    {}

// Step tells the machine one thing at the given time and returns what it now wants.
func (m *Machine) Step(now time.Time, ev Event) []Effect {
	if m.finished {
		return nil
	}
	var wants []Effect
	looked := false
	switch ev := ev.(type) {
	case Begin:
		m.began, m.late, m.activeSince = true, ev.Late, now
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
		if m.plan.Calls[ev.Index].Claims() { // a notice of what stands in the call's own journal
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

func (m *Machine) applyRefusals() {
	for i, c := range m.plan.Calls {
		if c.Refused != nil {
			m.end(i, *c.Refused)
		}
	}
}

// planStored follows a stored plan record. The first record of another coordinator is adopted whole.
func (m *Machine) planStored(ev Planned) {
	if ev.Seq <= m.planSeq {
		return
	}
	m.planned, m.planSeq, m.storing = true, ev.Seq, false
	m.activeSaid = time.Duration(ev.Record.ActiveMS) * time.Millisecond
	if !m.began {
		m.active = max(m.active, m.activeSaid)
	}
	if len(ev.Record.Calls) > 0 && ev.Record.Nonce != m.cfg.Nonce {
		m.adopt(ev.Record)
	}
	for _, r := range ev.Record.Results {
		if r.Index < 0 || r.Index >= len(m.calls) || m.calls[r.Index].recorded {
			continue
		}
		// What is recorded is what the next write builds on, even if a read was run twice and we saw the other result.
		m.calls[r.Index].result, m.calls[r.Index].recorded = &r, true
	}
}

// adopt follows the plan of a coordinator that was faster. What our own refused and it does not is open again.
func (m *Machine) adopt(record messages.PlanRecord) {
	adopted, err := m.plan.Adopt(record)
	if err != nil { // not a record of this batch; the shell has compared the digests
		return
	}
	for i := range m.calls {
		if c := &m.calls[i]; m.plan.Calls[i].Refused != nil && adopted.Calls[i].Refused == nil && !c.recorded {
			c.result, c.told = nil, false
		}
	}
	m.plan = adopted
	m.applyRefusals()
}

// recorded follows the newest record in a call's journal.
func (m *Machine) recorded(now time.Time, ev Recorded) {
	c := &m.calls[ev.Index]
	if ev.Seq <= c.seq {
		return
	}
	if ev.Record.State != messages.Renewed || ev.Record.Fence != c.record.Fence && ev.Record.Fence != c.seq {
		c.claimSeen = now
	}
	c.seq, c.record, c.seen = ev.Seq, ev.Record, now
	c.since, c.ran, c.endAt, c.gone = now, true, time.Time{}, false
	switch ev.Record.State {
	case messages.Released, messages.Granted: // to be claimed again
		c.ran, c.gone = false, true
		c.notBefore = now.Add(time.Duration(ev.Record.RetryAfterMS) * time.Millisecond)
		c.since = c.notBefore
	case messages.Ended:
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
	if exclusive && m.wanted(calls[0]) {
		if store, ok := m.planFirst(calls[0]); ok {
			return append(wants, store...)
		}
	}
	inFlight := 0
	for _, i := range calls {
		c := &m.calls[i]
		switch {
		case m.live(now, c):
			inFlight++
			wants = append(wants, m.stop(i, looked)...)
		case m.over(now, i, c, &wants):
			inFlight++ // until the end is stored
		case parked(c): // holds nothing
		case now.Before(c.notBefore):
			inFlight++
		case !c.dispatched || c.gone || m.lapsed(now, c):
			if c.held = inFlight >= m.cfg.Window; !c.held {
				inFlight++
				wants = append(wants, m.dispatch(now, i, exclusive))
			}
		default:
			inFlight++
			switch {
			case !looked:
			case now.Sub(c.since) >= m.cfg.FirstPoll:
				wants = append(wants, m.dispatch(now, i, exclusive))
			case !c.ran: // dispatched a moment ago: that look was too soon for it
				m.pollSoon(c.since)
			}
		}
	}
	return append(wants, m.poll(now, looked)...)
}

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

// planFirst wants the plan stored before an exclusive call, when there is none yet or reads have ended
// since that are in no record: a write never starts on a read whose result is not durable.
func (m *Machine) planFirst(call int) ([]Effect, bool) {
	if m.storing {
		return nil, true
	}
	record := messages.PlanRecord{
		V: messages.Version, Nonce: m.cfg.Nonce, Digest: m.cfg.Digest, Stage: m.plan.Calls[call].Stage, ActiveMS: m.active.Milliseconds(),
	}
	for i, c := range m.calls {
		if c.result != nil && !c.recorded && m.plan.Calls[i].Refused == nil {
			record.Results = append(record.Results, *c.result)
		}
	}
	// Whoever takes the batch over must know how much of its time is used, within an eighth of it.
	told := m.cfg.Timeout == 0 || m.calls[call].dispatched || m.active-m.activeSaid < m.cfg.Timeout/8
	if m.planned && len(record.Results) == 0 && told {
		return nil, false
	}
	if !m.planned {
		record.Calls = m.plan.Record()
	}
	m.storing = true
	return []Effect{StorePlan{record, m.planSeq}}, true
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
	c.dispatches++
	d := Dispatch{Index: i, Again: c.dispatches - 1, Exclusive: exclusive, TakeOver: c.seq, Attempt: c.attempts}
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
