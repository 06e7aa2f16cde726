package batch

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// live reports whether a worker holds the call by a claim that has neither lapsed nor outlasted its
// run. Nothing but a Stop is then done about the call.
func (m *Machine) live(now time.Time, c *call) bool {
	return c.hasClaim() && now.Before(m.lapse(c)) && !m.overdue(now, c)
}

// overdue reports whether a claim is held for longer than its run can take, with time to spare for
// what a worker does around the run. A worker that only keeps renewing is broken.
func (m *Machine) overdue(now time.Time, c *call) bool {
	return c.hasClaim() && c.record.DeadlineMS > 0 && !now.Before(m.due(c))
}

// due is when a claim whose record has a deadline becomes overdue.
func (m *Machine) due(c *call) time.Time {
	run := time.Duration(c.record.DeadlineMS) * time.Millisecond
	return c.claimSeen.Add(run + m.cfg.QueueTimeout + m.cfg.Grace)
}

// lapse is when a claim counts as lapsed. It counts from when this driver first saw the record, so
// clocks need not agree, and errs on the late side. A record without a lease gets a long one.
func (m *Machine) lapse(c *call) time.Time {
	lease := time.Duration(c.record.LeaseMS) * time.Millisecond
	if lease == 0 {
		lease = m.cfg.QueueTimeout
	}
	return c.seen.Add(lease + m.cfg.Grace)
}

// silent reports whether the newest record is a claim and no sign of life lies past its lapse: no
// report, and no job that was published for a takeover.
func (m *Machine) silent(c *call) bool { return c.hasClaim() && c.since.Before(m.lapse(c)) }

// lapsed reports whether the claim on the call has lapsed and its job is to be published for a
// takeover.
func (m *Machine) lapsed(now time.Time, c *call) bool {
	return m.silent(c) && !now.Before(m.lapse(c))
}

// giveUp ends a call that no worker holds, if it is no longer wanted or its time is up. The End is
// asked for again at every poll until the call has ended.
func (m *Machine) giveUp(now time.Time, i int) (wants []Effect, over bool) {
	c := &m.calls[i]
	result, over := m.givenUp(now, i, c)
	if !over {
		c.endAt = time.Time{} // a worker reported after the End was asked for
		return nil, false
	}
	if c.state() != ending || now.Sub(c.endAt) >= m.cfg.Poll {
		c.endAt = now
		wants = append(wants, End{Index: i, Result: result, Expect: c.seq})
		if m.abort != nil && c.published { // a worker may have the job
			wants = append(wants, Stop{i, m.abort.Stop})
		}
	}
	return wants, true
}

// givenUp returns the result of a call that is given up now. A call that may have been applied is
// never reported as not applied.
func (m *Machine) givenUp(now time.Time, i int, c *call) (messages.Result, bool) {
	var result messages.Result
	var over bool
	if c.hasClaim() {
		result, over = m.lostClaim(now, i, c)
	} else if result, over = m.unwanted(now, i, c); !over {
		result, over = m.timedOut(now, i, c)
	}
	switch {
	case over && c.seq == 0 && m.late && m.Claims(i) && m.forgotten(now):
		result = m.endWith(i, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"The batch has waited for so long that the records of it are no longer kept. %s may or may not have been applied meanwhile. Do not repeat it blindly: check with a read, or ask a person.",
			m.plan.Calls[i].PlannedCall.Tool))
	case over && !c.hasClaim() && c.record.Unsure():
		result = lostBy(c.record, m.endWith(i, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"An attempt of %s was given up while it ran, and no other was made. It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.",
			m.plan.Calls[i].PlannedCall.Tool)))
	}
	return result, over
}

// forgotten reports whether records of the batch may have been deleted, so that a missing one
// proves nothing.
func (m *Machine) forgotten(now time.Time) bool {
	return !m.cfg.Forgets.IsZero() && now.After(m.cfg.Forgets)
}

// unwanted ends a call that is not to run any more, in whatever state it is. An abort counts before
// the reasons to skip the call, and those before the age of the batch.
func (m *Machine) unwanted(now time.Time, i int, c *call) (messages.Result, bool) {
	switch {
	case m.abort != nil:
		return m.endWith(i, messages.StatusAborted, messages.CodeAborted, fmt.Sprintf("%s: %s.", m.notRun(i, c), m.abort.Why())), true
	case !m.wanted(i):
		return m.endWith(i, messages.StatusSkipped, messages.CodeSkipped, m.whySkipped(i)), true
	case now.After(m.notAfter()):
		return m.endWith(i, messages.StatusExpired, messages.CodeExpired, m.notRun(i, c)+": the batch outlived its time."), true
	}
	return messages.Result{}, false
}

