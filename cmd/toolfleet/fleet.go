package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// fleet is a NATS server, a coordinator and a worker in this process.
type fleet struct {
	cfg     *config.Config
	shown   instruments
	server  *devserver.Server
	conn    *bus.Conn
	serving *localtools.Serving
	policy  *config.Policy
	owner   messages.Approver // the user who runs this fleet, if dev made that user its approver
	api     *apiListener      // nil: none is served
	signer  *principal.Signer // of the API: says which user asks
	metrics *worker.Metrics
	work    func(context.Context) error // runs the worker
	parts   struct {
		coordinator *coordinator.Coordinator
		worker      *worker.Worker
	}
}

// builtinFlags holds the flag of commands that serve tools in this process.
type builtinFlags struct {
	NoBuiltin bool `help:"Serve only your own tools: no Read, Glob, Grep, Write, Edit and Bash, whatever --root says."`
}

// root returns the folder of the builtin tools if the settings name no folder; "": no builtin
// tools are served.
func (b builtinFlags) root(cfg *config.Config) string {
	if b.NoBuiltin {
		cfg.Root = ""
		return ""
	}
	return localtools.Here
}

// newFleet starts the server, connects, and makes the coordinator and the worker; run runs
// them. root is as in builtinFlags. people may set the policy's approvers; it is called before
// the coordinator and the worker are made. The returned fleet is never nil. After an error it
// is closed already, and a second close does nothing.
func newFleet(ctx context.Context, cfg *config.Config, root string, shown instruments, o devserver.Options, hurry <-chan struct{}, people func(*fleet) error) (f *fleet, err error) {
	f = &fleet{cfg: cfg, shown: shown}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.serving, err = localtools.Open(ctx, cfg, root, shown.log); err != nil {
		return f, err
	}
	if len(f.serving.Registry.Definitions()) == 0 {
		return f, f.serving.Whole()
	}
	if f.policy, err = f.serving.Policy(cfg); err != nil {
		return f, err
	}
	if f.server, err = devserver.Start(o); err != nil {
		return f, err
	}
	// Do not use the URL and the credentials of the settings: they are for another server.
	own := bus.Options{InProcess: f.server, Name: "toolfleet", Prefix: cfg.NATS.Prefix, Logger: shown.log, Timeout: cfg.NATS.Timeout}
	if f.conn, err = bus.Connect(ctx, own); err != nil {
		return f, err
	}
	if err = people(f); err != nil {
		return f, err
	}
	coordinating, err := coordinatorConfig(cfg, f.policy, shown.log, coordinator.NewMetrics(shown.metrics))
	if err != nil {
		return f, command.Usage(err)
	}
	if f.signer, err = principal.NewSigner(); err != nil {
		return f, err
	}
	coordinating.HTTPKeys = append(coordinating.HTTPKeys, f.signer.Key())
	coordinating.Hurry, coordinating.Tracer = hurry, shown.tracer
	if f.parts.coordinator, err = coordinator.New(f.conn, coordinating); err != nil {
		return f, err
	}
	f.metrics = worker.NewMetrics(shown.metrics)
	f.parts.worker, err = workerOf(f.serving, f.policy, shown, f.metrics, hurry).New(cfg, f.conn)
	f.work = f.parts.worker.Run
	return f, err
}

// workerOf returns the parts for a worker in this process. measures is nil if its metrics are not
// registered yet.
func workerOf(s *localtools.Serving, p *config.Policy, shown instruments, measures *worker.Metrics, hurry <-chan struct{}) daemon.Worker {
	return daemon.Worker{
		Tools: s.Registry, Servers: s.States, Policy: p, Roots: s.Roots, Gaps: s.Gaps, Version: daemon.ThisBuild().Release(),
		Logger: shown.log, Metrics: shown.metrics, Measures: measures, Tracer: shown.tracer, Hurry: hurry,
	}
}

// run runs the fleet until ctx ends. The worker starts first, so that the coordinator knows all
// tools before it plans a batch. run calls ready once the coordinator takes batches.
func (f *fleet) run(ctx context.Context, ready func()) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.work(ctx) })
	group.Go(func() error {
		if !until(ctx, f.parts.worker.Ready) {
			return nil
		}
		return f.parts.coordinator.Run(ctx)
	})
	group.Go(func() error {
		if until(ctx, f.parts.coordinator.Ready) {
			ready()
		}
		return nil
	})
	return group.Wait()
}

// close closes the connection, the server and the tools, in this order.
func (f *fleet) close() {
	if f.conn != nil {
		f.conn.Close()
	}
	if f.server != nil {
		f.server.Shutdown()
	}
	if f.serving != nil {
		f.serving.Close()
	}
}

// until polls every 2 ms until ready returns true. It returns false if ctx ends first.
func until(ctx context.Context, ready func() bool) bool {
	looks := time.NewTicker(2 * time.Millisecond)
	defer looks.Stop()
	for !ready() {
		select {
		case <-looks.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
