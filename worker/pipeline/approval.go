package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// maxEdited is how many characters of edited arguments the model is told.
const maxEdited = 4000

// answered is the question that people have answered about the call, in the record that the job takes over from.
func (c *call) answered() *messages.Approval {
	if c.prior == nil {
		return nil
	}
	return c.prior.Approval
}

// frozenInput is the input that stands in the record that the job takes over from, else the job's: what people have
// agreed to, then what hooks made of it.
func frozenInput(job messages.Job, prior *messages.CallRecord) []byte {
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

// approval lets a call pass that nobody has to be asked about, and one that people have agreed to. For any other it asks:
// the error is an *Asked. An agreement is checked as if nobody had looked at it before, against what the rules say now.
func (c *call) approval(ctx context.Context) error {
	q := c.answered()
	if q != nil && q.Original != nil {
		c.result.Permission.Edited = true
	}
	if c.ruling.Effect != string(permission.Ask) {
		return nil
	}
	if c.cfg.Approvals == nil || c.cfg.Approvals.Len() < max(c.ruling.Approvers, 1) {
		c.auditVoid(ctx, &messages.Refusal{Class: messages.NotPending, Message: "Nobody's word counts for this call any more."})
		return c.unasked()
	}
	if q == nil {
		return c.ask()
	}
	now := c.cfg.Now(ctx)
	switch void := c.void(*q, now); {
	case void == nil:
		c.agreed(*q)
		return nil
	case void.Class == messages.ApprovalExpired:
		c.auditVoid(ctx, void)
		return fail(messages.StatusExpired, messages.CodeApprovalExpired,
			"A person has allowed this call, and it did not start in time after that. It was not run. Ask for it again if it is still wanted.")
	default:
		c.log.Warn("what people have agreed to does not hold; they are asked again", "approval", q.ID, "why", void.Message)
		c.auditVoid(ctx, void)
		return c.ask()
	}
}

// void is why what people have answered does not let the call run now; nil when it does.
func (c *call) void(q messages.Approval, now time.Time) *messages.Refusal {
	changed := func(what string) *messages.Refusal {
		return &messages.Refusal{Class: messages.ApprovalMismatch, Message: "The question was about " + what + "."}
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
	case len(q.Decisions) < c.ruling.Approvers:
		return &messages.Refusal{Class: messages.NotPending, Message: fmt.Sprintf("%d of %d people have agreed.", len(q.Decisions), c.ruling.Approvers)}
	}
	err := c.cfg.Approvals.Holds(q, now)
	var refusal *messages.Refusal
	if err != nil && !errors.As(err, &refusal) {
		refusal = &messages.Refusal{Class: messages.BadSignature, Message: err.Error()}
	}
	return refusal
}

// isAbout reports whether a question is about this call: a record that was copied from another's journal is none.
func (c *call) isAbout(q messages.Approval) bool {
	j := c.job
	return q.Tenant == j.Tenant && q.Session == j.Session && q.Batch == j.Batch && q.Index == j.Index && q.CallID == j.CallID && q.Tool == j.Tool
}

// agreed notes who has let the call run.
func (c *call) agreed(q messages.Approval) {
	p := c.result.Permission
	p.Approval, p.Ticket = q.ID, ticket(q)
	for _, d := range q.Decisions {
		p.By = append(p.By, d.By)
	}
}

func ticket(q messages.Approval) string {
	for _, d := range q.Decisions {
		if t := strings.TrimSpace(d.Ticket); t != "" {
			return t
		}
	}
	return ""
}

// ask ends the run here with a question. What it says is the policy's and the frozen call's, never the model's own words.
func (c *call) ask() error {
	q := messages.Approval{
		V: messages.Version, Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, Index: c.job.Index, CallID: c.job.CallID,
		Tool: c.job.Tool, Kind: c.tool.Kind, ToolDigest: c.tool.Digest, Input: clone(c.input), ArgsHash: c.frozen.ArgsHash,
		Line: approval.Line(c.job.Tool, c.input), Requester: string(c.job.Tenant),
		Rule: cmp.Or(c.ruling.Rule, c.ruling.Source), Reason: c.ruling.Reason, Tier: c.ruling.Tier,
		Approvers: max(c.ruling.Approvers, 1), Ticket: c.ruling.Ticket, Policy: c.ruling.Policy,
	}
	if before := c.answered(); before != nil {
		q.Original = before.Original
	}
	return &Asked{Approval: q, Hooks: c.frozen.Hooks, ArgsHash: c.frozen.ArgsHash}
}

// unasked is the end of a call that a person would have to allow, where nobody can be asked.
func (c *call) unasked() *failure {
	who := "A person"
	if c.ruling.Approvers > 1 {
		who = fmt.Sprintf("%d people", c.ruling.Approvers)
	}
	return fail(messages.StatusDenied, messages.CodeApprovalRequired,
		"%s would have to approve this call (%s), and nobody can be asked here. It was not run.", who, c.ruling.Reason)
}

// record stores the line of the audit log that has to be there before the call runs. What is not on record does not run.
func (c *call) record(ctx context.Context) error {
	line := messages.AuditGranted
	switch p := c.result.Permission; {
	case p.Approval != "":
	case p.Tier == messages.Medium:
		line = messages.AuditAllowed
	default:
		return nil
	}
	err := c.audit(ctx, line, nil)
	if err == nil {
		return nil
	}
	if stopped := c.stopped(ctx, nil); stopped != nil {
		return stopped
	}
	c.log.Error("the audit log does not take the line about a call, so it is not run", "err", err)
	f := fail(messages.StatusError, messages.CodeInternal, "%s has to be put on record before it runs, and that failed. It was not run.", c.job.Tool)
	if c.maybeDone() {
		f = c.unknown("an attempt before was lost, and another could not be put on record")
	}
	f.err.Retryable = true
	return f
}

// auditVoid puts on record that what people agreed to, if they did, does not hold. The call does not run on it either way.
func (c *call) auditVoid(ctx context.Context, why *messages.Refusal) {
	q := c.answered()
	if q == nil {
		return
	}
	c.result.Permission.Approval = q.ID
	if err := c.audit(ctx, messages.AuditVoid, why); err != nil {
		c.log.Error("the audit log does not take the line about a void approval", "approval", q.ID, "why", why.Message, "err", err)
	}
}

func (c *call) audit(ctx context.Context, line messages.AuditType, refusal *messages.Refusal) error {
	p := *c.result.Permission
	r := messages.AuditRecord{
		Type: line, Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, Index: c.job.Index,
		CallID: c.job.CallID, Tool: c.job.Tool, ToolDigest: c.tool.Digest, ArgsHash: c.frozen.ArgsHash,
		Permission: &p, Approval: p.Approval, Refusal: refusal,
	}
	if q := c.answered(); q != nil {
		r.ArgsHash = cmp.Or(r.ArgsHash, q.ArgsHash) // of a call that was refused before its input was read again
		if q.Original != nil {
			r.Original = q.Original.ArgsHash
		}
	}
	return c.cfg.Audit(ctx, r)
}

// tellOfEdit tells the model that a person made something else of what it asked for, also where that was refused then.
func (c *call) tellOfEdit() {
	q := c.answered()
	if q == nil || q.Original == nil {
		return
	}
	who, p := "A person", c.result.Permission
	if p != nil {
		p.Edited = true
	}
	for _, d := range q.Decisions {
		if d.Verdict == messages.Edit && p != nil && p.Approval != "" { // only then it is known to be true
			who += " (" + d.By + ")"
		}
	}
	what, are := " changed the arguments before this ran.", " It ran with: "
	if !c.started && !c.ended {
		what, are = " changed the arguments.", " They now are: "
	}
	if sent, err := messages.CanonicalJSON(c.job.Input); err == nil && messages.Digest(sent) == q.Original.ArgsHash {
		input, _ := cut(string(c.input), maxEdited, schemas.TruncateMiddle)
		what += are + input
	} // else a hook changed them before, and may have added what the model is not to see
	c.result.Outcome = withContext(c.result.Outcome, []string{who + what})
}
