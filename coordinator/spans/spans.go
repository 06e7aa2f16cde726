// Package spans makes the spans of a coordinator. Each run of a batch has a span. Below it are
// spans for each stage, for each published job, and for each call that no worker ends.
//
//	process batch -> stage -> send call      the worker's spans follow from send call
//	                      \-> end call       a call that no worker has ended
//
// The spans of a batch belong to the agent's trace. If the agent has sent no trace, every
// driver of the batch computes the same trace id, so the batch has one trace even with several
// drivers. The workers get the trace context even if nothing is recorded.
//
// The names of spans and attributes are in internal/tracing.
package spans

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

// Options of spans. They are made once, so that a batch that is not recorded allocates no
// options.
var (
	consumer = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	producer = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer)}
)

// maxLinks is the largest number of earlier drivers' attempts to which the span of a batch
// links.
const maxLinks = 8

// Machine is the part of a batch's machine that the spans need.
type Machine interface {
	Plan() plan.Plan
	Open() []int
}

// Config holds what the spans of all batches of a coordinator share.
type Config struct {
	Tracer      trace.Tracer
	Names       wire.Names
	Coordinator string                   // the coordinator's id, for an attribute
	Fold        func(tool string) string // maps the names of all unknown tools to one name
}

// Batch holds the spans of one batch under one driver. Only the driver's goroutine uses it.
type Batch struct {
	cfg      Config
	accepted journal.Accepted
	run      trace.Span
	// carry is the trace context of run. If nothing is recorded, jobs get it as their header.
	// It never changes.
	carry bus.Header

	in      messages.Batch
	machine Machine // nil until Planned
	quiet   bool    // Replay is running: an earlier driver has made the spans of these calls
	stage   trace.Span
	// stageIndex is the index of the stage whose span is open. It has no meaning if stage is
	// nil.
	stageIndex int
	sent       map[int]job // by call
}

// job is the first publication of a job. If the poll publishes the job again, the job gets the
// same header.
type job struct {
	takeOver uint64
	header   bus.Header
}

// Begin starts the span of a batch and returns a context with it.
func Begin(ctx context.Context, cfg Config, a journal.Accepted) (context.Context, *Batch) {
	ctx = tracing.Extract(ctx, a.Header)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		// The digest must not be the seed. The audit log shows the trace id, so a reader could
		// guess arguments and test whether their digest gives this id.
		ctx = tracing.Seed(ctx, fmt.Sprint(a.Key, " ", a.Seq, " ", a.Stored.UnixNano()))
	}
	b := &Batch{cfg: cfg, accepted: a, sent: map[int]job{}}
	ctx, b.run = cfg.Tracer.Start(ctx, tracing.ProcessBatch, consumer...)
	if tracing.ID(ctx) != "" {
		b.carry = bus.Header{}
		tracing.Inject(ctx, b.carry)
	}
	return ctx, b
}

// Planned sets the calls of the batch and its machine.
func (b *Batch) Planned(in messages.Batch, m Machine) { b.in, b.machine = in, m }

// Replay runs f. Calls that end in f get no span, because an earlier driver has made their
// spans.
func (b *Batch) Replay(f func()) {
	b.quiet = true
	defer func() { b.quiet = false }()
	f()
}

// End says how a batch ended under this driver.
type End struct {
	Batch     messages.Batch
	Calls     int
	Resumed   bool // an earlier driver has left records
	Suspended bool
	Status    messages.ReplyStatus // of the reply; "": no reply
}

// End ends all spans that are open.
func (b *Batch) End(end End) {
	b.endStage()
	if b.run.IsRecording() {
		b.describe(end)
	}
	b.run.End()
}

// Fail marks the span of the batch as failed: the batch was refused, or its driver gave up.
func (b *Batch) Fail(class messages.Class) { tracing.Fail(b.run, string(class)) }

func (b *Batch) describe(end End) {
	key := b.accepted.Key
	about := []attribute.KeyValue{
		tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("process"), tracing.MessagingType.String("process"),
		tracing.MessagingDestination.String(b.cfg.Names.Of(wire.VerbBatch, anyBatch)),
		tracing.MessagingGroup.String(bus.CoordinatorsConsumer),
		tracing.Stream.String(b.cfg.Names.Stream(bus.Batches)), tracing.Sequence.Int64(int64(b.accepted.Seq)),
		tracing.Tenant.String(key.Tenant), tracing.Coordinator.String(b.cfg.Coordinator),
	}
	if in := end.Batch; in.ID != "" {
		about = append(about, tracing.ConversationID.String(string(in.Session)), tracing.Batch.String(string(in.ID)))
		if in.Round > 0 {
			about = append(about, tracing.Round.Int(in.Round))
		}
	}
	// Only a planned batch certainly names one of our providers.
	if b.machine != nil {
		about = append(about, tracing.Provider.String(string(end.Batch.Provider)),
			tracing.MessagingCount.Int(end.Calls), tracing.Stages.Int(len(b.machine.Plan().Stages)))
	}
	if end.Resumed {
		about = append(about, tracing.Resumed.Bool(true))
	}
	if end.Suspended {
		about = append(about, tracing.Suspended.Bool(true))
	}
	if end.Status != "" {
		about = append(about, tracing.BatchStatus.String(string(end.Status)))
	}
	b.run.SetAttributes(about...)
}

