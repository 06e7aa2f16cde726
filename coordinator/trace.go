package coordinator

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The options of every span of a kind, made once: a drive that nobody records pays for none of them.
var (
	consumes = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	produces = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer)}
)

// maxLinks bounds the attempts of earlier drives that a drive's span points to.
const maxLinks = 8

// spans is the part of a batch's trace that one drive of it makes. All of it belongs to the goroutine of run.
type spans struct {
	drive trace.Span
	// carry is the context of the drive for what follows from it, where nothing is recorded. It is never changed.
	carry bus.Header

	quiet      bool       // what is told now was so before
	stage      trace.Span // that runs; nil: none does
	stageIndex int
	sent       map[int]sending // by call
}

// sending is the first publish of a job. The poll publishes the same job again under the same header.
type sending struct {
	takeOver uint64
	header   bus.Header
}

// beginTrace begins the span of the drive, as part of the agent's trace. Where the agent brought none, it is one that
// every driver of the batch begins alike. Who else reads the log holds mu.
func (d *drive) beginTrace(ctx context.Context) context.Context {
	ctx = tracing.Extract(ctx, d.accepted.Header)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		a := d.accepted // not its digest: the id of the trace is on record, and would let anybody find the arguments by trying
		ctx = tracing.Seed(ctx, fmt.Sprint(a.Key, " ", a.Seq, " ", a.Stored.UnixNano()))
	}
	ctx, d.spans.drive = d.cfg.Tracer.Start(ctx, tracing.ProcessBatch, consumes...)
	if id := tracing.ID(ctx); id != "" {
		d.spans.carry = bus.Header{}
		tracing.Inject(ctx, d.spans.carry)
		d.mu.Lock()
		d.log = d.log.With("trace_id", id)
		d.mu.Unlock()
	}
	return ctx
}

// endTrace ends what the drive has begun, whatever it came to.
func (d *drive) endTrace() {
	d.endStage()
	if d.spans.drive.IsRecording() {
		d.describe(d.spans.drive)
	}
	d.spans.drive.End()
}

// failTrace marks the span of the drive: the batch was refused, by this class, or could not be driven on.
func (d *drive) failTrace(class messages.Class) { tracing.Fail(d.spans.drive, string(class)) }

// stuck marks the span of a drive that somebody else has to go on with, unless that is only because we end.
func (d *drive) stuck(ctx context.Context) {
	if ctx.Err() == nil {
		d.failTrace(messages.ClassInternal)
	}
}

// describe says of the span of the drive which batch it was and what became of it.
func (d *drive) describe(span trace.Span) {
	key := d.accepted.Key
	about := []attribute.KeyValue{
		tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("process"), tracing.MessagingType.String("process"),
		tracing.MessagingDestination.String(d.names.Of(wire.VerbBatch, anyBatch)),
		tracing.MessagingGroup.String(bus.CoordinatorsConsumer),
		tracing.Stream.String(d.names.Stream(bus.Batches)), tracing.Sequence.Int64(int64(d.accepted.Seq)),
		tracing.Tenant.String(key.Tenant), tracing.Coordinator.String(d.id),
	}
	if b := d.in.Batch; b.ID != "" {
		about = append(about, tracing.ConversationID.String(string(b.Session)), tracing.Batch.String(string(b.ID)))
		if b.Round > 0 {
			about = append(about, tracing.Round.Int(b.Round))
		}
	}
	if d.machine != nil { // whose provider is one that we know
		about = append(about, tracing.Provider.String(string(d.in.Batch.Provider)),
			tracing.MessagingCount.Int(len(d.in.Calls)), tracing.Stages.Int(len(d.machine.Plan().Stages)))
	}
	if d.resumed {
		about = append(about, tracing.Resumed.Bool(true))
	}
	if !d.resting.IsZero() {
		about = append(about, tracing.Rested.Bool(true))
	}
	if d.reply != nil && d.fatal == nil {
		about = append(about, tracing.BatchStatus.String(string(d.reply.Status)))
	}
	span.SetAttributes(about...)
}

// linkTo points to the attempts that earlier drives have left behind.
func (d *drive) linkTo(records []journal.CallEntry) {
	if !d.spans.drive.IsRecording() {
		return
	}
	linked := map[string]bool{}
	for _, e := range records {
		span := e.Record.Span
		link, ok := tracing.Link(span, tracing.Driven)
		if ok && !linked[span] && len(linked) < maxLinks {
			linked[span] = true
			d.spans.drive.AddLink(link)
		}
	}
}

