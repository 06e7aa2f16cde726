package pipeline

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// semantic is phase two: the tool's own rules about an input that fits its schema, within the tool's time.
func (c *call) semantic(ctx context.Context) error {
	checker, ok := c.tool.Runner.(tool.Checker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.tool.Timeout())
	defer cancel()
	own := c.toolCall()
	own.Progress = func(messages.Progress) {} // nothing runs yet
	a := c.await(ctx, Semantic, func() (tool.Output, error) { return tool.Output{}, checker.Check(ctx, own) })
	switch {
	case a.broken:
		return c.broken()
	case a.err == nil:
		return nil
	case ctx.Err() != nil:
		return c.stopped(ctx, nil)
	}
	f := c.toolFailure(a.err)
	var said *messages.Error
	if !errors.As(a.err, &said) {
		f.err.Code = messages.CodeInvalidArguments
	}
	f.status, f.err.Retryable = messages.StatusSemanticError, false
	return f
}

// toolCall is the call as the tool sees it, with an input of its own.
func (c *call) toolCall() tool.Call {
	return tool.Call{
		Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, ID: c.job.CallID, Index: c.job.Index, Tool: c.job.Tool,
		Input: clone(c.input), Attempt: c.grant.Attempt, IdempotencyKey: c.grant.IdempotencyKey, Fence: c.grant.Fence,
	}
}
