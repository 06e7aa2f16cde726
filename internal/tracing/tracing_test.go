package tracing_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// tracer returns the tracer of a separate process.
func tracer(options ...sdktrace.TracerProviderOption) trace.Tracer {
	options = append(options, sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder()), sdktrace.WithIDGenerator(tracing.IDs{}))
	return sdktrace.NewTracerProvider(options...).Tracer(tracing.Scope)
}

func TestContextTravelsInAnyCase(t *testing.T) {
	for name, state := range map[string]string{"traceparent": "tracestate", "Traceparent": "Tracestate", "TRACEPARENT": "TRACESTATE", "traceParent": "traceState"} {
		in := bus.Header{name: {parent}, state: {"vendor=1"}, "baggage": {"who=me"}}
		out := bus.Header{}
		tracing.Inject(tracing.Extract(t.Context(), in), out)
		if diff := cmp.Diff(bus.Header{"traceparent": {parent}, "tracestate": {"vendor=1"}}, out); diff != "" {
			t.Errorf("%s is handed on as (-want +got):\n%s", name, diff)
		}
	}
}

func TestGarbageIsNoContext(t *testing.T) {
	for _, text := range []string{
		"", "-", "---", "00", strings.Repeat("0", 1<<16), strings.Replace(parent, "00-", "ff-", 1), strings.ToUpper(parent), parent + "-more",
		parent[:len(parent)-1], "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		parent + "\r\nNats-Msg-Id: 1", " " + parent, "\x00\xff",
	} {
		out := bus.Header{}
		before, span := tracer().Start(t.Context(), "what ran here before")
		tracing.Inject(tracing.Extract(before, bus.Header{"traceparent": {text}, "tracestate": {"a=b"}}), out)
		span.End()
		if len(out) != 0 {
			t.Errorf("%.80q is handed on as %v", text, out)
		}
	}
	if got := tracing.ID(tracing.Extract(t.Context(), bus.Header(nil))); got != "" {
		t.Errorf("no headers are trace %s", got)
	}
}

func TestAnOversizedStateIsDropped(t *testing.T) {
	for size, kept := range map[int]bool{100: true, 512: true, 513: false, 1 << 20: false} {
		var state strings.Builder
		for state.Len()+20 < size && size < 1000 {
			state.WriteString(string(rune('a'+state.Len()/20%26)) + string(rune('a'+state.Len()/20/26)) + "=" + strings.Repeat("x", 16) + ",")
		}
		state.WriteString("z=" + strings.Repeat("y", size-state.Len()-2))
		out := bus.Header{}
		tracing.Inject(tracing.Extract(t.Context(), bus.Header{"traceparent": {parent}, "tracestate": {state.String()}}), out)
		if out.Get("traceparent") != parent {
			t.Errorf("a state of %d bytes takes the parent with it: %v", size, out)
		}
		if (out.Get("tracestate") == state.String()) != kept || !kept && out.Get("tracestate") != "" {
			t.Errorf("a state of %d bytes is handed on with %d", size, len(out.Get("tracestate")))
		}
	}
}

// Two processes start the same batch: it has one trace.
func TestASeedIsOneTrace(t *testing.T) {
	begin := func(seed string) trace.SpanContext {
		_, span := tracer().Start(tracing.Seed(t.Context(), seed), tracing.ProcessBatch)
		return span.SpanContext()
	}
	a, again, other := begin("batch a"), begin("batch a"), begin("batch b")
	if a.TraceID() != again.TraceID() {
		t.Error("the same batch is two traces")
	}
	if a.TraceID() == other.TraceID() {
		t.Error("two batches are one trace")
	}
	if a.SpanID() == again.SpanID() {
		t.Error("two spans have one id")
	}
	ctx := tracing.Extract(tracing.Seed(t.Context(), "batch a"), bus.Header{"traceparent": {parent}})
	if _, span := tracer().Start(ctx, "x"); span.SpanContext().TraceID().String() != parent[3:35] {
		t.Error("a seed goes before the context of the agent")
	}
}

func TestIDsAreRandom(t *testing.T) {
	traces, spans := map[trace.TraceID]bool{}, map[trace.SpanID]bool{}
	const n = 1000
	for range n {
		tr, span := tracing.IDs{}.NewIDs(t.Context())
		traces[tr], spans[span] = true, true
		spans[tracing.IDs{}.NewSpanID(t.Context(), tr)] = true
	}
	if len(traces) != n || len(spans) != 2*n {
		t.Errorf("%d traces of %d, %d spans of %d", len(traces), n, len(spans), 2*n)
	}
}

func TestEnviron(t *testing.T) {
	if env := tracing.Environ(t.Context()); env != nil {
		t.Errorf("without a context: %q", env)
	}
	ctx := tracing.Extract(t.Context(), bus.Header{"traceparent": {parent}, "tracestate": {"a=b"}})
	if diff := cmp.Diff([]string{"TRACEPARENT=" + parent, "TRACESTATE=a=b"}, tracing.Environ(ctx)); diff != "" {
		t.Error(diff)
	}
	// A silent tracer passes on the trace context that it gets.
	ctx, _ = tracing.OrSilent(nil).Start(ctx, tracing.ExecuteTool)
	if got := tracing.Environ(ctx); got[0] != "TRACEPARENT="+parent {
		t.Errorf("with tracing off a tool gets %q", got)
	}
}

func TestLink(t *testing.T) {
	ctx, span := tracer().Start(t.Context(), tracing.ProcessCall)
	noted := tracing.Parent(ctx)
	link, ok := tracing.Link(noted, tracing.Retried)
	if want := span.SpanContext(); !ok || link.SpanContext.TraceID() != want.TraceID() || link.SpanContext.SpanID() != want.SpanID() || link.Attributes[0].Value.AsString() != tracing.Retried {
		t.Errorf("%q makes %+v, %v", noted, link, ok)
	}
	for _, none := range []string{"", "garbage", parent[:20]} {
		if link, ok := tracing.Link(none, tracing.Retried); ok {
			t.Errorf("%q makes %+v", none, link)
		}
	}
	unseen, _ := tracer(sdktrace.WithSampler(sdktrace.NeverSample())).Start(t.Context(), tracing.ProcessCall)
	if got := tracing.Parent(unseen); got != "" {
		t.Errorf("the traceparent of a span that is not sampled is %q, want none", got)
	}
	if got := tracing.Parent(context.Background()); got != "" {
		t.Errorf("the traceparent without a span is %q, want none", got)
	}
}

func TestSampledID(t *testing.T) {
	unsampled := parent[:len(parent)-1] + "0"
	for text, want := range map[string]string{parent: parent[3:35], unsampled: ""} {
		ctx := tracing.Extract(t.Context(), bus.Header{"traceparent": {text}})
		if got := tracing.SampledID(ctx); got != want {
			t.Errorf("SampledID of %s is %q", text, got)
		}
		if got := tracing.ID(ctx); got != parent[3:35] {
			t.Errorf("ID of %s is %q", text, got)
		}
	}
}
