package client

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

// WithTracer is the same client with a tracer, as [Options].Tracer.
func (c *Client) WithTracer(t trace.Tracer) *Client {
	traced := *c
	traced.tracer = t
	return &traced
}

// tracerFor makes the spans of a call: our own, else one of whoever made the span in ctx, else none.
func (c *Client) tracerFor(ctx context.Context) trace.Tracer {
	if c.tracer != nil {
		return c.tracer
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span.TracerProvider().Tracer(tracing.Scope, trace.WithSchemaURL(tracing.SchemaURL))
	}
	return tracing.OrSilent(nil)
}

// send begins the span of a batch that is sent by a verb, and puts the context of the trace into its header. Without a span of
// ours that is the context of ctx.
func (c *Client) send(ctx context.Context, kind trace.SpanKind, verb messages.Verb, b messages.Batch, header bus.Header) (context.Context, trace.Span) {
	ctx, span := c.tracerFor(ctx).Start(ctx, tracing.SendBatch, trace.WithSpanKind(kind))
	tracing.Inject(ctx, header)
	if span.IsRecording() {
		span.SetAttributes(
			tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("send"), tracing.MessagingType.String("send"),
			tracing.MessagingDestination.String(c.names.Of(verb, anyBatch)), tracing.Tenant.String(c.tenant),
			tracing.ConversationID.String(string(b.Session)), tracing.Batch.String(string(b.ID)), tracing.Provider.String(string(b.Provider)),
		)
	}
	return ctx, span
}

// anyBatch stands for the ids in the name of a subject.
var anyBatch = messages.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}

// sent ends the span of a batch with what became of it.
func sent(ctx context.Context, span trace.Span, reply messages.Reply, err error) {
	if reply.Status != "" {
		span.SetAttributes(tracing.BatchStatus.String(string(reply.Status)))
	}
	if err != nil {
		tracing.Fail(span, errorType(ctx, err))
	}
	span.End()
}

// errorType is an error as an attribute: one of few words.
func errorType(ctx context.Context, err error) string {
	var refusal *messages.Refusal
	switch {
	case errors.As(err, &refusal):
		return string(refusal.Class)
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case ctx.Err() != nil: // whatever its cause is called
		return "canceled"
	case errors.Is(err, ErrNoFleet):
		return "no_fleet"
	}
	return "_OTHER"
}
