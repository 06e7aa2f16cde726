package pipeline

import (
	"cmp"
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/messages"
)

// storeAuditLine stores the audit line that must exist before the call runs. The line is
// "granted" for a call that people have approved, and "allowed" for a call of tier medium. If
// the line cannot be stored, the call does not run.
func (c *callRun) storeAuditLine(ctx context.Context) error {
	line := messages.AuditGranted
	switch {
	case c.agreement != nil:
	case c.ruling.Tier == messages.TierMedium:
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
	c.log().Error("the audit line of the call cannot be stored; the call is not run: check the stream AUDIT", "err", err)
	f := fail(messages.StatusError, messages.CodeInternal,
		"%s must be written to the audit log before it runs, and that failed. It was not run.", c.job.Tool)
	if c.maybeDone() {
		f = c.unknown("an earlier attempt was lost, and another could not be written to the audit log")
	}
	f.err.Retryable = true
	return f
}

// auditVoid writes an audit line if an approved call does not run, no matter which check
// refused it.
func (c *callRun) auditVoid(ctx context.Context, err error) {
	q, why := c.answered(), c.void(err)
	if q == nil || why == nil {
		return
	}
	if err := c.audit(ctx, messages.AuditVoid, why); err != nil {
		c.log().Error("the audit line of a void approval cannot be stored: check the stream AUDIT",
			"approval", q.ID, "why", why.Message, "err", err)
	}
}

// void returns why an approved call did not run, in a text that quotes no arguments. err is
// how the call ended before it started. void returns nil if the approval is not the reason:
// the call was stopped, or goes on elsewhere.
func (c *callRun) void(err error) *messages.Refusal {
	var f *failure
	if c.flaw != nil || !errors.As(err, &f) {
		return c.flaw
	}
	mismatch := func(why string) *messages.Refusal {
		return &messages.Refusal{Class: messages.ClassApprovalMismatch, Message: why}
	}
	switch f.status {
	case messages.StatusAborted, messages.StatusTimeout:
		return nil
	case messages.StatusValidationError:
		return mismatch("The arguments do not fit the tool's schema.")
	case messages.StatusSemanticError:
		return mismatch("The arguments break a rule of the tool.")
	case messages.StatusDenied, messages.StatusHookError:
		return mismatch("It is denied now: " + c.ruling.Reason + ".")
	}
	return mismatch("It failed inside the worker before it could run.")
}

func (c *callRun) audit(ctx context.Context, line messages.AuditType, refusal *messages.Refusal) error {
	r := messages.AuditRecord{
		Type: line, Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, Index: c.job.Index,
		CallID: c.job.CallID, Tool: c.job.Tool, ToolDigest: c.tool.Digest, ArgsHash: c.frozen.ArgsHash,
		Permission: c.permission(), Refusal: refusal, TraceID: c.traceID,
	}
	if q := c.answered(); q != nil {
		if c.agreement != nil || refusal != nil {
			r.Approval = q.ID
		}
		// If a call was refused before its input was frozen, it has no hash. The line then
		// has the hash of the question.
		r.ArgsHash = cmp.Or(r.ArgsHash, q.ArgsHash)
		if q.Original != nil {
			r.Original = q.Original.ArgsHash
		}
	}
	return c.cfg.Audit(ctx, r)
}
