package attempt

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// answerHeadroom is how many bytes of a message a question leaves free for the answers,
// which are stored in the same record.
const answerHeadroom = 8 << 10

// ended decides what follows the end of the phases.
func (m *Machine) ended(result messages.Result, err error) {
	if m.state != Running && m.state != Holding && m.state != Stopping {
		return
	}
	switch {
	case err != nil:
		result, err = m.endOf(err)
	// This attempt did not run the tool, but the lost attempt before it may have changed
	// the world.
	case m.unsure() && !m.holds():
		result = m.lost()
	}
	var back *call.HandBack
	var ask *call.Ask
	switch {
	case err == nil:
		result.QueueMS = m.queueMS()
		result.Worker = m.cfg.Worker
		m.finishOrRepeat(result)
	case errors.Is(err, ErrNotMine):
		m.look(LookingAgain)
	case errors.As(err, &back):
		m.handBack(back)
	case errors.As(err, &ask):
		m.park(ask)
	// The worker shuts down, and the tool has not run or may run again.
	case !m.drained.IsZero():
		m.release(nil, 0)
	default:
		m.close(settlement{}, err)
	}
}

// endOf turns an error into a result if every worker would get the same error. It returns any
// other error unchanged. Another worker then continues the call.
func (m *Machine) endOf(err error) (messages.Result, error) {
	var ask *call.Ask
	tooLarge := errors.Is(err, ErrTooLarge)
	switch {
	case errors.Is(err, ErrOtherInput), tooLarge && m.unsure():
		return m.lost(), nil
	// The lost attempt may have changed the world, so it is too late to ask a person.
	case errors.As(err, &ask) && m.unsure():
		return m.lost(), nil
	case tooLarge:
		return m.failure(messages.StatusError, messages.CodeTooLarge,
			"The arguments, and what hooks said about them, are too large to be recorded. "+m.call.Job.Tool+" was not run."), nil
	}
	return messages.Result{}, err
}

// queueMS returns how long the job was queued, in milliseconds. The start is by the clock
// of the coordinator that published the job, the end by this worker's.
func (m *Machine) queueMS() float64 {
	return float64(max(m.began.Sub(m.call.Job.QueuedAt), 0).Microseconds()) / 1000
}

// attempts returns how many times the call was claimed. If the call runs without a claim, it
// returns how many times the call was run.
func (m *Machine) attempts() int {
	if !m.Claims() {
		return m.runs
	}
	return m.record.Attempt
}

// failure returns a result that the machine makes because the tool has not made a result.
func (m *Machine) failure(status messages.Status, code messages.Code, message string) messages.Result {
	job := m.call.Job
	return messages.Result{
		V: messages.Version, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind, Status: status,
		Attempt: m.attempts(), Outcome: messages.Failed(code, message), Worker: m.cfg.Worker,
	}
}

// lost returns the result of a call that must not run again and whose earlier attempt was
// lost while it ran.
func (m *Machine) lost() messages.Result {
	return m.failure(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, "An attempt of "+m.call.Job.Tool+" was lost or given up while it ran, and it could not be run again. "+
		"It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.")
}

// poisoned returns the result of a call over which many workers were lost. The call
// probably kills its workers.
func (m *Machine) poisoned(lost int) messages.Result {
	if m.unsure() {
		return m.failure(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"%d workers in a row were lost over %s, the first of them while it ran. It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.", lost, m.call.Job.Tool))
	}
	return m.failure(messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
		"%d workers in a row were lost over this call of %s, so it is not tried again. It may be what breaks them.", lost, m.call.Job.Tool))
}

// finishOrRepeat stores the result, or gives the call up so that another attempt can
// follow.
func (m *Machine) finishOrRepeat(result messages.Result) {
	wait, repeat := m.repeat(result)
	switch {
	case !repeat:
		m.finish(result)
	case m.holds():
		m.release(&result, wait)
	default:
		m.logFailure("attempt failed; there will be another", result)
		m.retryLater(wait)
	}
}

