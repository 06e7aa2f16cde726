package pipeline

import (
	"context"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// postHooks is the post-hooks phase. It runs for every call that entered the first phase, even
// if the call failed or was stopped. It never turns a success into a failure: a failed hook is
// logged, and if a replacement output cannot be used, the tool's output stays. Hooks see the
// whole output. After that it is cut for the model.
func (c *callRun) postHooks(ctx context.Context) {
	before := c.result
	before.Hooks = hook.Summary(c.hooks, hook.Result{})
	if err := c.phase(context.WithoutCancel(ctx), step{phase: PostHooks, do: func(ctx context.Context) error {
		r := c.cfg.Hooks.After(ctx, c.hookCall(), hook.Done{
			Status: c.result.Status, Outcome: c.result.Outcome, Duration: time.Since(c.result.Started),
		}, c.emitHook)
		c.count(r)
		c.result.Hooks = hook.Summary(c.hooks, r)
		c.replace(r)
		c.bound(ctx)
		c.result.Outcome = withContext(c.result.Outcome, append(c.hooks.Context, r.Context...))
		return nil
	}}); err != nil {
		c.result, c.replacedHash = before, ""
		c.bound(context.WithoutCancel(ctx))
	}
}

// replace replaces the tool's output by the hooks' output, within the same limits.
func (c *callRun) replace(r hook.Result) {
	if r.Output == nil && r.Content == nil {
		return
	}
	outcome, err := c.outcome(tool.Output{
		Value: r.Output, Content: r.Content, IsError: c.result.IsError && r.Content != nil,
	})
	if err != nil {
		c.log().Error("the output of a hook is invalid; the output of the tool is kept", "hooks", r.PatchedBy)
		// The error may quote the output, so it is logged only at the debug level.
		c.log().Debug("the error of the output of a hook", "hooks", r.PatchedBy, "err", err)
		return
	}
	outcome.IsError = c.result.IsError
	c.replacedHash = c.result.Outcome.Hash()
	outcome.Details = c.result.Details
	c.result.Outcome = outcome
}

// withContext adds the hooks' notes for the model. They become a block after the output, or
// lines after the message of an error. All notes together have at most hook.MaxContext
// characters.
func withContext(o messages.Outcome, notes []string) messages.Outcome {
	if len(notes) == 0 {
		return o
	}
	note, _ := cut(strings.ToValidUTF8(strings.Join(notes, "\n"), "\uFFFD"), hook.MaxContext, schemas.TruncateHead)
	if o.Err != nil {
		err := *o.Err
		err.Message += "\n" + note
		o.Err = &err
		return o
	}
	blocks := append([]messages.Block(nil), o.Content...)
	if o.Content == nil {
		blocks = append(blocks, messages.Block{Type: "text", Text: textOf(o.Output)})
	}
	o.Output, o.Content = nil, append(blocks, messages.Block{Type: "text", Text: note})
	return o
}
