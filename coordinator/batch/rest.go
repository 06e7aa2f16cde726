package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Claims reports whether a run of the call is claimed in the call's own journal, where its end stands too: of whatever
// may change the world, and from its first record on also of a call that has one for another reason. Any call can be
// parked.
func (m *Machine) Claims(i int) bool { return m.plan.Calls[i].Claims() || m.calls[i].seq > 0 }

// Question is what people are asked about the call, or were: it stands in the call's newest record. Nil when nobody was
// asked. Open tells whether it is to be answered.
func (m *Machine) Question(i int) (q *messages.Approval, open bool) {
	c := &m.calls[i]
	return c.record.Approval, c.record.Approval != nil && parked(c) && c.result == nil
}

// Span is the attempt that the newest record of the call tells of, as a traceparent; empty when it tells of none.
func (m *Machine) Span(i int) string { return m.calls[i].record.Span }

// Rest reports whether the batch only waits for people, and until when at most: every open call whose turn it is waits
// for an answer, and nothing of the batch is on its way. A machine that rests may be dropped. A new one that is told
// of the same records comes to the same point.
func (m *Machine) Rest() (until time.Time, rests bool) {
	calls, _ := m.turn()
	if !m.began || m.finished || m.storing || m.abort != nil || len(calls) == 0 {
		return time.Time{}, false
	}
	until = m.notAfter()
	for _, i := range calls {
		c := &m.calls[i]
		if !parked(c) || !c.endAt.IsZero() {
			return time.Time{}, false
		}
		if c.expires.Before(until) {
			until = c.expires
		}
	}
	return until, true
}

// forgetsTime reports whether the batch is about to rest, so that the active time that it has used is to be noted down.
func (m *Machine) forgetsTime(calls []int) bool {
	for _, i := range calls {
		if !parked(&m.calls[i]) {
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

// Answer is what became of a question that is not open any more: granted, denied, expired, or gone when the call ended
// otherwise.
func (m *Machine) Answer(i int) string {
	c := &m.calls[i]
	switch {
	case c.result == nil:
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
