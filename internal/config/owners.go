package config

import (
	"log/slog"
	"net/url"
	"strings"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// Bus returns the options to connect with. name appears in the server's list of connections.
func (c *Config) Bus(name string, log *slog.Logger) bus.Options {
	n := c.NATS
	return bus.Options{
		URL: n.URL, Name: name,
		Creds: string(n.Creds), NKey: string(n.NKey), User: n.User, Password: string(n.Password), Token: string(n.Token),
		TLSCA: string(n.TLSCA), TLSCert: string(n.TLSCert), TLSKey: string(n.TLSKey),
		Prefix: c.Prefix, InboxPrefix: n.InboxPrefix, Logger: log, Timeout: n.Timeout,
	}
}

// Provision returns the options with which streams and buckets are created.
func (c *Config) Provision() bus.Provision {
	p := bus.Provision{
		Replicas: c.Replicas, BatchTTL: c.BatchTTL, ReplyTTL: c.ReplyTTL, AuditTTL: c.AuditTTL, DeadTTL: c.DeadTTL,
		WorkerTTL: c.WorkerTTL, MaxBatches: int64(c.MaxBatches), MaxBytes: map[string]int64{},
	}
	for stream, bound := range c.MaxBytes {
		p.MaxBytes[stream] = int64(bound)
	}
	return p
}

// AuditLog returns how lines of the audit log are made.
func (c *Config) AuditLog() audit.Config {
	return audit.Config{Plain: c.Audit.Hash == "plain", Key: string(c.Audit.Key), Include: c.Audit.Include}
}

// TraceLink returns the URL at which a trace can be viewed; "" if id or trace_url is empty.
func (c *Config) TraceLink(id string) string {
	if id == "" {
		return ""
	}
	return strings.ReplaceAll(c.TraceURL, traceID, url.PathEscape(id))
}

// Worker returns the configuration of a worker under a policy. roots are the spellings of the
// folder of its file tools, the canonical one first.
func (c *Config) Worker(p *Policy, log *slog.Logger, metrics *worker.Metrics, roots ...string) (worker.Config, error) {
	rules, err := p.Permissions(roots...)
	if err != nil {
		return worker.Config{}, err
	}
	hooks, err := p.Hooks(log)
	if err != nil {
		return worker.Config{}, err
	}
	approvers, err := p.approvers()
	if err != nil {
		return worker.Config{}, err
	}
	w := worker.Config{
		Name: c.Name, Slots: c.Slots, AckWait: c.AckWait, Lease: c.Lease, Grace: c.Grace, Drain: c.Drain, Announce: c.Announce,
		Poison: c.Poison, Rules: rules, Hooks: hooks, Approvals: approvers, Audit: c.AuditLog(), ApprovalTTL: c.ApprovalTTL, TraceContent: c.TraceContent, Pools: map[string]int{}, Provision: c.Provision(), Logger: log, Metrics: metrics,
	}
	for name, pool := range c.Pools {
		w.Pools[name] = pool.MaxInFlight
	}
	return w, nil
}
