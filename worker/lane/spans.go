package lane

import (
	"context"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/worker/attempt"
)

// anyBatch has placeholders instead of ids. The conventions of OpenTelemetry ask for the
// template of a subject.
var anyBatch = wire.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}

// traced returns a context with the span of the attempt.
func (r *running) traced(ctx context.Context) context.Context {
	if r.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, r.span)
}

// trace starts the span of the attempt and returns its traceparent. An attempt that has
// nothing to do gets no span. The span continues the trace of the delivery, and links to the
// previous attempt if that is known.
func (r *running) trace(ctx context.Context, prior *wire.CallRecord) string {
	cfg := r.consumer.cfg
	if cfg.Tracer == nil {
		return ""
	}
	sent := trace.SpanContextFromContext(ctx)
	ctx, r.span = cfg.Tracer.Start(ctx, tracing.ProcessCall, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(r.began))
	// If the delivery had no trace, the span has begun a new one. The logger does not know its
	// id yet.
	if id := tracing.ID(ctx); !sent.IsValid() && id != "" {
		r.log = r.log.With("trace_id", id)
	}
	if !r.span.IsRecording() {
		return tracing.Parent(ctx)
	}
	if link, ok := r.link(sent, prior); ok {
		r.span.AddLink(link)
	}
	names, key := r.consumer.conn.Names(), r.key
	r.span.SetAttributes(
		tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("process"), tracing.MessagingType.String("process"),
		tracing.MessagingDestination.String(strings.TrimSuffix(names.Lane(!r.job.ConcurrencySafe, "{pool}", anyBatch.Call(0)), "0")+"{index}"),
		tracing.MessagingGroup.String(r.pool), tracing.Pool.String(r.pool),
		tracing.Stream.String(names.Stream(bus.Jobs)), tracing.Sequence.Int64(int64(r.d.Seq)), tracing.DeliveryCount.Int(r.d.Delivered),
		tracing.Tenant.String(key.Tenant), tracing.ConversationID.String(string(r.job.Session)), tracing.Batch.String(string(r.job.Batch)),
		tracing.CallIndex.Int(r.job.Index), tracing.ToolCallID.String(string(r.job.CallID)), tracing.ToolName.String(r.job.Tool),
		tracing.CallKind.String(string(r.job.Kind)), tracing.QueueWait.Float64(r.queueMS()), tracing.Worker.String(cfg.Worker),
	)
	return tracing.Parent(ctx)
}

// queueMS returns how long the job was queued, in milliseconds. The start is by the clock
// of the coordinator that published the job, the end by this worker's.
func (r *running) queueMS() float64 {
	return float64(max(r.began.Sub(r.job.QueuedAt), 0).Microseconds()) / 1000
}

// link returns a link to the previous attempt. If that attempt left no record, the link
// goes to the span that sent the job, because the same message was delivered to that
// attempt.
func (r *running) link(sent trace.SpanContext, prior *wire.CallRecord) (trace.Link, bool) {
	switch {
	case prior == nil && r.d.Delivered == 1:
		return trace.Link{}, false
	case prior == nil:
		return trace.Link{SpanContext: sent, Attributes: []attribute.KeyValue{tracing.LinkReason.String(tracing.Redelivered)}}, sent.IsValid()
	}
	reason := tracing.TakenOver
	switch prior.State {
	case wire.Parked, wire.Granted:
		reason = tracing.Parked
	case wire.Released:
		reason = tracing.Retried
	}
	return tracing.Link(prior.Span, reason)
}

// endTrace ends the span of the attempt. It does not mark failures of the tool or of a phase,
// because these have spans of their own.
func (r *running) endTrace(end attempt.End) {
	if r.span == nil {
		return
	}
	defer r.span.End()
	if !r.span.IsRecording() {
		return
	}
	r.span.SetAttributes(tracing.CallAttempt.Int(end.Attempt))
	if end.Fence > 0 {
		r.span.SetAttributes(tracing.Fence.Int64(int64(end.Fence)))
	}
	if end.Became != "" {
		r.span.SetAttributes(tracing.CallStatus.String(end.Became))
	}
	if end.Approval != "" {
		r.span.SetAttributes(tracing.Approval.String(end.Approval))
	}
	if end.Failure != "" {
		tracing.Fail(r.span, end.Failure)
	}
}

// about returns a logger that names the call with the same keys as the coordinator.
func (c *Consumer) about(ctx context.Context, key wire.CallKey, job wire.Job) *slog.Logger {
	call := slog.String("call", string(job.CallID))
	if job.CallID == "" {
		call = slog.Int("index", key.Index)
	}
	log := c.log.With("batch", key.Batch, "session", key.Session, "tenant", key.Tenant, call, "tool", job.Tool)
	if id := tracing.ID(ctx); id != "" {
		return log.With("trace_id", id)
	}
	return log
}
