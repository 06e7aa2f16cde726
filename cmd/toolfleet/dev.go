package main

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

type devCmd struct {
	general
	served
	embedded
	listens
	Slots string `setting:"slots" placeholder:"N" help:"${slots}"`
}

// Help is shown below the command's usage.
func (devCmd) Help() string {
	return `NATS server, coordinator and worker in one process. The worker serves the tools file and the builtin Read, Glob, Grep,
Write, Edit and Bash on --root, by default the current folder. The server has no passwords.`
}

func (devCmd) Run(a *app) error {
	cfg, log, err := a.load()
	if err != nil {
		return err
	}
	reg := telemetry.Registry(build().release())
	f, err := newFleet(a.ctx, cfg, log, cfg.Devserver(log), reg, a.hurry())
	defer f.close()
	if err != nil {
		return err
	}
	ready := func(ctx context.Context) error {
		if !f.parts.coordinator.Ready() {
			return errors.New("not taking batches yet")
		}
		return usable(ctx, f.conn)
	}
	return daemon(a.ctx, cfg.HTTP, reg, ready, log, func(ctx context.Context) error {
		return f.run(ctx, func() { f.greet(a) })
	})
}

// greet says how to reach the fleet.
func (f *fleet) greet(a *app) {
	url := f.server.URL()
	a.say(`
toolfleet is ready at %s, with %s on %s.

  Run a batch:      toolfleet run examples/anthropic.json --nats %s
  From an agent:    publish a batch to %s.batch._.<session>.<batch>
                    its reply comes on %s.reply._.<session>.<batch>
  Look at it:       toolfleet status --nats %s

Data is in %s. Ctrl-C ends it.
`, url, count(len(f.serving.registry.Promises()), "tool"), f.serving.roots[0], url, f.cfg.Prefix, f.cfg.Prefix, url, f.server.DataDir())
}
