// Package tracing defines what coordinators, workers, the agent's client and the commands
// report about a batch to an OpenTelemetry backend: the names of spans and attributes, and how
// trace context is passed on.
//
//	agent        send toolfleet.batch             CLIENT
//	coordinator   process toolfleet.batch         CONSUMER   one for each driver of the batch:
//	                                                         several if it is suspended or
//	                                                         taken over
//	               stage                          INTERNAL
//	                send toolfleet.call           PRODUCER
//	worker           process toolfleet.call       CONSUMER   one per attempt, with a link to
//	                                                         the attempt before
//	                  execute_tool {name}         INTERNAL
//	                   validate, semantic, pre-hooks, permissions, execute, post-hooks
//	coordinator     end toolfleet.call            INTERNAL   for a call that no worker has
//	                                                         ended, instead of send
//	                                                         toolfleet.call and those below
//
// Traces are for people. No code makes a decision with a trace or waits for one, and a trace
// may be lost. A trace has no arguments, results or texts of tools, unless the operator asks
// for them (trace_content). A failure marks the span in which it happened, and the span of the
// call that it ended. It does not mark the span of the batch, because driving the batch did
// not fail.
//
// Trace context is passed on as W3C trace context, in headers. Header names are written in
// lower case, and read in any case. Baggage is not passed on, because it is private to the
// agent. Without a tracer, the agent's context is passed on unchanged.
//
// Package telemetry builds the tracer and sends its spans.
package tracing

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Scope is the instrumentation scope of toolfleet's spans.
const Scope = "github.com/toolfleet/toolfleet"

// OrSilent returns t. If t is nil, it returns a tracer that makes no spans and passes the
// trace context on.
func OrSilent(t trace.Tracer) trace.Tracer {
	if t == nil {
		return noop.NewTracerProvider().Tracer(Scope)
	}
	return t
}

// Header carries trace context. Get accepts names in any case. Set writes a name as it is
// given.
type Header interface {
	Get(name string) string
	Set(name, value string)
}

// carrier makes a Header usable by a propagator.
type carrier struct{ Header }

func (carrier) Keys() []string { return nil }

// longestState limits the tracestate, in bytes, because every call of a batch carries it. The
// specification asks for a limit of at least 512 bytes. A longer tracestate is dropped.
const longestState = 512

func (c carrier) Get(name string) string {
	value := c.Header.Get(name)
	if name == "tracestate" && len(value) > longestState {
		return ""
	}
	return value
}

var w3c = propagation.TraceContext{}

// Extract returns ctx with the remote span context of a header. If the header has no span
// context that can be read, the returned context has an empty one.
func Extract(ctx context.Context, h Header) context.Context {
	return w3c.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier{h})
}

// Inject writes the span context of ctx, if there is one, into a header.
func Inject(ctx context.Context, h Header) { w3c.Inject(ctx, carrier{h}) }

// ID returns the trace id of ctx as hex, or "".
func ID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

// SampledID is like ID, but it returns "" if the trace is not sampled. An exemplar must not
// point to a trace that is not sampled.
func SampledID(ctx context.Context) string {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		return ID(ctx)
	}
	return ""
}

// pair is a Header for exactly the two headers that Inject writes.
type pair struct{ parent, state string }

func (p *pair) Get(name string) string {
	switch {
	case strings.EqualFold(name, "traceparent"):
		return p.parent
	case strings.EqualFold(name, "tracestate"):
		return p.state
	}
	return ""
}

func (p *pair) Set(name, value string) {
	switch name {
	case "traceparent":
		p.parent = value
	case "tracestate":
		p.state = value
	}
}

// Parent returns the span of ctx as a traceparent, which can be stored for a later [Link].
// It returns "" if there is no span, or it is not sampled.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	var p pair
	Inject(ctx, &p)
	return p.parent
}

// Link returns a link to a stored span. reason says why the span is linked. ok is false if
// parent is not a traceparent.
func Link(parent, reason string) (link trace.Link, ok bool) {
	sc := trace.SpanContextFromContext(Extract(context.Background(), &pair{parent: parent}))
	return trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{LinkReason.String(reason)}}, sc.IsValid()
}

// Environ returns the trace context of ctx as the environment variables TRACEPARENT and
// TRACESTATE of OpenTelemetry's specification, or none if there is no context.
func Environ(ctx context.Context) []string {
	var p pair
	Inject(ctx, &p)
	var env []string
	if p.parent != "" {
		env = append(env, "TRACEPARENT="+p.parent)
	}
	if p.state != "" {
		env = append(env, "TRACESTATE="+p.state)
	}
	return env
}

// Fail marks a span as failed. errorType is a status or code of package messages, never
// free text.
func Fail(span trace.Span, errorType string) {
	span.SetStatus(codes.Error, errorType)
	span.SetAttributes(ErrorType.String(errorType))
}

// MarkRefused records in the span of ctx that the sandbox refused something to a command.
func MarkRefused(ctx context.Context) {
	trace.SpanFromContext(ctx).SetAttributes(Refused.Bool(true))
}
