package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Claims reports whether a worker must claim the call before it runs, with a record in the
// call's journal. Every write must be claimed. Other calls must be claimed once they have a
// record, for example after a question to a person.
func (m *Machine) Claims(i int) bool { return m.plan.Calls[i].Claims() || m.calls[i].seq > 0 }

// Question returns the question in the call's newest record, or nil. open means that the
// question still waits for an answer.
func (m *Machine) Question(i int) (q *messages.Approval, open bool) {
	c := &m.calls[i]
	return c.record.Approval, c.record.Approval != nil && c.base == parked && c.state() != ended
}

// ToolDigest returns the version of the tool in the newest record: the version that a worker
// has claimed or that a person was asked about. It returns "" if there is none.
func (m *Machine) ToolDigest(i int) string {
	record := &m.calls[i].record
	if record.Approval != nil {
		return record.Approval.ToolDigest
	}
	return record.ToolDigest
}

// Span returns the traceparent of the attempt in the call's newest record, or "".
func (m *Machine) Span(i int) string { return m.calls[i].record.Span }

// Rest reports whether the batch only waits, for people or for an earlier batch. until is the
// latest time to go on. The batch only waits under two conditions. Each call that could run is
// parked (people are asked) or may not start yet. No End and no plan record is under way. Then
// the driver may drop the machine: a new machine with the same records reaches the same state.
func (m *Machine) Rest() (until time.Time, rests bool) {
	calls, exclusive := m.runnable()
	if !m.began || m.finished || m.storing || m.abort != nil || len(calls) == 0 {
		return time.Time{}, false
	}
	until = m.notAfter()
	for _, i := range calls {
		c := &m.calls[i]
		switch {
		case c.state() == parked:
			if c.expires.Before(until) {
				until = c.expires
			}
		case c.state() == ending || !m.behind(c, exclusive):
			return time.Time{}, false
		}
	}
	return until, true
}

// Waits returns the time that is added to NotAfter because people get time to answer the
// questions of the batch. It is at most cfg.Waits.
func (m *Machine) Waits() time.Duration {
	var sum time.Duration
	for i := range m.calls {
		sum += m.calls[i].waits
	}
	return min(sum, m.cfg.Waits)
}

// notAfter returns the time after which no call starts. It includes the time that people get
// to answer questions (see Waits).
func (m *Machine) notAfter() time.Time { return m.cfg.NotAfter.Add(m.Waits()) }

// Answer returns how a question was closed: granted, denied or expired. It returns gone if
// the call ended for another reason.
func (m *Machine) Answer(i int) string {
	c := &m.calls[i]
	switch {
	case c.state() != ended:
		return messages.PendingGranted
	case c.result.Err != nil && c.result.Err.Code == messages.CodeDeniedByUser:
		return messages.PendingDenied
	case c.result.Err != nil && c.result.Err.Code == messages.CodeApprovalExpired:
		return messages.PendingExpired
	case c.result.Attempt > 0: // the call has run
		return messages.PendingGranted
	}
	return messages.PendingGone
}
