package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	machine "github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

// This file is a short form of package pipeline: the decisions of people, the claim, the run
// of the tool, and the end of a cancelled run.

// phases runs the phases of the call, and returns the event with which they end.
func (a *attempt) phases(t *world.Task, prior *wire.CallRecord) machine.Event {
	if a.cause != nil {
		return a.unstarted()
	}
	if a.job.ConcurrencySafe && staff.HandsBack(a.job.Tool) {
		return machine.Ended{Err: &call.HandBack{Reason: "stern"}}
	}
	a.freeze(prior)
	if end := a.forbidden(prior); end != nil {
		return *end
	}
	onCrash := staff.Tool(a.job.Tool).OnCrash
	if a.job.Kind != messages.KindWrite { // running such a call again changes nothing
		onCrash = messages.OnCrashIdempotent
	}
	a.post(machine.Wanted{Frozen: call.Frozen{Input: a.input, ArgsHash: a.argsHash, OnCrash: onCrash, Deadline: time.Minute}})
	t.Wait(world.Never, func() bool { return a.answer != nil })
	a.grant = a.answer.grant
	if a.answer.err != nil {
		return machine.Ended{Err: a.answer.err}
	}
	if a.cause != nil {
		return a.unstarted()
	}
	a.run = a.worker.fleet.judge.Began(a.view())
	t.Wait(t.Now.Add(a.run.Takes), func() bool { return a.cause != nil })
	var stop *wire.Stop
	switch stopped := errors.As(a.cause, &stop); {
	case a.cause == nil:
		a.worker.fleet.judge.Over(a.view())
		return machine.Ended{Result: a.run.End(t.Now, false)}
	case stopped:
		return machine.Ended{Result: a.run.End(a.cutAt, true)}
	case a.repeatable():
		return machine.Ended{Err: a.cause}
	}
	return machine.Ended{Result: a.run.End(a.cutAt, true)}
}

// cut cancels the run. A running tool ends at once.
func (a *attempt) cut(cause error) {
	a.cause, a.cutAt = cause, a.Now
	if a.run != nil && !a.run.Done {
		a.worker.fleet.judge.Over(a.view())
		a.run.Dead = true
	}
}

// unstarted returns the end of a run that was cancelled before its tool started.
func (a *attempt) unstarted() machine.Event {
	var stop *wire.Stop
	switch {
	case !errors.As(a.cause, &stop):
		return machine.Ended{Err: a.cause}
	// An earlier attempt may have been applied, so the outcome is unknown.
	case a.grant.Attempt > 1 && a.claims() && a.repeatable():
		return machine.Ended{Result: a.unrun(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown)}
	}
	return machine.Ended{Result: a.unrun(messages.StatusAborted, messages.CodeAborted)}
}

// unrun returns a result for a call that this attempt has not run.
func (a *attempt) unrun(status messages.Status, code messages.Code) messages.Result {
	return messages.Result{
		Index: a.key.Index, CallID: a.job.CallID, Tool: a.job.Tool, Attempt: a.grant.Attempt, Status: status, Outcome: messages.Failed(code, "not run"),
	}
}

func (a *attempt) claims() bool { return a.job.Kind == messages.KindWrite || a.job.TakeOver > 0 }

// repeatable reports whether the tool may run again without harm.
func (a *attempt) repeatable() bool {
	return a.job.Kind != messages.KindWrite || staff.Tool(a.job.Tool).OnCrash == messages.OnCrashIdempotent
}

// freeze sets the input of the attempt. The hooks of this fleet make another input each time,
// so a stored input must be used again.
func (a *attempt) freeze(prior *wire.CallRecord) {
	switch {
	case prior == nil || prior.ArgsHash == "":
		a.input = fmt.Appendf(nil, `{"made":%q}`, a.Nonce())
	case prior.Approval != nil && prior.Approval.Input != nil:
		a.input = prior.Approval.Input
	default:
		a.input = prior.Input
	}
	a.argsHash = judge.HashOf(a.input)
}

// forbidden returns the end of a call that must not be claimed, or nil.
func (a *attempt) forbidden(prior *wire.CallRecord) *machine.Ended {
	rules, people := a.worker.policy, staff.People(a.job.Tool)
	if rules.denies == a.job.Tool {
		return &machine.Ended{Result: a.unrun(messages.StatusDenied, messages.CodePolicyDenied)}
	}
	if people == 0 {
		return nil
	}
	void := a.void(prior, people)
	var why *messages.Refusal
	switch {
	case void == nil:
		return nil
	case errors.As(void, &why) && why.Class == messages.ClassApprovalExpired:
		return &machine.Ended{Result: a.unrun(messages.StatusExpired, messages.CodeApprovalExpired)}
	}
	return &machine.Ended{Err: &call.Ask{ArgsHash: a.argsHash, Approval: a.question(prior, people)}}
}

var errNotAsked = errors.New("nobody was asked about this")

// void returns why the decisions of people do not let the call run, or nil if they do.
func (a *attempt) void(prior *wire.CallRecord, people int) error {
	if prior == nil || prior.Approval == nil {
		return errNotAsked
	}
	q := prior.Approval
	if q.ArgsHash != a.argsHash || q.Policy != a.worker.policy.version || len(q.Decisions) < people {
		return errNotAsked
	}
	return approvers.Holds(*q, a.Now)
}

func (a *attempt) question(prior *wire.CallRecord, people int) messages.Approval {
	q := messages.Approval{
		V: messages.Version, Tenant: messages.OneTenant, Session: a.job.Session, Batch: a.job.Batch, Index: a.key.Index, CallID: a.job.CallID,
		Tool: a.job.Tool, Kind: a.job.Kind, ToolDigest: "d", Input: json.RawMessage(a.input), ArgsHash: a.argsHash, Requester: messages.OneTenant,
		Tier: messages.TierHigh, Approvers: people, Policy: a.worker.policy.version,
	}
	if people > 1 {
		q.Tier, q.Ticket = messages.TierCritical, true
	}
	if prior != nil && prior.Approval != nil {
		q.Original = prior.Approval.Original
	}
	return q
}