// Link links the span of the batch to the attempts that earlier drivers started.
func (b *Batch) Link(records []journal.CallEntry) {
	if !b.run.IsRecording() {
		return
	}
	linked := map[string]bool{}
	for _, e := range records {
		span := e.Record.Span
		link, ok := tracing.Link(span, tracing.Driven)
		if ok && !linked[span] && len(linked) < maxLinks {
			linked[span] = true
			b.run.AddLink(link)
		}
	}
}

// inStage returns a context with the span of the call's stage. For the first call of a stage,
// it begins the span.
func (b *Batch) inStage(ctx context.Context, call plan.Call) context.Context {
	if b.stage != nil && b.stageIndex != call.Stage {
		b.endStage()
	}
	if b.stage != nil {
		return trace.ContextWithSpan(ctx, b.stage)
	}
	b.stageIndex = call.Stage
	ctx, b.stage = b.cfg.Tracer.Start(ctx, tracing.Stage, trace.WithAttributes(
		tracing.StageIndex.Int(call.Stage), tracing.StageCalls.Int(len(b.machine.Plan().Stages[call.Stage])), tracing.Concurrent.Bool(call.ConcurrencySafe),
	))
	return ctx
}

func (b *Batch) endStage() {
	if b.stage != nil {
		b.stage.End()
		b.stage = nil
	}
}

// SendCall returns the header of a job and the span of its publication. The caller ends the
// span. A job that is published again gets its first header and no span.
func (b *Batch) SendCall(ctx context.Context, call plan.Call, want batch.Dispatch) (bus.Header, trace.Span) {
	none := trace.SpanFromContext(context.Background())
	if !b.run.IsRecording() {
		return b.carry, none
	}
	if first, ok := b.sent[call.Index]; ok && first.takeOver == want.TakeOver {
		return first.header, none
	}
	ctx, span := b.cfg.Tracer.Start(b.inStage(ctx, call), tracing.SendCall, producer...)
	header := bus.Header{}
	tracing.Inject(ctx, header)
	b.sent[call.Index] = job{want.TakeOver, header}
	if span.IsRecording() {
		span.SetAttributes(
			tracing.MessagingSystem.String("nats"), tracing.MessagingOperation.String("send"), tracing.MessagingType.String("send"),
			tracing.MessagingDestination.String(callTemplate(b.cfg.Names.Lane(want.Exclusive, "{pool}", anyBatch.Call(0)))),
			tracing.ConversationID.String(string(b.in.Session)), tracing.Batch.String(string(b.in.ID)),
			tracing.CallIndex.Int(call.Index), tracing.ToolCallID.String(string(call.ID)),
			tracing.ToolName.String(b.cfg.Fold(call.PlannedCall.Tool)), tracing.Pool.String(call.Pool), tracing.CallKind.String(string(call.Kind)),
		)
	}
	return header, span
}

// EndCall makes the span of a call that no worker has ended. If the stage has no open call any
// more, it also ends the span of the stage.
func (b *Batch) EndCall(ctx context.Context, r messages.Result) {
	if b.run.IsRecording() && !b.quiet && (r.Trail == nil || r.Trail.Span == "") {
		b.endCall(ctx, r)
	}
	if b.stage == nil {
		return
	}
	if open := b.machine.Open(); len(open) == 0 || b.machine.Plan().Calls[open[0]].Stage != b.stageIndex {
		b.endStage()
	}
}

func (b *Batch) endCall(ctx context.Context, r messages.Result) {
	if b.stage != nil && b.machine.Plan().Calls[r.Index].Stage == b.stageIndex {
		ctx = trace.ContextWithSpan(ctx, b.stage)
	}
	_, span := b.cfg.Tracer.Start(ctx, tracing.EndCall)
	defer span.End()
	span.SetAttributes(
		tracing.ConversationID.String(string(b.in.Session)), tracing.Batch.String(string(b.in.ID)),
		tracing.CallIndex.Int(r.Index), tracing.ToolCallID.String(string(r.CallID)), tracing.ToolName.String(b.cfg.Fold(r.Tool)),
		tracing.CallKind.String(string(r.Kind)), tracing.CallStatus.String(string(r.Status)), tracing.CallAttempt.Int(r.Attempt),
	)
	if r.Status != messages.StatusSkipped && r.Status != messages.StatusAborted {
		tracing.Fail(span, messages.ErrorType(r.Status, r.Err))
	}
}

// BeginDecision starts the span of a decision, in the trace of its header.
func BeginDecision(ctx context.Context, tracer trace.Tracer, h bus.Header) (context.Context, trace.Span) {
	return tracer.Start(tracing.Extract(ctx, h), tracing.Decide, consumer...)
}

// DescribeDecision adds to the span which question was answered, and how. It leaves out the
// person's reason.
func DescribeDecision(span trace.Span, n wire.Names, d messages.Decision) {
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

// anyBatch has placeholders instead of ids. OpenTelemetry's conventions ask for the template
// of a subject, not for the subject.
var anyBatch = wire.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}

// callTemplate turns the subject of anyBatch's call 0 into the template of the subjects of all
// calls.
func callTemplate(subject string) string { return strings.TrimSuffix(subject, "0") + "{index}" }
