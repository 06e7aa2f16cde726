package batch

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// live reports whether a worker holds a claim on the call that has not lapsed, and may still hold it.
func (m *Machine) live(now time.Time, c *call) bool {
	return claimed(c) && now.Before(m.lapse(c))
}

// lapsed reports whether the call was claimed, the claim has run out, and its tool may be run again.
// Whoever is then given the job takes the claim over; no End is wanted.
func (m *Machine) lapsed(now time.Time, c *call) bool {
	return claimed(c) && !now.Before(m.lapse(c)) && c.since.Before(m.lapse(c))
}

func claimed(c *call) bool {
	return c.record.State == messages.Claimed || c.record.State == messages.Renewed
}

// lapse is when a claim is held to have run out. It counts from when the record was first seen here, so
// the coordinator's clock and the server's never need to agree, and errs on the late side.
func (m *Machine) lapse(c *call) time.Time {
	return c.seen.Add(time.Duration(c.record.LeaseMS)*time.Millisecond + m.cfg.Grace)
}

// over reports whether the time of a call that nobody is known to run is over, and asks for its end.
func (m *Machine) over(now time.Time, i int, c *call, wants *[]Effect) bool {
	result, ended := m.verdict(now, i, c)
	if !ended {
		return false
	}
	if c.endAt.IsZero() || now.Sub(c.endAt) >= m.cfg.Poll {
		c.endAt = now
		*wants = append(*wants, End{Index: i, Result: result, Expect: c.seq})
	}
	return true
}

// verdict is how a call that no live claim protects ends from outside, if it does now.
func (m *Machine) verdict(now time.Time, i int, c *call) (messages.Result, bool) {
	tool := m.plan.Calls[i].PlannedCall.Tool
	if claimed(c) {
		waited := c.dispatched && !c.since.Before(m.lapse(c)) && now.Sub(c.since) >= m.cfg.QueueTimeout
		if c.record.OnCrash == messages.Idempotent && now.Before(m.cfg.NotAfter) && !waited {
			return messages.Result{}, false // another worker takes over
		}
		return m.endWith(i, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"The worker that ran %s was lost while it ran. The call may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.", tool)), true
	}
	if !m.plan.Calls[i].ConcurrencySafe && m.unknownBefore(i) {
		return m.endWith(i, messages.StatusSkipped, messages.CodeSkipped,
			"Not run, because the outcome of an earlier write in this message is unknown. Check that one first, then ask for this one again."), true
	}
	if now.After(m.cfg.NotAfter) {
		return m.endWith(i, messages.StatusExpired, messages.CodeExpired, "Not run: the batch outlived its time."), true
	}
	if m.cfg.Timeout > 0 && !c.ran && !now.Before(m.giveUp(c)) {
		return m.endWith(i, messages.StatusTimeout, messages.CodeTimeout, fmt.Sprintf(
			"Not known to have run: the %s that this message was given are used up.", m.cfg.Timeout)), true
	}
	if !c.dispatched || now.Sub(c.since) < m.patience(i, c) {
		return messages.Result{}, false
	}
	if c.ran {
		return m.endWith(i, messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
			"The worker that ran %s was lost, and no other took the call.", tool)), true
	}
	return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
		"No worker took the call of %s within %s. It was not run.", tool, m.cfg.QueueTimeout)), true
}

// giveUp is when the time of the batch is over for a call that no worker is known to run. One that was
// dispatched may be running all the same: its worker ends it at the batch's time, and is given a grace to
// say so.
func (m *Machine) giveUp(c *call) time.Time {
	at := m.start.Add(m.cfg.Timeout)
	if c.dispatched {
		at = at.Add(m.cfg.Grace + m.cfg.FirstPoll)
	}
	return at
}

// patience is how long a call may go without a sign of a worker.
func (m *Machine) patience(i int, c *call) time.Duration {
	switch {
	case c.ran: // its worker gives a sign at every poll; when it is gone the broker first has to notice
		return m.cfg.QueueTimeout + 3*m.cfg.Poll
	case m.late: // its worker may be giving signs to the coordinator that is gone
		return m.cfg.QueueTimeout + m.plan.Calls[i].Tool.Timeout()
	}
	return m.cfg.QueueTimeout
}

// unknownBefore reports whether an earlier write of the batch ended with its outcome unknown.
func (m *Machine) unknownBefore(i int) bool {
	for j := range m.calls[:i] {
		if r := m.calls[j].result; r != nil && r.Status == messages.StatusOutcomeUnknown {
			return true
		}
	}
	return false
}

// endWith is a result that no worker made.
func (m *Machine) endWith(i int, status messages.Status, code messages.Code, message string) messages.Result {
	c := m.plan.Calls[i]
	r := messages.Result{
		V: messages.Version, Index: i, CallID: c.ID, Tool: c.PlannedCall.Tool, Kind: c.Kind, Status: status,
		Attempt: m.calls[i].record.Attempt, Outcome: messages.Failed(code, message),
	}
	r.Err.Retryable = status != messages.StatusOutcomeUnknown && status != messages.StatusSkipped
	return r
}

func (m *Machine) pollSoon(now time.Time) {
	if at := now.Add(m.cfg.FirstPoll); m.pollAt.IsZero() || at.Before(m.pollAt) {
		m.pollAt = at
	}
}

// poll wants a look into the journal when it is time for one. Notices are hints and may be lost; the
// look is what the batch rests on.
func (m *Machine) poll(now time.Time, looked bool) []Effect {
	if looked || m.pollAt.IsZero() || now.Before(m.pollAt) {
		return nil
	}
	m.pollAt = now.Add(m.cfg.Poll)
	return []Effect{Look{}}
}

// Wake is when the machine wants to be told the time, if it waits for anything but events.
func (m *Machine) Wake() (time.Time, bool) {
	stage, open := m.stage()
	if !m.began || m.finished || !open {
		return time.Time{}, false
	}
	wake := m.pollAt
	earlier := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	for _, i := range m.plan.Stages[stage] {
		c := &m.calls[i]
		switch {
		case c.result != nil:
		case !c.endAt.IsZero():
			earlier(c.endAt.Add(m.cfg.Poll))
		case claimed(c) && c.since.Before(m.lapse(c)):
			earlier(m.lapse(c))
		default:
			earlier(m.cfg.NotAfter.Add(1))
			if c.dispatched {
				earlier(c.since.Add(m.patience(i, c)))
			}
			if m.cfg.Timeout > 0 && !c.ran {
				earlier(m.giveUp(c))
			}
		}
	}
	return wake, !wake.IsZero()
}
