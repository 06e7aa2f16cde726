package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/devserver"
)

type natsCmd struct {
	daemon.General
	command.ServerFlags
	NATSConfig string `name:"nats-config" setting:"server.config" placeholder:"FILE"`
}

// Help returns the text that --help shows below the command's usage.
func (natsCmd) Help() string {
	return `A message that the server acknowledges survives a power failure, unless --sync or the file of --nats-config says otherwise.
Without that file the server has no passwords: anybody who can connect may do everything. The file is a nats-server
configuration with accounts, users and TLS; its variables come from the environment. After SIGHUP the server reads it again,
and disconnects users that are no longer in it. There is no monitoring port. docs/identities.md shows a fleet in which each part has an identity.`
}

func (natsCmd) Run(a *command.App) error {
	cfg, log, err := a.Load()
	if err != nil {
		return err
	}
	o, err := natsOptions(cfg, log)
	if err != nil {
		return command.Usage(err)
	}
	again := make(chan os.Signal, 1)
	if o.Config != "" { // a signal during the start is handled later
		signal.Notify(again, syscall.SIGHUP)
		defer signal.Stop(again)
	}
	srv, err := devserver.Start(o)
	if err != nil {
		if o.Config != "" && o.DataDir != string(cfg.Server.Data) {
			err = fmt.Errorf("%w (%s is the store_dir of %s)", err, o.DataDir, o.Config)
		}
		return err
	}
	defer srv.Shutdown()
	log.Info("NATS server is ready", "url", srv.URL(), "data", srv.DataDir(), "sync", syncs(o))
	if !srv.SyncAlways() {
		log.Warn("what it acknowledged last may be lost with the power; coordinators and workers refuse it unless their settings say unsafe_sync", "sync", syncs(o))
	}
	if o.Config == "" {
		a.Say("NATS at %s. In other terminals:\n  %s coordinator --nats %s\n  %s worker --root . --nats %s", srv.URL(), self(), srv.URL(), self(), srv.URL())
		<-a.Ctx.Done()
		return nil
	}
	a.Say("NATS at %s, as %s says. Others name who they are, with --nkey or --creds, and --inbox-prefix where they may not listen everywhere.", srv.URL(), o.Config)
	reloads(a.Ctx, again, srv, log)
	return nil
}

// syncs returns how often the server syncs: "always" or an interval.
func syncs(o devserver.Options) string {
	if o.SyncInterval == 0 {
		return "always"
	}
	return o.SyncInterval.String()
}

// reloads makes the server read its configuration file again at each signal, until ctx ends.
// If the file is invalid, the server keeps its configuration.
func reloads(ctx context.Context, asked <-chan os.Signal, srv *devserver.Server, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
			if err := srv.Reload(); err != nil {
				log.Error("the NATS configuration stays as it was", "err", err)
				continue
			}
			log.Info("the NATS configuration was read again")
		}
	}
}