// inStage is the context of the stage of a call, whose span begins with the first job of it that is published.
func (d *drive) inStage(ctx context.Context, call plan.Call) context.Context {
	if d.spans.stage != nil && d.spans.stageIndex != call.Stage {
		d.endStage()
	}
	if d.spans.stage != nil {
		return trace.ContextWithSpan(ctx, d.spans.stage)
	}
	d.spans.stageIndex = call.Stage
	ctx, d.spans.stage = d.cfg.Tracer.Start(ctx, tracing.Stage, trace.WithAttributes(
		tracing.StageIndex.Int(call.Stage), tracing.StageCalls.Int(len(d.machine.Plan().Stages[call.Stage])), tracing.Concurrent.Bool(call.ConcurrencySafe),
	))
	return ctx
}

// leaveStage ends the span of the stage once no call of it is open.
func (d *drive) leaveStage() {
	if d.spans.stage == nil {
		return
	}
	if open := d.machine.Open(); len(open) == 0 || d.machine.Plan().Calls[open[0]].Stage != d.spans.stageIndex {
		d.endStage()
	}
}

func (d *drive) endStage() {
	if d.spans.stage != nil {
		d.spans.stage.End()
		d.spans.stage = nil
	}
}

// sendCall is the header of a job, and the span of its being published, which the caller ends. A job that is published
// again has the header of the first time, and no span.
func (d *drive) sendCall(ctx context.Context, call plan.Call, want batch.Dispatch) (bus.Header, trace.Span) {
	none := trace.SpanFromContext(context.Background())
	if !d.spans.drive.IsRecording() {
		return d.spans.carry, none
	}
	if first, ok := d.spans.sent[call.Index]; ok && first.takeOver == want.TakeOver {
		return first.header, none
	}
	ctx, span := d.cfg.Tracer.Start(d.inStage(ctx, call), tracing.SendCall, produces...)
	header := bus.Header{}
	tracing.Inject(ctx, header)
	d.spans.sent[call.Index] = sending{want.TakeOver, header}
	if span.IsRecording() {
		span.SetAttributes(
			tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("send"), tracing.MessagingType.String("send"),
			tracing.MessagingDestination.String(callTemplate(d.names.Lane(want.Exclusive, "{pool}", anyBatch.Call(0)))),
			tracing.ConversationID.String(string(d.in.Batch.Session)), tracing.Batch.String(string(d.in.Batch.ID)),
			tracing.CallIndex.Int(call.Index), tracing.ToolCallID.String(string(call.ID)),
			tracing.ToolName.String(d.catalog.fold(call.PlannedCall.Tool)), tracing.Pool.String(call.Pool), tracing.CallKind.String(string(call.Kind)),
		)
	}
	return header, span
}

// endCall is the span of a call that no worker has brought to its end: nobody could run it, or nobody did. What was so
// before this drive was told by an earlier one.
func (d *drive) endCall(ctx context.Context, r messages.Result) {
	if !d.spans.drive.IsRecording() || d.spans.quiet || r.Trail != nil && r.Trail.Span != "" {
		return
	}
	if d.spans.stage != nil && d.machine.Plan().Calls[r.Index].Stage == d.spans.stageIndex {
		ctx = trace.ContextWithSpan(ctx, d.spans.stage)
	}
	_, span := d.cfg.Tracer.Start(ctx, tracing.EndCall)
	defer span.End()
	span.SetAttributes(
		tracing.ConversationID.String(string(d.in.Batch.Session)), tracing.Batch.String(string(d.in.Batch.ID)),
		tracing.CallIndex.Int(r.Index), tracing.ToolCallID.String(string(r.CallID)), tracing.ToolName.String(d.catalog.fold(r.Tool)),
		tracing.CallKind.String(string(r.Kind)), tracing.CallStatus.String(string(r.Status)), tracing.CallAttempt.Int(r.Attempt),
	)
	if r.Status != messages.StatusSkipped && r.Status != messages.StatusAborted {
		tracing.Fail(span, messages.ErrorType(r.Status, r.Err))
	}
}

// describeDecision says of a span which question a person has answered, and how: what they wrote beside it is not in it.
func describeDecision(span trace.Span, n wire.Names, d messages.Decision) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("process"), tracing.MessagingType.String("process"),
		tracing.MessagingDestination.String(callTemplate(n.OfCall(wire.VerbDecide, anyBatch.Call(0)))),
		tracing.ConversationID.String(string(d.Session)), tracing.Batch.String(string(d.Batch)), tracing.Tenant.String(string(d.Tenant)),
		tracing.CallIndex.Int(d.Index), tracing.ToolCallID.String(string(d.CallID)),
		tracing.Approval.String(d.Approval), tracing.Verdict.String(string(logfields.Short(d.Verdict))),
	)
}

// anyBatch stands for the ids in the name of a subject, as the conventions want it.
var anyBatch = wire.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}

// callTemplate is the subject of the first call of anyBatch, made the name of every such subject.
func callTemplate(subject string) string { return strings.TrimSuffix(subject, "0") + "{index}" }
