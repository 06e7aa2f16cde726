package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

// recorded is a program's own OpenTelemetry, with a recorder of its spans.
func recorded() (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)), r
}

// fleetDoor answers every batch. It returns the headers of the requests.
func fleetDoor(ctx context.Context, t *testing.T, conn *bus.Conn) <-chan bus.Header {
	t.Helper()
	if err := provision.Ensure(ctx, conn, provision.Config{}); err != nil {
		t.Fatal(err)
	}
	headers := make(chan bus.Header, 10)
	hear := func(m bus.Msg) { headers <- m.Header }
	door(t, conn, "toolfleet.run.>", 1<<20, func(m bus.Msg) any {
		hear(m)
		if strings.Contains(m.Subject, ".refused") {
			return messages.Reply{V: 1, Status: messages.ReplyRefused, Error: &messages.Refusal{Class: messages.ClassMissingID, Message: "canary"}}
		}
		return messages.Reply{V: 1, Status: messages.ReplyCompleted, Reinjection: []byte(`{}`)}
	})
	stop, err := conn.Subscribe("toolfleet.batch.>", "", hear)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return headers
}

var batchB = messages.Batch{ID: "b", Session: "s", Provider: messages.Canonical, Message: []byte(`{"calls":[]}`)}

// TestABatchContinuesTheTraceOfItsAgent sends batches under a span of the program, without any
// option.
func TestABatchContinuesTheTraceOfItsAgent(t *testing.T) {
	c, conn, ctx := connected(t)
	headers := fleetDoor(ctx, t, conn)
	provider, spans := recorded()
	ctx, turn := provider.Tracer("agent").Start(ctx, "turn")
	if _, err := c.Run(ctx, batchB); err != nil {
		t.Fatal(err)
	}
	if err := c.Submit(ctx, batchB); err != nil {
		t.Fatal(err)
	}
	turn.End()
	ended := spans.Ended()
	for i, kind := range []trace.SpanKind{trace.SpanKindClient, trace.SpanKindProducer} {
		span := ended[i]
		if span.Name() != tracing.SendBatch || span.SpanKind() != kind || span.Parent().SpanID() != turn.SpanContext().SpanID() || span.Status().Code != codes.Unset {
			t.Errorf("span %d is %s %v below %v: %v", i, span.Name(), span.SpanKind(), span.Parent().SpanID(), span.Status())
		}
		far := trace.SpanContextFromContext(tracing.Extract(t.Context(), <-headers))
		if far.SpanID() != span.SpanContext().SpanID() || far.TraceID() != turn.SpanContext().TraceID() || !far.IsSampled() {
			t.Errorf("the fleet continues %+v, want span %v", far, span.SpanContext().SpanID())
		}
	}
	want := map[attribute.Key]string{
		"messaging.system": "nats", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.destination.template": "toolfleet.run.{tenant}.{session}.{batch}", "toolfleet.tenant": "_",
		"gen_ai.conversation.id": "s", "toolfleet.batch.id": "b", "gen_ai.provider.name": "canonical", "toolfleet.batch.status": "completed",
	}
	if diff := cmp.Diff(want, attributes(ended[0])); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

func attributes(span sdktrace.ReadOnlySpan) map[attribute.Key]string {
	all := map[attribute.Key]string{}
	for _, a := range span.Attributes() {
		all[a.Key] = a.Value.String()
	}
	return all
}

func TestATracerOfOurOwn(t *testing.T) {
	_, conn, ctx := connected(t)
	headers := fleetDoor(ctx, t, conn)
	provider, spans := recorded()
	c, err := client.Connect(ctx, fleet.Options{}, clientconn.Over(conn), client.Tracer(provider.Tracer("toolfleet")))
	if err != nil {
		t.Fatal(err)
	}
	b := batchB
	b.ID = "refused"
	_, err = c.Run(ctx, b)
	var refusal *messages.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("a refused batch: %v", err)
	}
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Parent().IsValid() || ended[0].Status().Code != codes.Error {
		t.Fatalf("spans %+v", ended)
	}
	got := attributes(ended[0])
	if got["error.type"] != "missing_id" || got["toolfleet.batch.status"] != "refused" || ended[0].Status().Description != "missing_id" {
		t.Errorf("the span of a refused batch says %v, %v", got, ended[0].Status())
	}
	if h := <-headers; h.Get("traceparent") == "" {
		t.Errorf("headers %v", h)
	}
}

// TestContextGoesOnWithoutATracer: an agent that makes no traces sends no trace context. If the
// agent's traces are made elsewhere, their context is passed on.
func TestContextGoesOnWithoutATracer(t *testing.T) {
	c, conn, ctx := connected(t)
	headers := fleetDoor(ctx, t, conn)
	if _, err := c.Run(ctx, batchB); err != nil {
		t.Fatal(err)
	}
	if h := <-headers; h.Get("traceparent") != "" {
		t.Errorf("nobody traces, and the fleet gets %v", h)
	}
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	if err := c.Submit(tracing.Extract(ctx, bus.Header{"traceparent": {parent}}), batchB); err != nil {
		t.Fatal(err)
	}
	if h := <-headers; h.Get("traceparent") != parent {
		t.Errorf("the fleet gets %v, want %s as it came", h, parent)
	}
}
