package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// WorkerService is the service name of a worker in traces, unless OTEL_SERVICE_NAME sets another.
const WorkerService = "toolfleet-worker"

// Worker holds the parts of a worker except its settings.
type Worker struct {
	Tools   *tool.Registry
	Policy  *config.Policy
	Roots   []string // paths of the folder of file tools, the canonical path first
	Version string   // the version of the program, for status
	// Servers returns the states of the programs and services that bring tools. May be nil.
	Servers func() []wire.ToolServer
	// Gaps says what sandboxes lack, by tool or server.
	Gaps map[string][]string
	// Connection is the connection's name in the server's list of connections. Default
	// "toolfleet worker".
	Connection string

	Logger  *slog.Logger
	Metrics prometheus.Registerer // nil: metrics are not collected
	// Measures are metrics that are registered already, for several workers of one process
	// that share them. Nil: Metrics registers new ones.
	Measures *worker.Metrics
	Tracer   trace.Tracer    // nil: no traces
	Hurry    <-chan struct{} // closing it ends the drain at once. May be nil
	Ready    func()          // called once the worker takes calls. May be nil

	// HTTP holds the metrics that are shown by the HTTP server of the settings.
	HTTP *prometheus.Registry
}

// New makes the worker on a connection, which the caller closes after the worker has ended.
func (o Worker) New(cfg *config.Config, conn *bus.Conn) (*worker.Worker, error) {
	measures := o.Measures
	if measures == nil {
		measures = worker.NewMetrics(o.Metrics)
	}
	c, err := cfg.Worker(o.Policy, o.Version, o.Logger, measures, o.Roots...)
	if err != nil {
		return nil, Usage(err)
	}
	maps.Copy(c.Gaps, o.Gaps) // beside those of hooks
	c.Hurry, c.Tracer, c.OnReady, c.Servers = o.Hurry, o.Tracer, o.Ready, o.Servers
	return worker.New(conn, o.Tools, c)
}

// Runner runs a worker, or several workers one after the other.
type Runner interface {
	Run(ctx context.Context) error
	Ready() bool // reports whether a worker takes calls
}

// Run connects, serves until ctx ends and closes the connection.
func (o Worker) Run(ctx context.Context, cfg *config.Config) error {
	return o.RunAs(ctx, cfg, func(_ *bus.Conn, w *worker.Worker) Runner { return w })
}

// RunAs does what [Worker.Run] does, with a Runner made by as. That Runner may end the worker
// and run other workers after it.
func (o Worker) RunAs(ctx context.Context, cfg *config.Config, as func(*bus.Conn, *worker.Worker) Runner) error {
	conn, err := Connect(ctx, cfg, cmp.Or(o.Connection, "toolfleet worker"), o.Logger)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := SafeToStore(ctx, cfg, conn, o.Logger); err != nil {
		return err
	}
	if o.Metrics != nil {
		for _, c := range conn.Collectors() {
			if err := o.Metrics.Register(c); err != nil {
				return err
			}
		}
	}
	w, err := o.New(cfg, conn)
	if err != nil {
		return err
	}
	runner := as(conn, w)
	ready := func(ctx context.Context) error {
		if !runner.Ready() {
			return errors.New("not taking calls yet")
		}
		return Usable(ctx, conn)
	}
	return Serve(ctx, cfg.HTTP, o.HTTP, ready, o.Logger, runner.Run)
}

// usage is an error in the input of the program's user: flags, settings, files.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// Usage marks an error in the input of the program's user: flags, settings, files. The exit status
// is then 2.
func Usage(err error) error { return usage{err} }

// IsUsage reports whether an error was marked by [Usage].
func IsUsage(err error) bool {
	var u usage
	return errors.As(err, &u)
}
