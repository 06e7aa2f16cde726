package batch

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// live reports whether a worker holds a claim on the call that has not lapsed, and may still hold it.
func (m *Machine) live(now time.Time, c *call) bool {
	return claimed(c) && now.Before(m.lapse(c)) && !m.overdue(now, c)
}

// overdue reports whether a claim is held for longer than its run can take, with time to spare for what a worker does
// around it. A worker that only keeps renewing is broken.
func (m *Machine) overdue(now time.Time, c *call) bool {
	return claimed(c) && c.record.DeadlineMS > 0 && !now.Before(m.due(c))
}

func (m *Machine) due(c *call) time.Time {
	return c.claimSeen.Add(time.Duration(c.record.DeadlineMS)*time.Millisecond + m.cfg.QueueTimeout + m.cfg.Grace)
}

// lapsed reports whether the call was claimed, the claim has run out, and its tool may be run again.
// Whoever is then given the job takes the claim over; no End is wanted.
func (m *Machine) lapsed(now time.Time, c *call) bool {
	return claimed(c) && !now.Before(m.lapse(c)) && c.since.Before(m.lapse(c))
}

func parked(c *call) bool { return c.record.State == wire.Parked }

func claimed(c *call) bool { return claimedBy(c.record) }

// claimedBy reports whether somebody may be running the call whose newest record this is. A record of a state that is
// not known here, or that cannot be read, is held to be a claim.
func claimedBy(newest wire.CallRecord) bool {
	switch newest.State {
	case "", wire.Released, wire.Parked, wire.Granted, wire.Ended:
		return false
	}
	return true
}

// lapse is when a claim is held to have run out. It counts from when the record was first seen here, so
// the coordinator's clock and the server's never need to agree, and errs on the late side. Of a record that does not
// tell, or cannot be read, the lease is taken for a long one.
func (m *Machine) lapse(c *call) time.Time {
	lease := time.Duration(c.record.LeaseMS) * time.Millisecond
	if lease == 0 {
		lease = m.cfg.QueueTimeout
	}
	return c.seen.Add(lease + m.cfg.Grace)
}

// over reports whether the time of a call that nobody is known to run is over, and asks for its end.
func (m *Machine) over(now time.Time, i int, c *call, wants *[]Effect) bool {
	result, ended := m.verdict(now, i, c)
	if !ended {
		c.endAt = time.Time{} // it may have been, until a sign of a worker came
		return false
	}
	if c.endAt.IsZero() || now.Sub(c.endAt) >= m.cfg.Poll {
		c.endAt = now
		*wants = append(*wants, End{Index: i, Result: result, Expect: c.seq})
		if m.abort != nil && c.dispatched { // whoever may have the job in hand
			*wants = append(*wants, Stop{i, m.abort.Stop})
		}
	}
	return true
}

// verdict is how a call that no live claim protects ends from outside, if it does now. Nobody says of one that may
// have been applied that it was not.
func (m *Machine) verdict(now time.Time, i int, c *call) (messages.Result, bool) {
	result, ended := m.ending(now, i, c)
	switch {
	case ended && c.seq == 0 && m.late && m.Claims(i) && m.forgotten(now):
		result = m.endWith(i, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"The batch has waited for so long that the records of it are no longer kept. %s may or may not have been applied meanwhile. Do not repeat it blindly: check with a read, or ask a person.",
			m.plan.Calls[i].PlannedCall.Tool))
	case ended && !claimed(c) && c.record.Unsure():
		result = lostBy(c.record, m.endWith(i, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"An attempt of %s was given up while it ran, and no other was made. It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.",
			m.plan.Calls[i].PlannedCall.Tool)))
	}
	return result, ended
}

// forgotten reports whether records of the batch may have outlived their time, so that none means nothing.
func (m *Machine) forgotten(now time.Time) bool {
	return !m.cfg.Forgets.IsZero() && now.After(m.cfg.Forgets)
}

