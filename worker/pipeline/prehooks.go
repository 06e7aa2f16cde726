package pipeline

import (
	"context"
	"errors"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// preHooks is phase three. An input that a hook has changed goes through phases one and two again; what
// fails there is the hook's doing, and the answer says so. For an input that is frozen already hooks have run, and what
// they had to say stands in the record.
func (c *call) preHooks(ctx context.Context) error {
	if c.prior != nil && c.prior.ArgsHash != "" {
		c.hooks = hook.Reported(c.prior.Hooks)
		return nil
	}
	c.hooks = c.cfg.Hooks.Before(ctx, c.hookCall(), c.tellHook)
	c.count(c.hooks)
	if err := c.stopped(ctx, nil); err != nil { // hooks that fail with the call are not to blame
		return err
	}
	switch {
	case c.hooks.Refused != nil:
		c.deniedBy(c.hooks.Refused.Hook)
		return fail(messages.StatusHookError, messages.CodeHookFailed,
			"The hook %s could not run, so the call was refused. It was not run.", c.hooks.Refused.Hook)
	case c.hooks.Opinion == hook.Deny:
		c.deniedBy(c.hooks.By)
		return fail(messages.StatusDenied, messages.CodeHookDenied, "Denied by the hook %s%s.", c.hooks.By, because(c.hooks.Reason))
	case c.hooks.Input == nil:
		return nil
	}
	c.input = c.hooks.Input
	for _, again := range []func(context.Context) error{c.validate, c.semantic} {
		err := again(ctx)
		var f *failure
		if errors.As(err, &f) {
			f.err.Message = "After a hook (" + strings.Join(c.hooks.PatchedBy, ", ") + ") changed the arguments: " + f.err.Message
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deniedBy makes the hook the one that has decided about the call.
func (c *call) deniedBy(name string) {
	c.result.Permission = &messages.Permission{Effect: string(hook.Deny), Source: "hook", Rule: name}
}

// hookCall is the call as the hooks see it.
func (c *call) hookCall() hook.Call {
	return hook.Call{
		Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, ID: c.job.CallID, Index: c.job.Index,
		Tool: c.job.Tool, Kind: c.tool.Kind, Input: c.input,
	}
}

func (c *call) tellHook(m messages.HookMessage) {
	c.tell(messages.Event{Type: messages.EventHook, Hook: &m})
}

// count makes the hooks that could not run heard of: a gate that is broken refuses calls, an observer misses them.
func (c *call) count(r hook.Result) {
	for _, f := range r.Failures {
		c.log.Error("a hook could not run", "hook", f.Hook, "class", f.Class, "cancelled", f.Cancelled, "err", f.Err, "stack", string(f.Stack))
		if !f.Cancelled {
			c.cfg.HookFailed(f.Hook, f.Class)
		}
	}
}

func because(reason string) string {
	if reason = strings.TrimRight(reason, ". "); reason == "" {
		return ""
	}
	return ": " + reason
}
