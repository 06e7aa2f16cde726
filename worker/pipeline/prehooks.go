package pipeline

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// preHooks is the pre-hooks phase. If a hook changes the input, the new input goes through the
// validate and semantic phases again, and an error there names the hook.
//
// If the input is frozen, the hooks do not run again, because their answers are in the
// record. There is one exception: if a person has just edited the input, the hooks see it
// once more. They may refuse it, but not change it.
func (c *callRun) preHooks(ctx context.Context) error {
	frozen := c.prior != nil && c.prior.ArgsHash != ""
	if frozen && !c.justEdited() {
		c.hooks = hook.Reported(c.prior.Hooks)
		return nil
	}
	c.hooks = c.cfg.Hooks.Before(ctx, c.hookCall(), c.emitHook)
	c.count(c.hooks)
	// If the call was stopped, hooks may have failed for that reason.
	if err := c.stopped(ctx, nil); err != nil {
		return err
	}
	switch {
	case c.hooks.Refused != nil:
		c.deniedBy(c.hooks.Refused.Hook)
		return fail(messages.StatusHookError, messages.CodeHookFailed,
			"The hook %s could not run (%s), so the call was refused. It was not run.", c.hooks.Refused.Hook, c.hooks.Refused.Cause)
	case c.hooks.Opinion == hook.Deny:
		c.deniedBy(c.hooks.By)
		return fail(messages.StatusDenied, messages.CodeHookDenied, "Denied by the hook %s%s.",
			c.hooks.By, because(c.hooks.Reason))
	case c.hooks.Input == nil:
		return nil
	case frozen && same(c.hooks.Input, c.input):
		return nil
	case frozen: // no person has approved the changed input
		c.deniedBy(c.hooks.PatchedBy[0])
		return fail(messages.StatusDenied, messages.CodeHookDenied,
			"The hook %s would change the arguments that a person has written. It was not run.", c.hooks.PatchedBy[0])
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

// justEdited reports whether a person has changed the arguments since the hooks saw them.
func (c *callRun) justEdited() bool {
	q := c.answered()
	return q != nil && q.Original != nil && c.prior.State == wire.Granted
}

// same reports whether two JSON inputs have the same canonical form.
func same(a, b []byte) bool {
	x, errX := rawjson.Canonical(a)
	y, errY := rawjson.Canonical(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// hookCall returns the call as the hooks see it.
func (c *callRun) hookCall() hook.Call {
	return hook.Call{
		Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, ID: c.job.CallID, Index: c.job.Index,
		Tool: c.job.Tool, Kind: c.tool.Kind, User: c.job.User, Labels: maps.Clone(c.job.Labels), Input: c.input,
	}
}

func (c *callRun) emitHook(m messages.HookMessage) {
	c.emit(messages.Event{Type: messages.EventHook, Hook: &m})
}

// count logs and counts the hooks that could not run, except those that were stopped
// together with their call.
func (c *callRun) count(r hook.Result) {
	for _, f := range r.Failures {
		about := []any{"hook", f.Hook, "class", f.Class}
		if f.Program != "" {
			about = append(about, "program", f.Program)
		}
		if f.Cancelled {
			c.log().Info("the hook was cancelled because its call has ended", about...)
			continue
		}
		about = append(about, "err", f.Err)
		if f.Program != "" && f.Cause != hook.NotStarted {
			about = append(about, "hint", "its output is logged with --log-level debug")
		}
		if f.Stack != nil {
			about = append(about, "stack", string(f.Stack))
		}
		c.log().Error("the hook failed", about...)
		c.cfg.HookFailed(f.Hook, f.Class)
	}
}

func because(reason string) string {
	if reason = strings.TrimRight(reason, ". "); reason == "" {
		return ""
	}
	return ": " + reason
}
