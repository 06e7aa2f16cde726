package main

import (
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

type workerCmd struct {
	daemon.Server
	command.ToolFlags
	daemon.Governed
	daemon.Listens
	Slots string `setting:"slots" placeholder:"N"`
	Name  string `setting:"name" placeholder:"TEXT"`
}

// Help is shown below the command's usage.
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
	w := workerOf(tools, policy, shown, nil, a.Hurry())
	w.HTTP = reg
	return w.Run(a.Ctx, cfg)
}
