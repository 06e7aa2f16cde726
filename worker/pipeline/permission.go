package pipeline

import (
	"context"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// denied looks at the deny rules alone.
func (c *call) denied(ctx context.Context) error {
	if decision, denied := c.cfg.Rules.Denied(c.asRulesSeeIt()); denied {
		return c.refused(ctx, decision.Weigh(permission.Opinion{}))
	}
	return nil
}

// permissions is phase four: the full decision, on an input that is frozen and hashed first. What the hooks said weighs
// in; what follows where a person is wanted is for approval.
func (c *call) permissions(ctx context.Context) error {
	canonical, err := messages.CanonicalJSON(c.input)
	if err != nil {
		return fail(messages.StatusValidationError, messages.CodeInvalidArguments, "The arguments cannot be read: %v.", err)
	}
	c.frozen = Frozen{Tool: c.tool, Input: c.input, ArgsHash: messages.Digest(canonical), Hooks: c.hooks.Report()}
	c.ruling = c.cfg.Rules.Decide(c.asRulesSeeIt()).Weigh(permission.Opinion{
		Opinion: string(c.hooks.Opinion), By: c.hooks.By, Reason: c.hooks.Reason,
	})
	if c.ruling.Effect == string(permission.Deny) {
		return c.refused(ctx, c.ruling)
	}
	own := c.ruling.Permission
	c.result.Permission = &own
	return nil
}

func (c *call) asRulesSeeIt() permission.Call {
	return permission.Call{Tool: c.tool.Tool, Input: c.input, Session: c.job.Session, Principal: string(c.job.Tenant)}
}

// refused is the end of a denied call, also of one that people have agreed to.
func (c *call) refused(ctx context.Context, r permission.Ruling) *failure {
	c.result.Permission = &r.Permission
	c.auditVoid(ctx, &messages.Refusal{Class: messages.ApprovalMismatch, Message: "It is denied now: " + r.Reason + "."})
	return fail(messages.StatusDenied, messages.CodePolicyDenied, "Denied: %s. It was not run.", r.Reason)
}
