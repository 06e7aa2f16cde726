package client

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// tracerFor returns the tracer for a call: the client's own, else that of the span in ctx, else one
// that does nothing.
func (c *Client) tracerFor(ctx context.Context) trace.Tracer {
	if c.tracer != nil {
		return c.tracer
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span.TracerProvider().Tracer(tracing.Scope, trace.WithSchemaURL(tracing.SchemaURL))
	}
	return tracing.OrSilent(nil)
}

// send starts the span of a batch and writes its trace context into the header of the message.
// Without a span, the header gets the trace context of ctx.
func (c *Client) send(ctx context.Context, kind trace.SpanKind, verb wire.Verb, b messages.Batch, header bus.Header) (context.Context, trace.Span) {
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

// anyBatch replaces the ids in a subject by placeholders, so that the span has few distinct
// destinations.
var anyBatch = wire.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}

// sent ends the span of a batch with its status or its error.
func sent(ctx context.Context, span trace.Span, reply messages.Reply, err error) {
	if reply.Status != "" {
		span.SetAttributes(tracing.BatchStatus.String(string(reply.Status)))
	}
	if err != nil {
		tracing.Fail(span, errorType(ctx, err))
	}
	span.End()
}

// errorType returns the kind of an error for a span attribute: one of few words.
func errorType(ctx context.Context, err error) string {
	var refusal *messages.Refusal
	switch {
	case errors.As(err, &refusal):
		return string(refusal.Class)
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case ctx.Err() != nil: // whatever the cause of the context is
		return "canceled"
	case errors.Is(err, ErrNoFleet):
		return "no_fleet"
	}
	return "_OTHER"
}
