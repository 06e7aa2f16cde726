package main

import (
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/coordinator/metrics"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// coordinatorConfig returns the configuration of a coordinator under a policy. It fails if the
// policy's approvers are invalid.
func coordinatorConfig(c *config.Config, p *config.Policy, log *slog.Logger, metrics *metrics.Metrics) (coordinator.Config, error) {
	approvers, err := approval.NewApprovers(p.Approvers)
	if err != nil {
		return coordinator.Config{}, err
	}
	own := c.Coordinators
	return coordinator.Config{
		Slots: own.Slots, Window: own.Window, Lookahead: own.Lookahead, AckWait: own.AckWait, Poll: own.Poll, QueueTimeout: own.QueueTimeout,
		BatchTTL: own.BatchTTL, Grace: own.Grace, StartWait: own.StartWait, Drain: own.Drain,
		Poison: own.Poison, AfterUnknown: coordinator.AfterUnknown(own.AfterUnknown),
		Approvers: approvers, Audit: c.AuditLog(), HTTPKeys: c.HTTPKeys, TenantPools: c.TenantPools, Policy: wire.PlatformPolicy(p.Version()),
		Provision: c.Provision(), Logger: log, Metrics: metrics,
	}, nil
}

// devserverOptions returns the options of the NATS server that dev and nats run.
func devserverOptions(c *config.Config, log *slog.Logger) devserver.Options {
	s := c.Server
	return devserver.Options{
		Listen: s.Listen, DataDir: string(s.Data), SyncInterval: time.Duration(s.Sync), MaxPayload: int32(s.MaxPayload), Open: s.Open, Logger: log,
	}
}

// natsOptions returns the options of the NATS server that nats runs. The listen address, data
// folder, sync interval and payload limit come from the settings if they are given there, else from
// the server's own configuration file, else from the defaults.
func natsOptions(c *config.Config, log *slog.Logger) (devserver.Options, error) {
	o := devserverOptions(c, log)
	if c.Server.Config == "" {
		return o, nil
	}
	o.Config = string(c.Server.Config)
	said, err := devserver.ReadConfig(o.Config)
	if err != nil {
		return o, err
	}
	if said.Listen != "" && !c.Given("server.listen") {
		o.Listen = said.Listen
	}
	if said.DataDir != "" && !c.Given("server.data") {
		o.DataDir = said.DataDir
	}
	if said.Sync && !c.Given("server.sync") {
		o.SyncInterval = said.SyncInterval
	}
	if said.MaxPayload != 0 && !c.Given("server.max_payload") {
		o.MaxPayload = said.MaxPayload
	}
	return o, nil
}