// repeat reports whether another attempt should follow a failed one, and after which pause.
// The pipeline marks an error as retryable only if another run does no harm.
func (m *Machine) repeat(r messages.Result) (wait time.Duration, repeat bool) {
	switch r.Status {
	case messages.StatusError, messages.StatusTimeout, messages.StatusOutcomeUnknown:
	default:
		return 0, false
	}
	if r.Err == nil || !r.Err.Retryable || r.Attempt >= m.call.Attempts {
		return 0, false
	}
	wait = m.call.Backoff(r.Attempt)
	wait = wait/2 + time.Duration(m.call.Jitter*float64(wait/2+1))
	job, took := m.call.Job, m.now.Sub(m.began)
	inTime := m.serverTime().Add(wait).Before(job.NotAfter) &&
		(job.DeadlineMS == 0 || took+wait < time.Duration(job.DeadlineMS)*time.Millisecond)
	return wait, inTime
}

// serverTime returns the time by the server's clock.
func (m *Machine) serverTime() time.Time { return m.server.Add(m.now.Sub(m.began)) }

// retryLater gives up a failed attempt of a call that runs without a claim. It leaves the job
// in the queue and sends a notice. The coordinator then replaces the job by a job with the
// number of failed attempts. If the worker removed the job sooner, the coordinator could
// publish a job with a wrong number. If the notice is lost, the broker delivers the job again,
// and that delivery counts as the next attempt.
func (m *Machine) retryLater(after time.Duration) {
	m.end.Became = Released
	notice := &wire.Notice{LetGo: &wire.LetGo{AfterMS: after.Milliseconds(), Attempt: m.runs}}
	m.close(settlement{how: Nak, after: after + m.cfg.AckWait/3, notice: notice}, nil)
}

// release lets another attempt follow after wait. The call was not applied, or may run
// again. A claimed call gets a record in its journal; for any other call the coordinator
// gets a notice. failed is the result of this attempt, or nil if the worker shuts down.
func (m *Machine) release(failed *messages.Result, wait time.Duration) {
	m.end.Became = Released
	if !m.holds() {
		m.close(m.letGo("given up for another attempt", wait, 0), nil)
		return
	}
	record := m.record
	record.State, record.Nonce, record.RetryAfterMS, record.Error = wire.Released, m.call.Nonce+"-released", wait.Milliseconds(), nil
	if failed != nil {
		record.Error = failed.Err
	}
	m.become(Releasing)
	m.result, m.writing, m.pause = failed, record, 0
	m.do(Write{Record: record, Behind: m.last})
}

// releaseEnded closes an attempt whose claim is over. The claim is over when its release is
// stored, or when another writer's record was stored before the release.
func (m *Machine) releaseEnded(s settlement) {
	if m.result != nil {
		m.logFailure("attempt failed; there will be another", *m.result)
	}
	m.close(s, nil)
}

func (m *Machine) releaseFailed(ev Failed) {
	err := fmt.Errorf("release: %w", ev.Err)
	switch {
	case ev.Why != TooLarge:
		m.retry(err, 100*time.Millisecond, 2*time.Second, "release not stored; trying again")
	// The record has no room for the error beside the arguments.
	case m.result != nil:
		m.log(Warn, "not tried again: the record of it would be too large", "err", err)
		m.finish(*m.result)
	default:
		m.close(settlement{}, err)
	}
}

// finish stores the result and notifies the coordinator. The result that is stored first
// counts, even if it is another worker's. The machine tries until a result is stored. After
// the drain it tries for LastWords only.
func (m *Machine) finish(result messages.Result) {
	if result.Err != nil {
		own := *result.Err
		if result.Attempt > 1 && m.call.Attempts > 1 {
			own.Message += fmt.Sprintf(" (It was attempted %d times.)", result.Attempt)
		}
		// A repeat by the model is a new call with another idempotency key, so its effect
		// could happen twice. If the outcome is unknown, the model must not be told to retry.
		own.Retryable = own.Retryable && result.Status != messages.StatusOutcomeUnknown
		result.Err = &own
	}
	if result.Trail == nil && result.Failure() { // the result is not from the pipeline
		m.end.Failure = messages.ErrorType(result.Status, result.Err)
	}
	m.result, m.pause = &result, 0
	m.store()
}

