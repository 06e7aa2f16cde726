package main

import (
	"github.com/toolfleet/toolfleet/internal/devserver"
)

type natsCmd struct {
	general
	embedded
}

// Help is shown below the command's usage.
func (natsCmd) Help() string {
	return `What it acknowledges survives a power failure, unless --sync says otherwise. It has no passwords: whoever can connect may
do everything. A fleet that others can reach wants a NATS server of its own, with accounts and TLS.`
}

func (natsCmd) Run(a *app) error {
	cfg, log, err := a.load()
	if err != nil {
		return err
	}
	srv, err := devserver.Start(cfg.Devserver(log))
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	log.Info("NATS server is ready", "url", srv.URL(), "data", srv.DataDir(), "sync", cfg.Server.Sync.String())
	if !srv.SyncAlways() {
		log.Warn("what it acknowledged last may be lost with the power; coordinators and workers refuse it unless their settings say unsafe_sync", "sync", cfg.Server.Sync.String())
	}
	a.say("NATS at %s. In other terminals:\n  toolfleet coordinator --nats %s\n  toolfleet worker --root . --nats %s", srv.URL(), srv.URL(), srv.URL())
	<-a.ctx.Done()
	return nil
}
