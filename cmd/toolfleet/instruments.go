package main

import (
	"log/slog"

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