// ending is how a call ends from outside where nothing is known of a run of it.
func (m *Machine) ending(now time.Time, i int, c *call) (messages.Result, bool) {
	tool := m.plan.Calls[i].PlannedCall.Tool
	switch {
	case claimed(c):
		return m.lostClaim(now, i, c)
	case m.abort != nil:
		return m.endWith(i, messages.StatusAborted, messages.CodeAborted, fmt.Sprintf("%s: %s.", m.notRun(i, c), m.abort.Why())), true
	case !m.wanted(i):
		return m.endWith(i, messages.StatusSkipped, messages.CodeSkipped, m.whySkipped(i)), true
	case now.After(m.notAfter()):
		return m.endWith(i, messages.StatusExpired, messages.CodeExpired, m.notRun(i, c)+": the batch outlived its time."), true
	case parked(c):
		if now.Before(c.expires) {
			return messages.Result{}, false
		}
		return m.endWith(i, messages.StatusExpired, messages.CodeApprovalExpired, "Not run: a person was asked whether it may run, and nobody answered in time."), true
	case m.cfg.Timeout > 0 && !c.ran && m.left(now.Add(-m.slack(c))) <= 0:
		return m.endWith(i, messages.StatusTimeout, messages.CodeTimeout, fmt.Sprintf(
			"%s: the %s that this message was given are used up.", m.notRun(i, c), m.cfg.Timeout)), true
	case !c.dispatched || now.Sub(c.since) < m.patience(i, c):
		return messages.Result{}, false
	case c.ran:
		return m.endWith(i, messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
			"The worker that ran %s was lost, and no other took the call.", tool)), true
	case m.hasFailed(i, c):
		return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
			"%s failed without having been applied, and no worker took it again within %s.", tool, m.cfg.QueueTimeout)), true
	}
	return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
		"No worker took the call of %s within %s. It was not run.", tool, m.cfg.QueueTimeout)), true
}

// notRun says how far it came with a call that is ended from outside, as the start of a sentence.
func (m *Machine) notRun(i int, c *call) string {
	p := m.plan.Calls[i]
	switch {
	case m.hasFailed(i, c):
		return "It failed and is not run again"
	case m.Claims(i): // it would have been claimed
		return "Not run"
	case c.ran:
		return "Stopped while it ran"
	case c.dispatched && !c.gone || p.Stage == m.from:
		return "Not known to have run"
	}
	return "Not run"
}

// hasFailed reports whether an attempt has failed. Of a call that claims its journal says so; what is counted beside
// that are workers that were lost before they claimed it.
func (m *Machine) hasFailed(i int, c *call) bool {
	return c.record.Error != nil || c.attempts > 0 && !m.Claims(i)
}

// lostClaim is how a call ends whose claim has lapsed, unless another worker may take it over and is still
// waited for.
func (m *Machine) lostClaim(now time.Time, i int, c *call) (messages.Result, bool) {
	waited := c.dispatched && !c.since.Before(m.lapse(c)) && now.Sub(c.since) >= m.cfg.QueueTimeout
	poison := m.cfg.Poison > 0 && c.record.Lapsed+1 >= m.cfg.Poison
	again := c.record.OnCrash == messages.OnCrashIdempotent || c.record.OnCrash == messages.OnCrashCheckable
	if again && !waited && !poison && !m.overdue(now, c) && m.abort == nil && now.Before(m.notAfter()) {
		return messages.Result{}, false
	}
	lost := "The worker that ran %s was lost while it ran."
	if poison {
		lost = fmt.Sprintf("%d workers in a row were lost while they ran %%s.", c.record.Lapsed+1)
	}
	return lostBy(c.record, m.endWith(i, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
		lost+" The call may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.",
		m.plan.Calls[i].PlannedCall.Tool))), true
}

// lostBy says of a result who had the call, since when and by whose leave: nobody else is left to.
func lostBy(claim wire.CallRecord, r messages.Result) messages.Result {
	r.Worker, r.Started, r.Permission = claim.Worker, claim.Started, claim.Permission
	return r
}

