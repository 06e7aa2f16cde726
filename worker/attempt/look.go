package attempt

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Next is what to do with a delivered job, judged by the call's journal.
type Next int

// The possible next steps.
const (
	// GoOn: the call has no record. Run its phases. Its claim will be the first record.
	GoOn Next = iota
	// TakeOver: the newest record is the one that the job's claim may follow. Continue the
	// call from that record.
	TakeOver
	// PassOn: the call has ended. Send its result to the coordinator and settle the job.
	PassOn
	// LeaveAlone: another worker has the call, or it waits for something. When that
	// changes, the coordinator publishes its job again.
	LeaveAlone
)

// Decide returns what to do about a call that must be claimed before it runs, or that has a
// record. takeOver is the sequence of the record that the job's claim may follow.
//
// Only the coordinator decides that a claim has lapsed. A worker that finds another
// worker's claim leaves the call alone, however old the claim is.
func Decide(takeOver uint64, newest Entry) Next {
	switch {
	case newest.Seq == 0:
		return GoOn
	case newest.Record.State == wire.Ended:
		return PassOn
	// A claim may follow the answer to a question, but not an open question.
	case newest.Seq == takeOver && newest.Record.State != wire.Parked:
		return TakeOver
	}
	return LeaveAlone
}

// lapsed reports whether a record is a claim. If the coordinator lets another worker take
// over such a record, the claim's worker was lost, and the call may have been applied.
func lapsed(before wire.CallRecord) bool {
	return before.State == wire.Claimed || before.State == wire.Renewed
}

// look reads what the journal holds about the call. Reading may take several times AckWait,
// so signs of life go on.
func (m *Machine) look(s State) {
	m.become(s)
	m.signAt = m.now.Add(m.cfg.AckWait / 3)
	m.writing = wire.CallRecord{}
	if m.Claims() {
		m.do(ReadRecord{})
		return
	}
	m.do(ReadResult{})
}

// resultRead passes on the stored result, if there is one.
func (m *Machine) resultRead(ev ResultRead) {
	switch {
	case m.state != Looking || m.Claims():
	case ev.Result != nil:
		m.tell(wire.Notice{Result: ev.Result})
		m.close(settlement{how: Ack}, nil)
	// This is the first delivery of the first job, so no worker can have parked the call.
	case m.call.Job.Dispatch == 0 && m.count == 1:
		m.open()
	default:
		m.do(ReadRecord{})
	}
}

// recordRead acts on the newest record of the call: it continues from that record, passes
// on the stored end, or leaves another worker's claim alone.
func (m *Machine) recordRead(newest Entry) {
	if m.state != Looking && m.state != LookingAgain {
		return
	}
	switch next := Decide(m.call.Job.TakeOver, newest); {
	case next == PassOn:
		m.tell(wire.Notice{Result: newest.Record.Result})
		m.close(settlement{how: Ack}, nil)
	case next == LeaveAlone && newest.Record.State == wire.Parked:
		// The worker that parked the call may not have notified this coordinator.
		m.tell(wire.Notice{Record: &newest.Record, Seq: newest.Seq})
		m.close(settlement{how: Term, reason: "it waits for a person"}, nil)
	case next == LeaveAlone:
		if lapsed(newest.Record) {
			m.claimRefused()
		}
		m.close(settlement{how: Term, reason: "claimed by " + newest.Record.Worker}, nil)
	case m.state == LookingAgain:
		m.close(settlement{how: Term, reason: "claimed by another worker"}, nil)
	default:
		if next == TakeOver {
			m.last, m.record = newest.Seq, newest.Record
		}
		m.open()
	}
}

// claimRefused counts a refused claim, once per attempt.
func (m *Machine) claimRefused() {
	if !m.refused {
		m.refused = true
		m.do(Count{ClaimRefused})
	}
}

// bounceHold is how long a job that is not served here keeps its slot. So a worker bounces
// at most 100 such jobs a second for each slot.
const bounceHold = 10 * time.Millisecond

// bounce gives up a job whose tool is not served here. Another worker of the pool may serve
// it. The coordinator publishes the job again after a pause of 25 to 40 ms. By then the server
// has taken the job out of the queue, and a worker gets it again within 50 ms. A bounce does
// not count as an attempt.
func (m *Machine) bounce() {
	after := 25*time.Millisecond + time.Duration(m.call.Jitter*16)*time.Millisecond
	m.close(m.letGo("not served here", after, m.runs-1), nil)
}

// letGo gives the job up: it leaves the queue, and the coordinator publishes it again after
// the pause. failed is the number of attempts without a claim that have failed or were lost
// with their workers.
func (m *Machine) letGo(reason string, after time.Duration, failed int) settlement {
	return settlement{how: Term, reason: reason, notice: &wire.Notice{LetGo: &wire.LetGo{AfterMS: after.Milliseconds(), Attempt: failed}}}
}
