package lane

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What became of an attempt that ended without a result, as its span says it.
const (
	parked     = "parked"
	released   = "released"
	handedBack = "handed_back"
	// leaseLost is the failure of an attempt that could no longer prove its claim.
	leaseLost = "lease_lost"
)

// anyBatch stands for the ids in a subject's name: the semantic conventions want a template there.
var anyBatch = wire.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}

// trace opens the span of the attempt. It is called only when there is something to do. The span
// continues the trace that came with the delivery, and links to the attempt before it where one is
// known.
func (a *attempt) trace(ctx context.Context) context.Context {
	if a.cfg.Tracer == nil {
		return ctx
	}
	sent := trace.SpanContextFromContext(ctx)
	ctx, span := a.cfg.Tracer.Start(ctx, tracing.ProcessCall, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(a.began))
	a.running = trace.ContextWithSpan(a.running, span)
	a.parent = tracing.Parent(ctx)
	// A new trace, which the logger does not know yet.
	if id := tracing.ID(ctx); !sent.IsValid() && id != "" {
		a.log = a.log.With("trace_id", id)
	}
	if !span.IsRecording() {
		return ctx
	}
	if link, ok := a.link(sent); ok {
		span.AddLink(link)
	}
	d, key := a.delivery(), a.key
	span.SetAttributes(
		tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("process"), tracing.MessagingType.String("process"),
		tracing.MessagingDestination.String(strings.TrimSuffix(a.conn.Names().Lane(!a.job.ConcurrencySafe, "{pool}", anyBatch.Call(0)), "0")+"{index}"),
		tracing.MessagingGroup.String(a.pool), tracing.Pool.String(a.pool),
		tracing.Stream.String(a.conn.Names().Stream(bus.Jobs)), tracing.Sequence.Int64(int64(d.Seq)), tracing.DeliveryCount.Int(d.Delivered),
		tracing.Tenant.String(key.Tenant), tracing.ConversationID.String(string(a.job.Session)), tracing.Batch.String(string(a.job.Batch)),
		tracing.CallIndex.Int(a.job.Index), tracing.ToolCallID.String(string(a.job.CallID)), tracing.ToolName.String(a.job.Tool),
		tracing.CallKind.String(string(a.job.Kind)), tracing.QueueWait.Float64(a.queueMS()), tracing.Worker.String(a.cfg.Worker),
	)
	return ctx
}

// link returns a link to the attempt before this one. If that attempt left no record, the link is
// to the message, which was delivered to it too.
func (a *attempt) link(sent trace.SpanContext) (trace.Link, bool) {
	prior := a.prior()
	switch {
	case prior == nil && a.delivery().Delivered == 1:
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

// endTrace closes the span of the attempt. A failure of the tool or of a phase is marked on their
// own spans and not here.
func (a *attempt) endTrace(ctx context.Context, err error) {
	if a.cfg.Tracer == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(tracing.CallAttempt.Int(a.attempts()))
	if record, _ := a.mine(); a.holds() {
		span.SetAttributes(tracing.Fence.Int64(int64(record.Fence)))
	}
	if a.became != "" {
		span.SetAttributes(tracing.CallStatus.String(a.became))
	}
	switch {
	case errors.Is(context.Cause(a.running), ErrLeaseLost):
		tracing.Fail(span, leaseLost)
	case a.failure != "":
		tracing.Fail(span, a.failure)
	case err != nil && !errors.Is(err, ErrDraining):
		tracing.Fail(span, string(messages.CodeInternal))
	}
}

// sign adds to a result what is known only at its end: its hash and the span. Call it again after
// every change of the outcome.
func (a *attempt) sign(r *messages.Result) {
	var trail messages.Trail
	if r.Trail != nil {
		trail = *r.Trail
	}
	trail.ResultHash, trail.Span = r.Outcome.Hash(), a.parent
	r.Trail = &trail
}

// about returns a logger whose lines name the call, with the same keys as in the coordinator's
// lines.
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
