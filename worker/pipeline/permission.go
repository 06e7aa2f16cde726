package pipeline

import (
	"context"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// ruling is the whole decision on a call: what the rules, the tier and the hooks come to.
type ruling struct {
	messages.Permission
	Approvers int    // people who have to agree
	Ticket    bool   // one of them has to name a ticket
	Reason    string // why a person is wanted, or it is denied
}

// denied looks at the deny rules alone.
func (c *call) denied(ctx context.Context) error {
	if decision, denied := c.cfg.Rules.Denied(c.tool.Tool, c.input); denied {
		return c.refused(ctx, weigh(decision, hook.Result{}))
	}
	return nil
}

// permissions is phase four: the full decision, on an input that is frozen and hashed first. What the hooks said weighs
// in; what it comes to where a person is wanted is for approval.
func (c *call) permissions(ctx context.Context) error {
	canonical, err := messages.CanonicalJSON(c.input)
	if err != nil {
		return fail(messages.StatusValidationError, messages.CodeInvalidArguments, "The arguments cannot be read: %v.", err)
	}
	c.frozen = Frozen{Tool: c.tool, Input: c.input, ArgsHash: messages.Digest(canonical), Hooks: c.hooks.Report()}
	c.ruling = weigh(c.cfg.Rules.Decide(c.tool.Tool, c.input), c.hooks)
	if c.ruling.Effect == string(permission.Deny) {
		return c.refused(ctx, c.ruling)
	}
	own := c.ruling.Permission
	c.result.Permission = &own
	return nil
}

// refused is the end of a denied call, also of one that people have agreed to.
func (c *call) refused(ctx context.Context, r ruling) *failure {
	c.result.Permission = &r.Permission
	c.auditVoid(ctx, &messages.Refusal{Class: messages.ApprovalMismatch, Message: "The policy denies it now: " + r.Reason + "."})
	return fail(messages.StatusDenied, messages.CodePolicyDenied, "Denied: %s. It was not run.", r.Reason)
}

func weigh(d permission.Decision, h hook.Result) ruling {
	r := ruling{Permission: messages.Permission{Effect: string(d.Effect), Source: "default", Tier: messages.Low}, Reason: d.Reason()}
	if d.Matched {
		r.Source, r.Rule, r.Layer = "rule", d.Rule.Name, d.Rule.Source
	}
	switch {
	case d.Effect == permission.Ask && !d.Matched && h.Opinion == hook.Allow:
		r.Effect = string(permission.Allow)
	case d.Effect == permission.Allow && h.Opinion == hook.Ask:
		r.Effect, r.Source, r.Rule, r.Layer = string(permission.Ask), "hook", h.By, ""
		r.Reason = "the hook " + h.By + " asks" + because(h.Reason)
	}
	if r.Effect == string(permission.Ask) {
		r.Approvers = 1
	}
	return r
}
