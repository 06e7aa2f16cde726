package main

import (
	"context"
	"log/slog"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/worker"
)

type workerCmd struct {
	daemon.Server
	command.ToolFlags
	daemon.Governed
	daemon.Listens
	Slots string `setting:"slots" placeholder:"N"`
	Name  string `setting:"name" placeholder:"TEXT"`
}

// Help returns the text that --help shows below the command's usage.
func (workerCmd) Help() string {
	return `Serves the tools of its tools file, and the builtin Read, Glob, Grep, Write, Edit and Bash only with --root. Bash starts in
that folder; its commands, and those of exec tools, run in a sandbox where the machine has one (see toolfleet sandbox explain). Several workers with --root should see one shared folder: the next call of a session
may run on another. Without --nats it looks for a server at nats://127.0.0.1:4222. After SIGTERM running calls have the time of
drain to end; then they are stopped, and calls that may run again go to other workers. A second SIGTERM stops them at once.`
}

func (workerCmd) Run(a *command.App) error {
	cfg, log, err := a.Load()
	if err != nil {
		return err
	}
	tools, err := localtools.Open(a.Ctx, cfg, "", log)
	if err != nil {
		return err
	}
	if tools, err = firstTools(a.Ctx, tools, log); tools == nil {
		return err
	}
	defer tools.Close()
	policy, err := tools.Policy(cfg)
	if err != nil {
		return err
	}
	reg := telemetry.Registry(daemon.ThisBuild().Release())
	shown, err := openInstruments(a, daemon.WorkerService, log, reg)
	if err != nil {
		return err
	}
	defer shown.flush()
	measures := worker.NewMetrics(shown.metrics)
	parts := workerOf(tools, policy, shown, measures, a.Hurry())
	parts.HTTP = reg
	return parts.RunAs(a.Ctx, cfg, func(conn *bus.Conn, w *worker.Worker) daemon.Runner {
		return &reloading{
			cfg: cfg, conn: conn, shown: shown, policy: policy, metrics: measures, hurry: a.Hurry(), first: tools, worker: w,
			say: func(text string) { log.Info(text) },
		}
	})
}

// firstTools returns the tools. If there are none yet, it waits until a server brings some. It
// returns nil if ctx ends first.
func firstTools(ctx context.Context, tools *localtools.Serving, log *slog.Logger) (*localtools.Serving, error) {
	looking, stop := context.WithCancel(ctx)
	changes, looked := tools.Changes(looking)
	defer looked()
	defer stop()
	for len(tools.Registry.Definitions()) == 0 {
		log.Warn("the worker waits for a server, since it has no other tools")
		select {
		case <-changes:
		case <-ctx.Done():
			tools.Close()
			return nil, nil
		}
		next, err := tools.Again(ctx)
		if err != nil {
			tools.Close()
			return nil, command.Usage(err)
		}
		if len(next.Registry.Definitions()) == 0 {
			next.Close()
			continue
		}
		stop()
		looked()
		tools.Close()
		return next, nil
	}
	return tools, nil
}