// store writes the result. A large outcome first goes to the object store.
func (m *Machine) store() {
	if m.result.Ref == nil {
		m.sign()
		if !m.result.Outcome.Fits(m.cfg.MaxInline) {
			m.become(Offloading)
			m.writing = wire.CallRecord{}
			m.do(Offload{*m.result})
			return
		}
	}
	m.writeEnd()
}

// sign writes the hash of the outcome and the span of the attempt into the result. Call it
// again after every change of the outcome.
func (m *Machine) sign() {
	var trail messages.Trail
	if m.result.Trail != nil {
		trail = *m.result.Trail
	}
	trail.ResultHash, trail.Span = m.result.Outcome.Hash(), m.span
	m.result.Trail = &trail
}

// writeEnd writes the result. If the call needs a claim, the result is the last record of its
// journal. Otherwise the result goes into the stream RESULTS, where the first result of a call
// counts.
func (m *Machine) writeEnd() {
	m.become(Storing)
	if !m.Claims() {
		m.writing = wire.CallRecord{}
		m.do(WriteResult{*m.result})
		return
	}
	own, record := *m.result, m.record
	record.State, record.Result, record.Worker, record.Span = wire.Ended, &own, m.cfg.Worker, m.span
	record.ToolDigest = m.call.Job.ToolDigest
	record.Nonce = m.call.Nonce + "-end"
	m.writing = record
	m.do(Write{Record: record, Behind: m.last})
}

func (m *Machine) storeFailed(ev Failed) {
	const text = "result not stored; trying again"
	switch {
	case ev.Why != TooLarge:
		m.retry(ev.Err, 100*time.Millisecond, 2*time.Second, text)
	// The record is too large. It is written without the copy of the arguments, which matters
	// less than the result.
	case heavy(m.writing):
		m.writing = light(m.writing)
		m.do(Write{Record: m.writing, Behind: m.last})
	default:
		m.drop("The result is too large to be kept.")
		m.retry(ev.Err, 100*time.Millisecond, 2*time.Second, text)
	}
}

func (m *Machine) offloadFailed(ev Failed) {
	if ev.Why != Full {
		m.storeFailed(ev)
		return
	}
	// A full store may stay full for days, and the session cannot wait that long.
	m.log(Error, "a large result is given up: the object store is full", "err", ev.Err)
	m.drop("The result is too large for a message, and the store of large results is full.")
	m.sign()
	m.writeEnd()
}

// drop replaces the outcome of the call by an error that says why it was not kept.
func (m *Machine) drop(why string) {
	r := m.result
	r.Outcome, r.Ref = messages.Failed(messages.CodeTooLarge, why), nil
	if r.Status == messages.StatusOK {
		r.Err.Message += " The call itself was done."
	}
}

// resultStored sends the stored result to the coordinator.
func (m *Machine) resultStored(r messages.Result) {
	m.tell(wire.Notice{Result: &r})
	m.end.Became = string(r.Status)
	m.logFailure("call failed", r)
	m.do(Report{r})
	m.close(settlement{how: Ack}, nil)
}

// logFailure logs a failed call or attempt. It does not quote the tool's output.
func (m *Machine) logFailure(what string, r messages.Result) {
	level := Info
	switch {
	case r.Status == messages.StatusOK:
		return
	case r.Status == messages.StatusOutcomeUnknown:
		level = Warn
	case r.Status == messages.StatusHookError, r.Err != nil && r.Err.Code == messages.CodeInternal:
		level = Debug // where the failure was noticed, an error with more detail was logged
	}
	m.log(level, what, "status", r.Status, "code", messages.ErrorType(r.Status, r.Err), "attempt", r.Attempt, "duration_ms", math.Round(r.DurationMS))
}

