package pipeline

import (
	"context"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// denied looks at the deny rules alone.
func (c *call) denied(context.Context) error {
	if decision, denied := c.cfg.Rules.Denied(c.tool.Tool, c.input); denied {
		return refused(decision)
	}
	return nil
}

// permissions is phase four: the full decision, on an input that is frozen and hashed first. Deny, from
// wherever, wins over ask, and ask over allow. A hook's allow spares the question that only the default
// asks; it lifts no rule, and no default that denies.
func (c *call) permissions(context.Context) error {
	canonical, err := messages.CanonicalJSON(c.input)
	if err != nil {
		return fail(messages.StatusValidationError, messages.CodeInvalidArguments, "The arguments cannot be read: %v.", err)
	}
	c.frozen = Frozen{Tool: c.tool, Input: c.input, ArgsHash: messages.Digest(canonical)}
	decision := c.cfg.Rules.Decide(c.tool.Tool, c.input)
	switch {
	case decision.Effect == permission.Deny:
		return refused(decision)
	case decision.Effect == permission.Ask && (decision.Matched || c.hooks.Opinion != hook.Allow):
		return unasked(decision.Reason())
	case c.hooks.Opinion == hook.Ask:
		return unasked("the hook " + c.hooks.By + " asks" + because(c.hooks.Reason))
	}
	return nil
}

func refused(d permission.Decision) *failure {
	return fail(messages.StatusDenied, messages.CodePolicyDenied, "Denied: %s. It was not run.", d.Reason())
}

// unasked is the end of a call that a person would have to allow, where nobody can be asked.
func unasked(reason string) *failure {
	return fail(messages.StatusDenied, messages.CodeApprovalRequired,
		"A person would have to approve this call (%s), and nobody can be asked here. It was not run.", reason)
}
