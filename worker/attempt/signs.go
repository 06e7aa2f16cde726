package attempt

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// firstSign is how long a call runs before its coordinator gets the first notice that it runs.
// Most calls end sooner and need no such notice.
const firstSign = 100 * time.Millisecond

// alive tells the coordinator that the call runs here, and under which claim. The
// coordinator counts the lease from the time when it first sees that record.
func (m *Machine) alive() {
	n := wire.Notice{Running: true, Worker: m.cfg.Worker}
	if m.holds() {
		record := light(m.record)
		n.Record, n.Seq = &record, m.last
	}
	m.tell(n)
}

// tell sends a notice to the coordinator that published the job. If the notice is lost, the
// coordinator learns the same facts from the journal, which it reads at every poll.
func (m *Machine) tell(n wire.Notice) {
	if !messages.IsToken(m.notify) {
		return
	}
	n.V, n.Batch, n.Index = messages.Version, m.call.Key.BatchKey.String(), m.call.Key.Index
	m.do(Notify{m.notify, n})
}

// light returns a copy of a record without the arguments, its heavy part.
func light(record wire.CallRecord) wire.CallRecord {
	record.Input = nil
	if record.Approval != nil {
		own := *record.Approval
		own.Input, own.Original = nil, nil
		record.Approval = &own
	}
	return record
}

// heavy reports whether a record holds arguments.
func heavy(r wire.CallRecord) bool {
	return r.Input != nil || r.Approval != nil && (r.Approval.Input != nil || r.Approval.Original != nil)
}

// told publishes an event of the phases for watchers.
func (m *Machine) told(e messages.Event) {
	if !m.state.phases() {
		return
	}
	if e.Progress != nil {
		m.do(Count{Progressed})
	}
	m.emit(e)
}

// emit publishes an event and adds its ids.
func (m *Machine) emit(e messages.Event) {
	m.counter++
	e.Counter, e.Attempt = m.counter, m.attempts()
	if m.Claims() && !m.holds() {
		e.Attempt++ // the attempt that is about to be claimed
	}
	job := m.call.Job
	e.V, e.Session, e.Batch, e.Index = messages.Version, job.Session, job.Batch, job.Index
	e.CallID, e.Tool, e.Kind, e.Worker, e.Time = job.CallID, job.Tool, job.Kind, m.cfg.Worker, m.now
	m.do(Emit{e})
}