// park writes a question to people into the call's journal and gives up the job. While people
// think, the call holds neither a slot nor a lease. If several workers ask at once, only one
// question is stored.
//
// A run that was stopped is parked too, because it has no result. If the coordinator has
// already stored a record about the stop, that record is newer, and the question is not
// stored.
//
// If a question is asked again, the new question has a later time than the old one. If the
// clock stood still or was set back, the new time is one nanosecond after the old one. The id
// of a question depends on its time, so decisions about the old question do not count for the
// new one.
func (m *Machine) park(ask *call.Ask) {
	q := ask.Approval
	q.Asked = m.serverTime().UTC()
	if before := m.record.Approval; before != nil && !q.Asked.After(before.Asked) {
		q.Asked = before.Asked.Add(1)
	}
	q.Expires = q.Asked.Add(m.cfg.ApprovalTTL)
	q.ID = approval.ID(q)
	record := wire.CallRecord{
		V: messages.Version, State: wire.Parked, Nonce: m.call.Nonce + "-parked", Attempt: m.record.Attempt, Lapsed: m.record.Lapsed, Worker: m.cfg.Worker,
		ArgsHash: ask.ArgsHash, ToolDigest: m.call.Job.ToolDigest, Hooks: ask.Hooks, Approval: &q, Span: m.span,
	}
	m.become(Parking)
	m.writing, m.pause = record, 0
	if len(rawjson.MustMarshal(record)) > m.cfg.MaxPayload-recordHeadroom-answerHeadroom {
		m.tooLargeToAsk()
		return
	}
	m.do(Write{Record: record, Behind: m.last})
}

// tooLargeToAsk ends a call whose question fits into no message, on this worker or any
// other.
func (m *Machine) tooLargeToAsk() {
	m.finish(m.failure(messages.StatusError, messages.CodeTooLarge,
		"A person has to allow this call, and its arguments are too large to be put to one. "+m.call.Job.Tool+" was not run. Do it in several smaller calls."))
}

func (m *Machine) parked(seq uint64) {
	record := m.writing
	q := record.Approval
	m.end.Became, m.end.Approval = Parked, q.ID
	m.log(Info, "parked: a person has to allow it", "rule", q.Rule, "tier", q.Tier, "approval", q.ID, "expires", q.Expires)
	m.close(settlement{how: Ack, notice: &wire.Notice{Record: &record, Seq: seq}}, nil)
}

// parkOvertaken handles another writer's record that was stored before the question: it
// passes that record on to the coordinator and settles the job.
func (m *Machine) parkOvertaken(newest Entry) {
	m.log(Info, "not parked: another record came first", "state", newest.Record.State, "seq", newest.Seq)
	if newest.Record.State == wire.Ended {
		m.tell(wire.Notice{Result: newest.Record.Result})
		m.close(settlement{how: Ack}, nil)
		return
	}
	m.tell(wire.Notice{Record: &newest.Record, Seq: newest.Seq})
	m.close(settlement{how: Term, reason: "another record came first"}, nil)
}

func (m *Machine) parkFailed(ev Failed) {
	switch err := fmt.Errorf("park: %w", ev.Err); ev.Why {
	case TooLarge:
		m.tooLargeToAsk()
	case Terminal:
		m.close(settlement{}, err)
	default:
		m.retry(err, 50*time.Millisecond, time.Second, "record not stored; trying again", "state", wire.Parked)
	}
}

// handBack hands back a call whose frozen input must run alone. The coordinator then runs
// it at the end of its stage. The hand-back is first written to the journal, so that every
// coordinator can read it.
func (m *Machine) handBack(back *call.HandBack) {
	m.become(HandingBack)
	m.writing = wire.CallRecord{}
	m.back = wire.HandBack{V: messages.Version, ArgsHash: back.ArgsHash, Worker: m.cfg.Worker, Reason: back.Reason}
	m.do(WriteHandBack{m.back})
}

func (m *Machine) handedBack() {
	m.end.Became = HandedBack
	m.log(Info, "handed back: its input must run alone", "reason", m.back.Reason)
	m.close(settlement{how: Term, reason: "handed back", notice: &wire.Notice{Hand: &m.back}}, nil)
}
