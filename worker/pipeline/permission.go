package pipeline

import (
	"context"
	"slices"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// denied checks only the deny rules, before the hooks run.
func (c *callRun) denied(context.Context) error {
	decision, denied := c.cfg.Rules.Denied(c.ruleCall())
	if !denied {
		return nil
	}
	c.ruling = decision.Weigh(permission.Opinion{})
	return c.refused()
}

// permissions makes the decision of the permissions phase. It freezes and hashes the input.
// Then it weighs the rules and the opinion of the hooks. If a person is needed, the method
// approval handles that later.
func (c *callRun) permissions(ctx context.Context) error {
	canonical, err := rawjson.Canonical(c.input)
	if err != nil {
		return fail(messages.StatusValidationError, messages.CodeInvalidArguments, "The arguments cannot be read: %v.", err)
	}
	c.frozen = call.Frozen{
		Input: c.input, ArgsHash: messages.Digest(canonical), Hooks: c.hooks.Report(), OnCrash: c.onCrash(),
		Deadline: c.tool.Timeout() + c.cfg.Hooks.BudgetAfter(c.job.Tool),
	}
	opinion, err := c.permitted(ctx, permission.Opinion{
		Opinion: string(c.hooks.Opinion), By: c.hooks.By, Reason: c.hooks.Reason,
	})
	if err != nil {
		return err
	}
	c.ruling = c.cfg.Rules.Decide(c.ruleCall()).Weigh(opinion)
	if q := c.answered(); c.ruling.Effect == string(permission.Allow) && q != nil && q.Original != nil {
		c.ruling = askEditor(c.ruling)
	}
	if c.ruling.Effect == string(permission.Deny) {
		return c.refused()
	}
	return nil
}

// permitted returns the opinion of the hooks or, if the tool itself has a stricter opinion,
// the tool's opinion. If the tool cannot be asked, the call is refused.
func (c *callRun) permitted(ctx context.Context, hooks permission.Opinion) (permission.Opinion, error) {
	permitter, ok := c.tool.Runner.(tool.Permitter)
	if !ok {
		return hooks, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.tool.Timeout())
	defer cancel()
	own := c.toolCall()
	own.Progress = func(messages.Progress) {}
	answers := make(chan tool.Permit, 1) // a check that await has left behind may still answer
	a := c.await(ctx, Permissions, func() (tool.Output, error) {
		permit, err := permitter.Permit(ctx, own)
		answers <- permit
		return tool.Output{}, err
	})
	switch {
	case a.panicked:
		return hooks, c.broken()
	case a.err != nil && ctx.Err() != nil:
		return hooks, c.stopped(ctx, nil)
	case a.err != nil:
		c.log().Error("the permission check of a tool failed, so the call is refused")
		// The error may quote the tool, so it is logged only at the debug level.
		c.log().Debug("the error of the permission check of a tool", "err", a.err)
		c.ruling = permission.Ruling{Permission: messages.Permission{Effect: string(permission.Deny), Source: messages.SourceTool, Rule: c.job.Tool}}
		return hooks, fail(messages.StatusDenied, messages.CodePolicyDenied, "The permission check of %s failed, so the call was refused. It was not run.", c.job.Tool)
	}
	permit := <-answers
	if strictness(permit.Opinion) <= strictness(hooks.Opinion) {
		return hooks, nil
	}
	return permission.Opinion{Opinion: permit.Opinion, By: c.job.Tool, Source: messages.SourceTool, Reason: permit.Reason}, nil
}

// strictness orders opinions. An unknown opinion is as strict as a deny.
func strictness(opinion string) int {
	known := []string{"", string(permission.Allow), string(permission.Ask)}
	if i := slices.Index(known, opinion); i >= 0 {
		return i
	}
	return len(known)
}

// askEditor turns an allow into a question to one person, if a person has edited the
// arguments. The model did not ask for these arguments, so they run only if that person's
// approval is valid.
func askEditor(r permission.Ruling) permission.Ruling {
	return permission.Ruling{
		Permission: messages.Permission{Effect: string(permission.Ask), Source: messages.SourcePerson, Tier: r.Tier, Policy: r.Policy},
		Approvers:  1, Reason: "a person has changed the arguments",
	}
}

func (c *callRun) ruleCall() permission.Call {
	return permission.Call{
		Tool: c.tool.Tool, Input: c.input, Session: c.job.Session, Tenant: c.job.Tenant, User: c.job.User, Labels: c.job.Labels,
	}
}

// refused returns the failure of a call that the rules deny, even if people have approved it.
func (c *callRun) refused() *failure {
	return fail(messages.StatusDenied, messages.CodePolicyDenied, "Denied: %s. It was not run.", c.ruling.Reason)
}

// deniedBy records that the hook refused the call.
func (c *callRun) deniedBy(hook string) {
	c.ruling = permission.Ruling{
		Permission: messages.Permission{Effect: string(permission.Deny), Source: messages.SourceHook, Rule: hook},
		Reason:     "the hook " + hook + " refuses it",
	}
}

// permission returns the decision in the form for the result and the audit log: the ruling,
// and the people who approved. It returns nil if the call ended before there was a ruling.
func (c *callRun) permission() *messages.Permission {
	p := c.ruling.Permission
	if p.Effect == "" {
		return nil
	}
	if q := c.answered(); q != nil {
		p.Edited = q.Original != nil
		if p.Effect != string(permission.Allow) { // otherwise no person was needed
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
