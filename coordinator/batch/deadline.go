package batch

import (
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// live reports whether a worker holds the call: its claim has not lapsed and is not overdue.
// While a call is live, the driver sends at most a Stop.
func (m *Machine) live(now time.Time, c *call) bool {
	return c.hasClaim() && now.Before(m.lapse(c)) && !m.overdue(now, c)
}

// overdue reports whether a worker has held a claim for longer than the run and the work
// around it can take. Such a worker is broken: it renews its claim, but does not run the call.
func (m *Machine) overdue(now time.Time, c *call) bool {
	return c.hasClaim() && c.record.DeadlineMS > 0 && !now.Before(m.due(c))
}

// due returns when a claim becomes overdue. The claim's record must have a deadline.
func (m *Machine) due(c *call) time.Time {
	run := time.Duration(c.record.DeadlineMS) * time.Millisecond
	return c.claimSeen.Add(run + m.cfg.QueueTimeout + m.cfg.Grace)
}

// lapse returns when a claim counts as lapsed. The lease counts from the time when this driver
// first saw the record. So clocks need not agree: a claim may lapse too late, but not too
// early. A record without a lease gets QueueTimeout as its lease.
func (m *Machine) lapse(c *call) time.Time {
	lease := time.Duration(c.record.LeaseMS) * time.Millisecond
	if lease == 0 {
		lease = m.cfg.QueueTimeout
	}
	return c.seen.Add(lease + m.cfg.Grace)
}

// silent reports whether the newest record is a claim and nothing has happened since that
// claim lapsed: no worker has reported the call, and no new job of it was published.
func (m *Machine) silent(c *call) bool { return c.hasClaim() && c.since.Before(m.lapse(c)) }

// lapsed reports whether the claim has lapsed and the job for the next worker, which could
// take the call over, is still to be published.
func (m *Machine) lapsed(now time.Time, c *call) bool {
	return m.silent(c) && !now.Before(m.lapse(c))
}

// giveUp returns the End of a call that no worker holds, if the call must not run any more or
// its time is up. Until the End is stored, giveUp returns it again at every poll.
func (m *Machine) giveUp(now time.Time, i int) (wants []Effect, over bool) {
	c := &m.calls[i]
	result, over := m.givenUp(now, i, c)
	if !over {
		c.endAt = time.Time{} // the reason for the End is gone, perhaps because a worker has reported
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

// givenUp returns the result with which a call is given up now. over is false if the call is
// not given up. If the call may have been applied, its outcome is unknown in the result.
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

// forgotten reports whether records of the batch may already be deleted. From then on, a call
// may have run even if it has no record.
func (m *Machine) forgotten(now time.Time) bool {
	return !m.cfg.Forgets.IsZero() && now.After(m.cfg.Forgets)
}

// unwanted ends a call that must not run any more. The first reason counts, in this order: an
// abort, a reason to skip the call, the age of the batch.
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

// timedOut ends a call without a claim if its own time or the time of the batch is up.
func (m *Machine) timedOut(now time.Time, i int, c *call) (messages.Result, bool) {
	tool := m.plan.Calls[i].PlannedCall.Tool
	quiet := c.published && now.Sub(c.since) >= m.patience(i, c)
	switch c.base {
	case parked:
		if now.Before(c.expires) {
			return messages.Result{}, false
		}
		return m.endWith(i, messages.StatusExpired, messages.CodeApprovalExpired, "Not run: a person was asked whether it may run, and nobody answered in time."), true
	case running: // its worker ends the run when the time of the batch is up
		if !quiet {
			return messages.Result{}, false
		}
		return m.endWith(i, messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
			"The worker that ran %s was lost, and no other took the call.", tool)), true
	}
	switch { // the call is waiting, queued or released
	case m.cfg.Timeout > 0 && m.left(now.Add(-m.slack(c))) <= 0:
		return m.endWith(i, messages.StatusTimeout, messages.CodeTimeout, fmt.Sprintf(
			"%s: the %s that this message was given are used up.", m.notRun(i, c), m.cfg.Timeout)), true
	case (reached(now, m.unservedUntil(i, c)) || quiet && !c.unserved.IsZero()) && c.gone != "":
		return m.endWith(i, messages.StatusValidationError, messages.CodeToolVersionGone, c.gone), true
	case reached(now, m.unservedUntil(i, c)), quiet && !c.unserved.IsZero():
		return m.endWith(i, messages.StatusExpired, messages.CodeToolVersionGone, fmt.Sprintf(
			"%s: no worker of pool %s has %s in the version that this call was planned with, though others are there.", m.notRunHere(i, c), m.plan.Calls[i].Pool, tool)), true
	case !quiet:
		return messages.Result{}, false
	case c.taken && !m.Claims(i):
		return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
			"A worker had the call of %s and did not end it, and no other took it within %s. It may have run.", tool, m.cfg.QueueTimeout)), true
	case m.hasFailed(i, c):
		return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
			"%s failed without having been applied, and no worker took it again within %s.", tool, m.cfg.QueueTimeout)), true
	}
	return m.endWith(i, messages.StatusExpired, messages.CodeQueueTimeout, fmt.Sprintf(
		"No worker took the call of %s within %s. It was not run.", tool, m.cfg.QueueTimeout)), true
}

