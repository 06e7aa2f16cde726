package pipeline

import (
	"cmp"
	"context"
	"errors"
	"maps"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas/expression"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// semantic is the semantic phase: it applies the tool's own rules to an input that fits the
// schema. The rules in the tool's definition come first. Then comes the check in its code,
// which may take as long as the tool.
func (c *callRun) semantic(ctx context.Context) error {
	if err := c.required(); err != nil {
		return err
	}
	checker, ok := c.tool.Runner.(tool.Checker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.tool.Timeout())
	defer cancel()
	own := c.toolCall()
	own.Progress = func(messages.Progress) {} // the tool is not running yet
	a := c.await(ctx, Semantic, func() (tool.Output, error) { return tool.Output{}, checker.Check(ctx, own) })
	switch {
	case a.panicked:
		return c.broken()
	case a.err == nil:
		return nil
	case ctx.Err() != nil:
		return c.stopped(ctx, nil)
	}
	f := c.toolFailure(a.err)
	var toolErr *messages.Error
	if !errors.As(a.err, &toolErr) {
		f.err.Code = messages.CodeInvalidArguments
	}
	f.status, f.err.Retryable = messages.StatusSemanticError, false
	return f
}

// required checks the input against the rules of the tool's definition, in their order.
func (c *callRun) required() error {
	if len(c.tool.Semantic) == 0 {
		return nil
	}
	subject := expression.NewSubject(expression.Call{
		Tool: c.tool.Name, Kind: c.tool.Kind, Pool: c.tool.Pool, Input: c.input, Session: c.job.Session,
		Tenant: c.job.Tenant, User: c.job.User, Labels: c.job.Labels,
	})
	for _, rule := range c.tool.Semantic {
		program, err := c.compiled(rule.Require)
		if err != nil {
			c.log().Error("a rule of the tool cannot be compiled; correct its definition", "err", err)
			return fail(messages.StatusError, messages.CodeInternal, "A rule of %s cannot be read. It was not run.", c.job.Tool)
		}
		holds, err := program.Bool(subject)
		if err == nil && holds {
			continue
		}
		f := fail(messages.StatusSemanticError, cmp.Or(messages.Code(rule.Code), messages.CodeInvalidArguments),
			"%s", cmp.Or(rule.Message, "The arguments break a rule of "+c.job.Tool+"."))
		if err != nil {
			f.err.Message += " (This could not be found out: " + err.Error() + ".)"
		}
		return f
	}
	return nil
}

// compiled returns a compiled expression from the cache, which has one for each rule of the
// registry's tools.
func (p *Pipeline) compiled(source string) (*expression.Program, error) {
	if known, ok := p.programs.Load(source); ok {
		return known.(*expression.Program), nil
	}
	program, err := expression.Compile(source, expression.Bool)
	if err == nil {
		p.programs.Store(source, program)
	}
	return program, err
}

// toolCall returns the call as the tool sees it, with a copy of the input.
func (c *callRun) toolCall() tool.Call {
	return tool.Call{
		Tenant: c.job.Tenant, Session: c.job.Session, Batch: c.job.Batch, ID: c.job.CallID, Index: c.job.Index, Tool: c.job.Tool,
		User: c.job.User, Labels: maps.Clone(c.job.Labels),
		Input: clone(c.input), Attempt: c.grant.Attempt, IdempotencyKey: c.idempotencyKey, Fence: c.grant.Fence,
	}
}
