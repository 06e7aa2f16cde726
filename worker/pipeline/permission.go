package pipeline

import (
	"context"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// denied looks at the deny rules alone.
func (c *call) denied(context.Context) error {
	decision, denied := c.cfg.Rules.Denied(c.asRulesSeeIt())
	if !denied {
		return nil
	}
	c.ruling = decision.Weigh(permission.Opinion{})
	return c.refused()
}

// permissions is phase four: the full decision, on an input that is frozen and hashed first. What the hooks said weighs
// in; what follows where a person is wanted is for approval.
func (c *call) permissions(context.Context) error {
	canonical, err := messages.CanonicalJSON(c.input)
	if err != nil {
		return fail(messages.StatusValidationError, messages.CodeInvalidArguments, "The arguments cannot be read: %v.", err)
	}
	c.frozen = Frozen{Tool: c.tool, Input: c.input, ArgsHash: messages.Digest(canonical), Hooks: c.hooks.Report()}
	c.ruling = c.cfg.Rules.Decide(c.asRulesSeeIt()).Weigh(permission.Opinion{
		Opinion: string(c.hooks.Opinion), By: c.hooks.By, Reason: c.hooks.Reason,
	})
	if q := c.answered(); c.ruling.Effect == string(permission.Allow) && q != nil && q.Original != nil {
		c.ruling = standBy(c.ruling)
	}
	if c.ruling.Effect == string(permission.Deny) {
		return c.refused()
	}
	return nil
}

// standBy is the ruling about arguments that a person has written, where the rules themselves want nobody: they are not
// those of the model, so they run on that person's word, which has to hold like any other.
func standBy(r permission.Ruling) permission.Ruling {
	return permission.Ruling{
		Permission: messages.Permission{Effect: string(permission.Ask), Source: "person", Tier: r.Tier, Policy: r.Policy},
		Approvers:  1, Reason: "a person has changed the arguments",
	}
}

func (c *call) asRulesSeeIt() permission.Call {
	return permission.Call{Tool: c.tool.Tool, Input: c.input, Session: c.job.Session, Principal: string(c.job.Tenant)}
}

// refused is the end of a call that the rules deny, also of one that people have agreed to.
func (c *call) refused() *failure {
	return fail(messages.StatusDenied, messages.CodePolicyDenied, "Denied: %s. It was not run.", c.ruling.Reason)
}

// deniedBy makes the hook the one that has decided about the call.
func (c *call) deniedBy(hook string) {
	c.ruling = permission.Ruling{
		Permission: messages.Permission{Effect: string(permission.Deny), Source: "hook", Rule: hook}, Reason: "the hook " + hook + " refuses it",
	}
}

// permission is what the result and the audit log say was decided about the call: by the ruling, and by whoever has agreed
// to it. Nil for a call that has ended before there was a ruling.
func (c *call) permission() *messages.Permission {
	p := c.ruling.Permission
	if p.Effect == "" {
		return nil
	}
	if q := c.answered(); q != nil {
		p.Edited = q.Original != nil
		if p.Effect != string(permission.Allow) { // else nobody's word is needed any more
			p.Approval = q.ID
		}
	}
	if q := c.agreement; q != nil {
		p.Ticket = ticket(*q)
		for _, d := range q.Decisions {
			p.By = append(p.By, d.By)
		}
	}
	return &p
}
