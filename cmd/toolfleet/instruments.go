package main

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// instruments are the logger, metrics and tracer that all parts of one process share.
type instruments struct {
	log     *slog.Logger
	metrics prometheus.Registerer // nil: not collected
	tracer  trace.Tracer          // nil: no traces
	flush   func()                // sends the last traces; call it at the end; takes a bounded time
}

// The service names of toolfleet's processes in traces, unless OTEL_SERVICE_NAME sets another.
const (
	coordinatorService = "toolfleet-coordinator"
	httpService        = "toolfleet-http"
	wholeService       = "toolfleet" // commands, and a whole fleet in one process
)

// openInstruments returns the instruments of a process. The OTEL_ variables say where its traces
// go.
func openInstruments(a *command.App, service string, log *slog.Logger, metrics prometheus.Registerer) (i instruments, err error) {
	i = instruments{log: log, metrics: metrics}
	if i.tracer, i.flush, err = telemetry.Traces(a.Ctx, service, daemon.ThisBuild().Release(), log); err != nil {
		return i, command.Usage(err)
	}
	return i, nil
}

// noting is a tracer that records the trace id of its first sampled span. Not for concurrent use.
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

// heldBack is a writer that keeps its text in memory until release is called, and then writes
// through.
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