// timedOut ends a call whose own time, or its batch's, is up. Its newest record is no claim.
func (m *Machine) timedOut(now time.Time, i int, c *call) (messages.Result, bool) {
	tool := m.plan.Calls[i].PlannedCall.Tool
	quiet := c.published && now.Sub(c.since) >= m.patience(i, c)
	switch c.base {
	case parked:
		if now.Before(c.expires) {
			return messages.Result{}, false
		}
		return m.endWith(i, messages.StatusExpired, messages.CodeApprovalExpired, "Not run: a person was asked whether it may run, and nobody answered in time."), true
	case running: // its worker ends it at the time of the batch
		if !quiet {
			return messages.Result{}, false
		}
		return m.endWith(i, messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
			"The worker that ran %s was lost, and no other took the call.", tool)), true
	}
	switch { // waiting, queued or released
	case m.cfg.Timeout > 0 && m.left(now.Add(-m.slack(c))) <= 0:
		return m.endWith(i, messages.StatusTimeout, messages.CodeTimeout, fmt.Sprintf(
			"%s: the %s that this message was given are used up.", m.notRun(i, c), m.cfg.Timeout)), true
	case !quiet:
		return messages.Result{}, false
	case m.hasFailed(i, c):
		return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
			"%s failed without having been applied, and no worker took it again within %s.", tool, m.cfg.QueueTimeout)), true
	}
	return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
		"No worker took the call of %s within %s. It was not run.", tool, m.cfg.QueueTimeout)), true
}

// notRun is the start of a sentence that says how far a call came that is given up.
func (m *Machine) notRun(i int, c *call) string {
	switch p := m.plan.Calls[i]; {
	case m.hasFailed(i, c):
		return "It failed and is not run again"
	case m.Claims(i): // a run would have left a claim
		return "Not run"
	case c.base == running:
		return "Stopped while it ran"
	case c.base == queued, p.Stage == m.tookOver: // a worker may have taken the job without a word
		return "Not known to have run"
	}
	return "Not run"
}

// hasFailed reports whether an attempt has failed. The journal says so of a call that claims; its
// attempts count only workers that were lost before they claimed it.
func (m *Machine) hasFailed(i int, c *call) bool {
	return c.record.Error != nil || c.attempts > 0 && !m.Claims(i)
}

// lostClaim ends a call whose claim is no longer live, unless another worker may take it over and
// there is still time for that.
func (m *Machine) lostClaim(now time.Time, i int, c *call) (messages.Result, bool) {
	waited := c.published && !m.silent(c) && now.Sub(c.since) >= m.cfg.QueueTimeout
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

// lostBy copies the worker, the start and the permission from the claim to the result: the lost
// worker cannot report them.
func lostBy(claim wire.CallRecord, r messages.Result) messages.Result {
	r.Worker, r.Started, r.Permission = claim.Worker, claim.Started, claim.Permission
	return r
}

// wanted reports whether the call should still run. Time limits do not count here.
func (m *Machine) wanted(i int) bool { return m.abort == nil && m.whySkipped(i) == "" }

// whySkipped is why the call is not run; empty when it is.
func (m *Machine) whySkipped(i int) string {
	p, c := m.plan.Calls[i], &m.calls[i]
	write := p.Claims() && (!p.ConcurrencySafe || c.handedBack)
	switch {
	case write && !m.cfg.KeepGoing && m.unknownBefore(i):
		return "Not run, because the outcome of an earlier write in this message is unknown. Check that one first, then ask for this one again."
	case m.steer != nil && (m.steer.Now || p.Stage > m.steerAfter) && !m.mayRun(i):
		return fmt.Sprintf("Not run: %s. Hear that first.", m.steer.said())
	}
	return ""
}

// mayRun reports whether a worker may run the call by a job of this driver, or by one of the driver
// that it took the batch over from. A run of the latter shows in the journal if the call claims.
func (m *Machine) mayRun(i int) bool {
	return m.calls[i].published || m.plan.Calls[i].Stage == m.tookOver && !m.Claims(i)
}

// said is the part of a sentence that names who steers the batch, and why.
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

// keepTime counts the active time of the batch. The clock stands still while every call that could
// run is parked.
func (m *Machine) keepTime(now time.Time) {
	if !m.activeSince.IsZero() {
		m.active += now.Sub(m.activeSince)
	}
	m.activeSince = time.Time{}
	calls, _ := m.runnable()
	for _, i := range calls {
		if m.calls[i].base != parked {
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

// slack is how long after the batch's time a call without a report is ended. A published call may
// run all the same: its worker ends it at the batch's time, and gets a grace to report that.
func (m *Machine) slack(c *call) time.Duration {
	if c.published {
		return m.cfg.Grace + m.cfg.FirstPoll
	}
	return 0
}

// patience is how long a call may go without a sign of a worker.
func (m *Machine) patience(i int, c *call) time.Duration {
	switch {
	case c.reported(): // a sign is due at every poll; after a crash the broker first has to notice
		return m.cfg.QueueTimeout + 3*m.cfg.Poll
	case m.late: // its worker may report to the coordinator that is gone
		return m.cfg.QueueTimeout + m.plan.Calls[i].Tool.Timeout()
	}
	return m.cfg.QueueTimeout
}

// unknownBefore reports whether an earlier call of the batch ended with its outcome unknown.
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
