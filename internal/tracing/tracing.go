// Package tracing is what both halves, the agent's client and the commands say about a batch to an OpenTelemetry backend: the
// names of spans and attributes, and how the context of a trace travels.
//
//	agent        send toolfleet.batch             CLIENT
//	coordinator   process toolfleet.batch         CONSUMER   one for each drive: a batch that rests or is taken over has several
//	               stage                          INTERNAL
//	                send toolfleet.call           PRODUCER
//	worker           process toolfleet.call       CONSUMER   one for each attempt; linked to the one before it
//	                  execute_tool {name}         INTERNAL
//	                   validate, semantic, pre-hooks, permissions, execute, post-hooks
//	coordinator     end toolfleet.call            INTERNAL   of a call that no worker has ended, in the place of the above
//
// A trace is for people: nothing decides by it, nothing waits for it, and it may be lost. It holds no arguments, no results and
// no words of tools, unless the operator asks for them (trace_content). A failure marks the span in which it happened, and
// the call that it ended; a batch whose calls failed was still driven well.
//
// Context travels as W3C trace context, in headers that are written in lower case and read in any case; baggage does not travel,
// for what an agent puts there is nobody's business. Where no tracer is configured the context of the agent is handed on untouched.
//
// Building a tracer, and sending what it makes, is left to internal/telemetry.
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

// Scope is the instrumentation scope of our spans.
const Scope = "github.com/toolfleet/toolfleet"

// OrSilent is the tracer, or one that makes nothing and hands on the context that it is given.
func OrSilent(t trace.Tracer) trace.Tracer {
	if t == nil {
		return noop.NewTracerProvider().Tracer(Scope)
	}
	return t
}

// Header is where context travels: it is read in any case and written as given.
type Header interface {
	Get(name string) string
	Set(name, value string)
}

// carrier is a header as a propagator wants it.
type carrier struct{ Header }

func (carrier) Keys() []string { return nil }

// longestState bounds the tracestate that is handed on, with every call of a batch: the specification asks for this much.
const longestState = 512

func (c carrier) Get(name string) string {
	value := c.Header.Get(name)
	if name == "tracestate" && len(value) > longestState {
		return ""
	}
	return value
}

var w3c = propagation.TraceContext{}

// Extract is ctx with the remote context that a header holds, if it holds one that can be read.
func Extract(ctx context.Context, h Header) context.Context {
	return w3c.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier{h})
}

// Inject writes the context of ctx into a header, if there is one.
func Inject(ctx context.Context, h Header) { w3c.Inject(ctx, carrier{h}) }

// ID is the id of the trace that ctx belongs to, as hex; "" when it belongs to none.
func ID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

// SampledID is ID for a trace that is being recorded: what an exemplar may point to.
func SampledID(ctx context.Context) string {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		return ID(ctx)
	}
	return ""
}

// pair is a header with room for what Inject writes.
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

// Parent is the span of ctx as a traceparent, to be noted down for a later [Link]; "" when there is none or it is not recorded.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	var p pair
	Inject(ctx, &p)
	return p.parent
}

// Link makes a link to a span that was noted down, with the reason for it. Not ok: there is nothing to link to.
func Link(parent, reason string) (link trace.Link, ok bool) {
	sc := trace.SpanContextFromContext(Extract(context.Background(), &pair{parent: parent}))
	return trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{LinkReason.String(reason)}}, sc.IsValid()
}

// Environ is the context of ctx as variables for a program: TRACEPARENT and TRACESTATE, as OpenTelemetry's specification
// of environment variables as carriers names them. None when there is no context.
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

// Fail marks a span as the place of a failure of this type: a status or code of ours, never a text.
func Fail(span trace.Span, errorType string) {
	span.SetStatus(codes.Error, errorType)
	span.SetAttributes(ErrorType.String(errorType))
}