// reached reports whether a time has come. The zero time never comes.
func reached(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// notRunHere is like notRun, for a call whose pool has no worker with its tool.
func (m *Machine) notRunHere(i int, c *call) string {
	if m.hasFailed(i, c) || c.taken {
		return m.notRun(i, c)
	}
	return "Not run"
}

// notRun returns the beginning of the text for the model about a call that is given up. It
// says how far the call has come.
func (m *Machine) notRun(i int, c *call) string {
	switch p := m.plan.Calls[i]; {
	case m.hasFailed(i, c):
		return "It failed and is not run again"
	case m.Claims(i): // if it had run, it would have a claim
		return "Not run"
	case c.base == running:
		return "Stopped while it ran"
	// A worker may have taken the job and then reported nothing more.
	case c.base == queued, c.taken, p.Stage == m.tookOver:
		return "Not known to have run"
	}
	return "Not run"
}

// hasFailed reports whether the newest attempt has failed. The record of a claimed call says
// so. If the call needs a claim, the field attempts counts only the workers that were lost
// before they claimed the call.
func (m *Machine) hasFailed(i int, c *call) bool {
	return c.record.Error != nil || c.attempts > 0 && !c.taken && !m.Claims(i)
}

// lostClaim ends a call whose claim has lapsed or is overdue. If another worker may still take
// the call over in time, the call stays open.
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

// lostBy copies from the claim what the lost worker cannot report any more: its name, the
// start of the run, and the permission.
func lostBy(claim wire.CallRecord, r messages.Result) messages.Result {
	r.Worker, r.Started, r.Permission = claim.Worker, claim.Started, claim.Permission
	return r
}

// wanted reports whether the call should still run. It does not look at time limits.
func (m *Machine) wanted(i int) bool { return m.abort == nil && m.whySkipped(i) == "" }

// whySkipped returns why the call is skipped, or "" if it is not.
func (m *Machine) whySkipped(i int) string {
	p := m.plan.Calls[i]
	write := p.Claims() && (!p.ConcurrencySafe || m.handedBack(i))
	switch {
	case write && !m.cfg.KeepGoing && m.unknownBefore(i):
		return "Not run, because the outcome of an earlier write in this message is unknown. Check that one first, then ask for this one again."
	case m.steer != nil && (m.steer.Now || p.Stage > m.steerAfter) && !m.mayRun(i):
		return fmt.Sprintf("Not run: %s. Hear that first.", m.steer.said())
	}
	return ""
}

// mayRun reports whether a worker may have a job of the call, from this driver or an earlier
// one. If the call needs a claim, only this driver's job counts: a run with an earlier
// driver's job would have left a record.
func (m *Machine) mayRun(i int) bool {
	return m.calls[i].published || m.plan.Calls[i].Stage == m.tookOver && !m.Claims(i)
}

// said returns who steers the batch and why, as part of a sentence.
func (s *Steered) said() string {
	by := "somebody"
	if s.By != "" {
		by = s.By
	}
	if s.Reason != "" {
		return by + " has something to say: " + strings.TrimSuffix(s.Reason, ".")
	}
	return by + " has something to say"
}

// keepTime updates the active time of the batch. Time is not active while every call that
// could run only waits: for a person, for an earlier batch, or for room in the session's
// window.
func (m *Machine) keepTime(now time.Time) {
	if !m.activeSince.IsZero() {
		m.active += now.Sub(m.activeSince)
	}
	m.activeSince = time.Time{}
	calls, exclusive := m.runnable()
	crowded := m.crowdedOut(now)
	for _, i := range calls {
		c := &m.calls[i]
		waits := m.behind(c, exclusive) || crowded && !c.reported()
		if c.base != parked && !waits {
			m.activeSince = now
		}
	}
}

// left returns how much active time the batch has left. The batch must have a Timeout.
func (m *Machine) left(now time.Time) time.Duration {
	used := m.active
	if !m.activeSince.IsZero() {
		used += now.Sub(m.activeSince)
	}
	return m.cfg.Timeout - used
}

// slack returns how long after the end of the batch's time the driver gives the call up. If a
// job is published, a worker may run the call. The worker ends the run in time, but its report
// may take up to Grace and FirstPoll more.
func (m *Machine) slack(c *call) time.Duration {
	if c.published {
		return m.cfg.Grace + m.cfg.FirstPoll
	}
	return 0
}

// patience returns how long to wait for the next report about the call.
func (m *Machine) patience(i int, c *call) time.Duration {
	switch {
	case c.reported(): // a report is due at every poll; the broker needs time to notice a crash
		return m.cfg.QueueTimeout + 3*m.cfg.Poll
	}
	return m.cfg.QueueTimeout + m.unheard(i)
}

// unheard returns for how long a worker may run the call without a report to this driver: the
// worker may report to a coordinator that is gone.
func (m *Machine) unheard(i int) time.Duration {
	if m.late {
		return m.plan.Calls[i].Tool.Timeout()
	}
	return 0
}

// unknownBefore reports whether the outcome of an earlier call of the batch is unknown.
func (m *Machine) unknownBefore(i int) bool {
	for j := range m.calls[:i] {
		if r := m.calls[j].result; r != nil && r.Status == messages.StatusOutcomeUnknown {
			return true
		}
	}
	return false
}

// endWith returns a result that the coordinator makes because no worker has made one.
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
