package main

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// instruments are what a process shows of its work by. All parts of one process share them.
type instruments struct {
	log     *slog.Logger
	metrics prometheus.Registerer // nil: nobody reads them
	tracer  trace.Tracer          // nil: nobody wants traces
	flush   func()                // sends the last traces; for the very end, and never for long
}

// The names under which processes appear in traces, unless OTEL_SERVICE_NAME gives another.
const (
	coordinatorService = "toolfleet-coordinator"
	workerService      = "toolfleet-worker"
	wholeService       = "toolfleet" // commands, and a whole fleet in one process
)

// instruments opens what traces go to, by the OTEL_ variables.
func (a *app) instruments(service string, log *slog.Logger, metrics prometheus.Registerer) (i instruments, err error) {
	i = instruments{log: log, metrics: metrics}
	if i.tracer, i.flush, err = telemetry.Traces(a.ctx, service, build().release(), log); err != nil {
		return i, usage{err}
	}
	return i, nil
}

// noting is a tracer that notes the trace of the first span that is kept. For one goroutine.
type noting struct {
	trace.Tracer
	traceID string
}

func (n *noting) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := n.Tracer.Start(ctx, name, options...)
	if c := span.SpanContext(); c.IsSampled() && span.IsRecording() && n.traceID == "" {
		n.traceID = c.TraceID().String()
	}
	return ctx, span
}

// heldBack keeps what is written to it until it is released, and then passes it on.
type heldBack struct {
	to io.Writer

	mu       sync.Mutex
	released bool   // guarded by mu
	lines    []byte // guarded by mu
}

func (h *heldBack) Write(lines []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return h.to.Write(lines)
	}
	h.lines = append(h.lines, lines...)
	return len(lines), nil
}

func (h *heldBack) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released = true; len(h.lines) > 0 {
		_, _ = h.to.Write(h.lines)
		h.lines = nil
	}
}
