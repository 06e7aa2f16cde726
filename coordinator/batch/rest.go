package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Claims reports whether the result of the call stands in the call's own journal, so that a run
// of it has to be claimed there: true of every write, and of any other call from its first record
// on. Any call can get one, since any can be parked.
func (m *Machine) Claims(i int) bool { return m.plan.Calls[i].Claims() || m.calls[i].seq > 0 }

// Question returns the question in the call's newest record; nil when people were not asked. Open:
// it waits for an answer.
func (m *Machine) Question(i int) (q *messages.Approval, open bool) {
	c := &m.calls[i]
	return c.record.Approval, c.record.Approval != nil && c.base == parked && c.state() != ended
}

// Span is the traceparent of the attempt in the call's newest record; empty when it has none.
func (m *Machine) Span(i int) string { return m.calls[i].record.Span }

// Rest reports whether the batch only waits for people, and until when at most: every call that
// could run is parked, and no End or plan record is on its way. A driver may then drop the
// machine: a new one that gets the same records comes to the same point.
func (m *Machine) Rest() (until time.Time, rests bool) {
	calls, _ := m.runnable()
	if !m.began || m.finished || m.storing || m.abort != nil || len(calls) == 0 {
		return time.Time{}, false
	}
	until = m.notAfter()
	for _, i := range calls {
		c := &m.calls[i]
		if c.state() != parked {
			return time.Time{}, false
		}
		if c.expires.Before(until) {
			until = c.expires
		}
	}
	return until, true
}

// storesTime reports whether the batch is about to rest, so that the active time it has used must
// be stored first.
func (m *Machine) storesTime(calls []int) bool {
	for _, i := range calls {
		if m.calls[i].base != parked {
			return false
		}
	}
	return m.cfg.Timeout > 0
}

// Waits is how much longer the batch may live for the time that people were given to answer.
func (m *Machine) Waits() time.Duration {
	var sum time.Duration
	for i := range m.calls {
		sum += m.calls[i].waits
	}
	return min(sum, m.cfg.Waits)
}

// notAfter is the end of the batch's life.
func (m *Machine) notAfter() time.Time { return m.cfg.NotAfter.Add(m.Waits()) }

// Answer is how a question ended that is no longer open: granted, denied or expired; gone when the
// call ended for another reason.
func (m *Machine) Answer(i int) string {
	c := &m.calls[i]
	switch {
	case c.state() != ended:
		return "granted"
	case c.result.Err != nil && c.result.Err.Code == messages.CodeDeniedByUser:
		return "denied"
	case c.result.Err != nil && c.result.Err.Code == messages.CodeApprovalExpired:
		return "expired"
	case c.result.Attempt > 0: // it has run
		return "granted"
	}
	return "gone"
}
