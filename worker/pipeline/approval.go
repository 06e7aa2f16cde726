package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// maxEdited limits how many characters of edited arguments the model is shown.
const maxEdited = 4000

// answered returns the answered question about this call from the prior record, or nil.
func (c *callRun) answered() *messages.Approval {
	if c.prior == nil {
		return nil
	}
	return c.prior.Approval
}

// frozenInput returns the input to run with. That is the approved input if there is one.
// Otherwise it is the input that hooks have left in the prior record, or else the job's
// own.
func frozenInput(job wire.Job, prior *wire.CallRecord) []byte {
	switch {
	case prior == nil || prior.ArgsHash == "":
		return job.Input
	case prior.Approval != nil && prior.Approval.Input != nil:
		return prior.Approval.Input
	case prior.Input != nil:
		return prior.Input
	}
	return job.Input
}

// approval handles a call whose ruling is ask. It returns nil if no person is needed, or if
// people have given a valid approval. It checks that approval again under the present rules.
// Otherwise it returns a *call.Ask or a *failure.
func (c *callRun) approval(ctx context.Context) error {
	q := c.answered()
	switch {
	case c.ruling.Effect != string(permission.Ask):
		return nil
	case c.cfg.Approvals == nil || c.cfg.Approvals.Count(c.job.Tenant, c.job.Tool, c.cfg.Now(ctx)) < max(c.ruling.Approvers, 1):
		c.flaw = &messages.Refusal{Class: messages.ClassNotPending, Message: "No approver may decide on this call any more."}
		return c.noApprovers()
	case q == nil:
		return c.ask()
	}
	c.flaw = c.flawOf(*q, c.cfg.Now(ctx))
	switch {
	case c.flaw == nil:
		c.agreement = q
		return nil
	case c.flaw.Class == messages.ClassApprovalExpired:
		return fail(messages.StatusExpired, messages.CodeApprovalExpired,
			"A person has allowed this call, and it did not start in time after that. It was not run. Ask for it again if it is still wanted.")
	}
	c.log().Warn("the approval is not valid for this call; the question is asked again",
		"approval", q.ID, "why", c.flaw.Message)
	return c.ask()
}

// flawOf returns why an answered question does not let the call run now, or nil if it does.
func (c *callRun) flawOf(q messages.Approval, now time.Time) *messages.Refusal {
	changed := func(what string) *messages.Refusal {
		return &messages.Refusal{Class: messages.ClassApprovalMismatch, Message: "The question was about " + what + "."}
	}
	switch {
	case !c.isAbout(q):
		return changed("another call")
	case q.ArgsHash != c.frozen.ArgsHash:
		return changed("other arguments")
	case q.ToolDigest != c.tool.Digest:
		return changed("another definition of the tool")
	case q.Policy != c.ruling.Policy:
		return changed("another version of the policy")
	case q.Requester != string(c.job.Tenant):
		return changed("another requester")
	case slices.Index(messages.Tiers, q.Tier) < slices.Index(messages.Tiers, c.ruling.Tier), c.ruling.Ticket && !q.Ticket:
		return changed("a call with less at stake")
	case len(q.Decisions) < c.ruling.Approvers:
		return &messages.Refusal{Class: messages.ClassNotPending, Message: fmt.Sprintf("%d of %d people have agreed.", len(q.Decisions), c.ruling.Approvers)}
	}
	err := c.cfg.Approvals.Holds(q, now)
	var refusal *messages.Refusal
	if err != nil && !errors.As(err, &refusal) {
		refusal = &messages.Refusal{Class: messages.ClassBadSignature, Message: err.Error()}
	}
	return refusal
}

// isAbout reports whether a question is about this call. A record that was copied from
// another call's journal must not count.
func (c *callRun) isAbout(q messages.Approval) bool {
	j := c.job
	return q.Tenant == j.Tenant && q.Session == j.Session && q.Batch == j.Batch && q.Index == j.Index && q.CallID == j.CallID && q.Tool == j.Tool
}

func ticket(q messages.Approval) string {
	for _, d := range q.Decisions {
		if t := strings.TrimSpace(d.Ticket); t != "" {
			return t
		}
	}
	return ""
}

// ask ends the run with a question. The text of the question comes from the policy and the
// frozen call, never from the model's words.
func (c *callRun) ask() error {
	q := messages.Approval{
		V: messages.Version, Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, Index: c.job.Index, CallID: c.job.CallID,
		Tool: c.job.Tool, Kind: c.tool.Kind, ToolDigest: c.tool.Digest, Input: clone(c.input), ArgsHash: c.frozen.ArgsHash,
		Line: approval.Line(c.job.Tool, c.input), Requester: string(c.job.Tenant), User: c.job.User, Labels: c.job.Labels,
		Rule: cmp.Or(c.ruling.Rule, c.ruling.Source), Reason: c.ruling.Reason, Tier: c.ruling.Tier,
		Approvers: max(c.ruling.Approvers, 1), Ticket: c.ruling.Ticket, Policy: c.ruling.Policy,
	}
	if before := c.answered(); before != nil {
		q.Original = before.Original
	}
	return &call.Ask{Approval: q, Hooks: c.frozen.Hooks, ArgsHash: c.frozen.ArgsHash}
}

// noApprovers returns the failure of a call that needs more approvers than there are.
func (c *callRun) noApprovers() *failure {
	who := "A person"
	if c.ruling.Approvers > 1 {
		who = fmt.Sprintf("%d people", c.ruling.Approvers)
	}
	return fail(messages.StatusDenied, messages.CodeApprovalRequired,
		"%s would have to approve this call (%s), and this fleet has too few approvers. It was not run.", who, c.ruling.Reason)
}

// noteEdit tells the model that a person has changed the arguments, even if the edited call
// was refused later.
func (c *callRun) noteEdit() {
	q := c.answered()
	if q == nil || q.Original == nil {
		return
	}
	who := "A person"
	for _, d := range q.Decisions {
		// Name the person only if the approval was checked.
		if d.Verdict == messages.VerdictEdit && c.agreement != nil {
			who += " (" + d.By + ")"
		}
	}
	what, are := " changed the arguments before this ran.", " It ran with: "
	if !c.started && !c.ended {
		what, are = " changed the arguments.", " They now are: "
	}
	if sent, err := rawjson.Canonical(c.job.Input); err == nil && messages.Digest(sent) == q.Original.ArgsHash {
		input, _ := cut(string(c.input), maxEdited, schemas.TruncateMiddle)
		what += are + input
	} // otherwise a hook has changed the arguments too, and may have added what the model must not see
	c.result.Outcome = withContext(c.result.Outcome, []string{who + what})
}
