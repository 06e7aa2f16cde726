package main

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/schemas"
)

type coordinatorCmd struct {
	daemon.Server
	daemon.Governed
	daemon.Listens
}

// Help returns the text that --help shows below the command's usage.
func (coordinatorCmd) Help() string {
	return `Any number of coordinators share the work: no session belongs to one. Without --nats it looks for a server at
nats://127.0.0.1:4222. It reads from the policy whose decisions count. After SIGTERM open batches have the
time of coordinator_drain to end; then other coordinators take them over. A second SIGTERM hands them over at once.`
}

func (coordinatorCmd) Run(a *command.App) error {
	cfg, log, err := a.Load()
	if err != nil {
		return err
	}
	policy, err := localtools.Policy(cfg, schemas.Rules{})
	if err != nil {
		return err
	}
	if people := policy.Needs(); len(policy.Approvers) < people {
		log.Warn("the policy asks for more approvers than it names: calls that need them are refused", "approvers", len(policy.Approvers), "needed", people)
	}
	reg := telemetry.Registry(daemon.ThisBuild().Release())
	shown, err := openInstruments(a, coordinatorService, log, reg)
	if err != nil {
		return err
	}
	defer shown.flush()
	conn, err := daemon.Connect(a.Ctx, cfg, "toolfleet coordinator", log)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := daemon.SafeToStore(a.Ctx, cfg, conn, log); err != nil {
		return err
	}
	own, err := coordinatorConfig(cfg, policy, log, coordinator.NewMetrics(reg))
	if err != nil {
		return command.Usage(err)
	}
	own.Hurry, own.Tracer = a.Hurry(), shown.tracer
	c, err := coordinator.New(conn, own)
	if err != nil {
		return err
	}
	reg.MustRegister(conn.Collectors()...)
	reg.MustRegister(c.Gauges())
	ready := func(ctx context.Context) error {
		if !c.Ready() {
			return errors.New("not taking batches yet")
		}
		return daemon.Usable(ctx, conn)
	}
	return daemon.Serve(a.Ctx, cfg.HTTP, reg, ready, log, c.Run)
}
