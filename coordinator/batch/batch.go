// Package batch is the life of one batch as a state machine: events in, effects out.
//
//	        Begin, Recorded, Ended, Planned, Running, Looked, Tick
//	                               |
//	                          Machine.Step
//	                               |
//	Announce, Dispatch, StorePlan, Look, End, Tell, Finish   (to be carried out in this order)
//
// What may start is derived, each time, from which calls have ended: the first stage with an open call is
// the one that runs. So a coordinator that takes a batch over feeds the records it finds in the journal
// to a new machine, says Begin, and goes on; there is no second path for recovery.
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
}

// Machine is the state of one batch. Its methods are for one goroutine.
type Machine struct {
	cfg    Config
	plan   plan.Plan
	calls  []call
	began  bool
	late   bool      // another coordinator may have driven it before
	start  time.Time // of Begin
	pollAt time.Time // next look; zero: none wanted

	planned  bool // a plan record is stored
	planSeq  uint64
	storing  bool // a plan record is on its way
	finished bool
}

// call is what is known about one call beyond its plan.
type call struct {
	result *messages.Result // set: ended
	told   bool             // its end was told
	// recorded: the result is in a record that survives power loss: a journal of its own or a plan record.
	recorded   bool
	dispatched bool
	dispatches int
	since      time.Time // of the last sign of life: dispatch, or a worker's word
	ran        bool      // a worker said that it runs
	seq        uint64    // of the newest journal record
	record     messages.CallRecord
	seen       time.Time // when that record was first seen here
	endAt      time.Time // when an End was last asked for
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
	stage, open := m.stage()
	if !open {
		return nil
	}
	var calls []int
	for _, i := range m.plan.Stages[stage] {
		if m.calls[i].result == nil {
			calls = append(calls, i)
		}
	}
	return calls
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
	// Running is a worker's word that it is running the call. A hint.
	Running struct{ Index int }
	// Looked ends what a Look found.
	Looked struct{}
	// Tick tells the time, at or after [Machine.Wake].
	Tick struct{}
)

func (Begin) event()    {}
func (Planned) event()  {}
func (Recorded) event() {}
func (Ended) event()    {}
func (Running) event()  {}
func (Looked) event()   {}
func (Tick) event()     {}

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
		TakeOver     uint64        // the lapsed claim to claim behind; 0: none
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
		m.began, m.late, m.start = true, ev.Late, now
		if !ev.Resumed {
			wants = append(wants, Announce{})
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
	case Running:
		c := &m.calls[ev.Index]
		c.since, c.ran = now, true
	case Looked:
		looked = true
	case Tick:
	}
	if !m.began {
		return nil
	}
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
	c.seq, c.record, c.seen = ev.Seq, ev.Record, now
	c.since, c.ran, c.endAt = now, true, time.Time{}
	if ev.Record.State == messages.Ended && ev.Record.Result != nil {
		m.end(ev.Index, *ev.Record.Result)
		c.recorded = true
	}
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
	stage, open := m.stage()
	if !open {
		m.finished = true
		return append(wants, Finish{m.results()})
	}
	if store, ok := m.planFirst(stage); ok {
		return append(wants, store...)
	}
	inFlight := 0
	for _, i := range m.plan.Stages[stage] {
		c := &m.calls[i]
		switch {
		case c.result != nil:
		case m.live(now, c):
			inFlight++
		case m.over(now, i, c, &wants):
			inFlight++ // until the end is stored
		case !c.dispatched || m.lapsed(now, c):
			if inFlight < m.cfg.Window {
				inFlight++
				wants = append(wants, m.dispatch(now, i))
			}
		default:
			inFlight++
			if looked && now.Sub(c.since) >= m.cfg.FirstPoll {
				wants = append(wants, m.dispatch(now, i))
			}
		}
	}
	return append(wants, m.poll(now, looked)...)
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

// stage is the first stage that has an open call.
func (m *Machine) stage() (int, bool) {
	for s, calls := range m.plan.Stages {
		for _, i := range calls {
			if m.calls[i].result == nil {
				return s, true
			}
		}
	}
	return 0, false
}

// planFirst wants the plan stored before an exclusive stage, when there is none yet or reads have ended
// since that are in no record: a write never starts on a read whose result is not durable.
func (m *Machine) planFirst(stage int) ([]Effect, bool) {
	if !m.plan.Exclusive(stage) {
		return nil, false
	}
	if m.storing {
		return nil, true
	}
	record := messages.PlanRecord{V: messages.Version, Nonce: m.cfg.Nonce, Digest: m.cfg.Digest, Stage: stage}
	for i, c := range m.calls {
		if c.result != nil && !c.recorded && m.plan.Calls[i].Refused == nil {
			record.Results = append(record.Results, *c.result)
		}
	}
	if m.planned && len(record.Results) == 0 {
		return nil, false
	}
	if !m.planned {
		record.Calls = m.plan.Record()
	}
	m.storing = true
	return []Effect{StorePlan{record, m.planSeq}}, true
}

func (m *Machine) dispatch(now time.Time, i int) Effect {
	c := &m.calls[i]
	if !c.dispatched || m.lapsed(now, c) { // not when a job that nobody took is published once more
		c.since = now
		m.pollSoon(now)
	}
	c.dispatched = true
	c.dispatches++
	d := Dispatch{Index: i, Again: c.dispatches - 1, Exclusive: m.plan.Exclusive(m.plan.Calls[i].Stage)}
	if claimed(c) {
		d.TakeOver = c.seq
	}
	if m.cfg.Timeout > 0 {
		d.Deadline = max(m.start.Add(m.cfg.Timeout).Sub(now), time.Millisecond)
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
