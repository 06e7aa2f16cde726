package pipeline

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// maxContent limits the arguments and the result in a span, in bytes each. A span has them
// only with Config.TraceContent.
const maxContent = 16 << 10

// span starts the span of a call. Without a tracer, it starts no span and returns ctx unchanged.
func (p *Pipeline) span(ctx context.Context, job wire.Job) (context.Context, trace.Span) {
	if p.cfg.Tracer == nil {
		return ctx, noop.Span{}
	}
	name := tracing.ExecuteTool
	// The model may have invented an unknown name, so such a name must not get into span
	// names.
	if _, known := p.cfg.Registry.Lookup(job.Tool); known {
		name += " " + job.Tool
	}
	return p.cfg.Tracer.Start(ctx, name)
}

// phase runs one phase, with a span of its own if the call's span is recorded.
func (c *callRun) phase(ctx context.Context, s step) (err error) {
	began := time.Now()
	open := func(ctx context.Context) (context.Context, trace.Span) {
		if !c.span.IsRecording() {
			return ctx, noop.Span{}
		}
		return c.cfg.Tracer.Start(ctx, s.phase, trace.WithTimestamp(began))
	}
	var span trace.Span = noop.Span{}
	within := ctx
	if !s.early {
		within, span = open(ctx)
	}
	c.current = s.phase
	defer func() {
		c.current = ""
		c.phaseTimes[s.phase] += time.Since(began)
		if s.early && err != nil {
			_, span = open(ctx)
		}
		c.closePhase(span, s.phase, err)
	}()
	return c.guard(s.phase, func() error { return s.do(within) })
}

// closePhase ends the span of a phase, and marks it as failed if the call failed there.
func (c *callRun) closePhase(span trace.Span, phase string, err error) {
	defer span.End()
	var f *failure
	why := ""
	switch {
	case errors.As(err, &f):
		why = messages.ErrorType(f.status, f.err)
	// The tool has run and returned blocks with IsError. So the call failed without an
	// error.
	case err == nil && phase == Execute && c.result.Status == messages.StatusError:
		why = messages.ErrorType(c.result.Status, nil)
	}
	if why != "" {
		if c.failed == "" {
			c.failed = phase
		}
		tracing.Fail(span, why)
	}
	if phase == Permissions && span.IsRecording() {
		span.SetAttributes(permissionAttributes(c.permission())...)
	}
}

// closeSpan ends the call's span and records how the call ended. An err does not mark the span
// as failed, because the call goes on elsewhere.
func (c *callRun) closeSpan(err error) {
	defer c.span.End()
	if !c.span.IsRecording() {
		return
	}
	c.span.SetAttributes(
		tracing.OperationName.String(tracing.ExecuteTool), tracing.ToolName.String(c.job.Tool), tracing.ToolType.String("function"),
		tracing.ToolCallID.String(string(c.job.CallID)), tracing.ConversationID.String(string(c.job.Session)), tracing.Batch.String(string(c.job.Batch)),
		tracing.CallIndex.Int(c.job.Index), tracing.CallKind.String(string(c.tool.Kind)), tracing.ToolDigest.String(c.tool.Digest),
	)
	c.span.SetAttributes(permissionAttributes(c.permission())...)
	if c.grant.Attempt > 0 {
		c.span.SetAttributes(tracing.CallAttempt.Int(c.grant.Attempt))
	}
	if c.grant.Fence > 0 {
		c.span.SetAttributes(tracing.Fence.Int64(int64(c.grant.Fence)))
	}
	if c.cfg.TraceContent {
		c.span.SetAttributes(tracing.CallArguments.String(content(c.input)))
	}
	if err != nil {
		return
	}
	c.span.SetAttributes(tracing.CallStatus.String(string(c.result.Status)),
		tracing.ResultBytes.Int(sizeOf(c.result.Output, c.result.Content)))
	if c.result.Truncated != nil {
		c.span.SetAttributes(tracing.Truncated.Bool(true))
	}
	if c.cfg.TraceContent {
		c.span.SetAttributes(tracing.CallResult.String(content(rawjson.MustMarshal(c.result.Outcome))))
	}
	if c.result.Status != messages.StatusOK {
		if c.failed != "" {
			c.span.SetAttributes(tracing.FailedPhase.String(c.failed))
		}
		tracing.Fail(c.span, messages.ErrorType(c.result.Status, c.result.Err))
	}
}

func permissionAttributes(p *messages.Permission) (attributes []attribute.KeyValue) {
	if p == nil {
		return nil
	}
	attributes = append(attributes, tracing.PermEffect.String(p.Effect), tracing.PermSource.String(p.Source))
	for _, known := range []attribute.KeyValue{tracing.PermRule.String(p.Rule), tracing.PermTier.String(string(p.Tier)), tracing.Approval.String(p.Approval)} {
		if known.Value.AsString() != "" {
			attributes = append(attributes, known)
		}
	}
	return attributes
}

// content returns arguments or a result as text for a span. It is at most maxContent bytes,
// with a mark where it is cut.
func content(raw []byte) string {
	const mark = " [truncated]"
	if len(raw) <= maxContent {
		return strings.ToValidUTF8(string(raw), "")
	}
	return strings.ToValidUTF8(string(raw[:maxContent-len(mark)]), "") + mark
}