// wanted reports whether the call should still be run, as far as others of the batch and those who speak to it
// are concerned.
func (m *Machine) wanted(i int) bool { return m.abort == nil && m.whySkipped(i) == "" }

// whySkipped is why the call is not run; empty when it is.
func (m *Machine) whySkipped(i int) string {
	p, c := m.plan.Calls[i], &m.calls[i]
	write := p.Claims() && (!p.ConcurrencySafe || c.handedBack)
	switch {
	case write && !m.cfg.KeepGoing && m.unknownBefore(i):
		return "Not run, because the outcome of an earlier write in this message is unknown. Check that one first, then ask for this one again."
	case m.skip != nil && !c.dispatched && (p.Stage != m.from || m.Claims(i)) && (m.skip.Now || p.Stage > m.after):
		return fmt.Sprintf("Not run: %s. Hear that first.", m.skip.said())
	}
	return ""
}

// said is who wants to be heard, and what for.
func (s *Steered) said() string {
	by := "somebody"
	if s.By != "" {
		by = s.By
	}
	if s.Reason != "" {
		return by + " has something to say: " + s.Reason
	}
	return by + " has something to say"
}

// keepTime lets the clock of the batch's active time run, except while every call that could run waits for a
// person.
func (m *Machine) keepTime(now time.Time) {
	if !m.activeSince.IsZero() {
		m.active += now.Sub(m.activeSince)
	}
	m.activeSince = time.Time{}
	calls, _ := m.turn()
	for _, i := range calls {
		if !parked(&m.calls[i]) {
			m.activeSince = now
		}
	}
}

// left is what is left of the batch's active time, where it has a bound.
func (m *Machine) left(now time.Time) time.Duration {
	used := m.active
	if !m.activeSince.IsZero() {
		used += now.Sub(m.activeSince)
	}
	return m.cfg.Timeout - used
}

// slack is what a call that no worker is known to run is given beyond the time of the batch. One that was
// dispatched may be running all the same: its worker ends it at the batch's time, and is given a grace to say so.
func (m *Machine) slack(c *call) time.Duration {
	if c.dispatched {
		return m.cfg.Grace + m.cfg.FirstPoll
	}
	return 0
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
		Attempt: max(m.calls[i].record.Attempt, m.calls[i].attempts), Outcome: messages.Failed(code, message),
	}
	switch status {
	case messages.StatusOutcomeUnknown, messages.StatusSkipped, messages.StatusAborted:
	default:
		r.Err.Retryable = true
	}
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
	calls, _ := m.turn()
	if !m.began || m.finished || len(calls) == 0 {
		return time.Time{}, false
	}
	wake := m.pollAt
	earlier := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	for _, i := range calls {
		c := &m.calls[i]
		switch {
		case !c.endAt.IsZero():
			earlier(c.endAt.Add(m.cfg.Poll))
		case claimed(c) && c.since.Before(m.lapse(c)) && !c.held:
			earlier(m.lapse(c))
			if c.record.DeadlineMS > 0 {
				earlier(m.due(c))
			}
		default:
			earlier(m.notAfter().Add(1))
			earlier(m.waitsFor(i, c))
			if m.cfg.Timeout > 0 && !c.ran && !claimed(c) && !parked(c) && !m.activeSince.IsZero() {
				earlier(m.activeSince.Add(m.cfg.Timeout - m.active + m.slack(c)))
			}
		}
	}
	return wake, !wake.IsZero()
}

// waitsFor is when something is to be done about a call that nobody is known to run: it is dispatched again, or
// given up. Zero: nothing is waited for.
func (m *Machine) waitsFor(i int, c *call) time.Time {
	switch {
	case parked(c):
		return c.expires
	case c.held: // until another call ends
	case c.gone:
		return c.notBefore
	case c.dispatched:
		return c.since.Add(m.patience(i, c))
	}
	return time.Time{}
}
