package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// Bus returns the options for a connection to the NATS server. name appears in the server's
// list of connections.
func (c *Config) Bus(name string, log *slog.Logger) bus.Options {
	o := c.NATS
	o.Name, o.Logger = name, log
	return o
}

// Provision returns the options for the creation of streams and buckets.
func (c *Config) Provision() provision.Config {
	p := c.Streams
	p.BatchTTL, p.MaxBatches = c.Coordinators.BatchTTL, int64(c.MaxBatches)
	return p
}

// AuditLog returns the settings of the audit log.
func (c *Config) AuditLog() audit.Config {
	return audit.Config{Plain: c.Audit.Hash == "plain", Key: string(c.Audit.Key), Include: c.Audit.Include}
}

// TraceLink returns the URL at which people can view a trace. It returns "" if id or trace_url
// is empty.
func (c *Config) TraceLink(id string) string {
	if id == "" {
		return ""
	}
	return strings.ReplaceAll(c.TraceURL, traceID, url.PathEscape(id))
}

// Worker returns the configuration of a worker under a policy. version is the version of the
// program. roots are the paths of the folder of the worker's file tools, the canonical path
// first.
func (c *Config) Worker(p *Policy, version string, log *slog.Logger, metrics *worker.Metrics, roots ...string) (worker.Config, error) {
	rules, err := p.Permissions(roots...)
	if err != nil {
		return worker.Config{}, err
	}
	place, err := c.hookPlace(p, roots)
	if err != nil {
		return worker.Config{}, err
	}
	hooks, err := p.Hooks(version, place, log)
	if err != nil {
		return worker.Config{}, err
	}
	approvers, err := p.approvers()
	if err != nil {
		return worker.Config{}, err
	}
	w, common := c.Workers, c.Coordinators
	w.AckWait, w.Grace, w.Poison = common.AckWait, common.Grace, common.Poison
	w.Gaps = place.HookGaps(p.hooks)
	w.Rules, w.Hooks, w.Approvals, w.Audit = rules, hooks, approvers, c.AuditLog()
	w.Version, w.Provision, w.Logger, w.Metrics = version, c.Provision(), log, metrics
	return w, nil
}

// Signer returns a signer with the key that the program uses for NATS, or nil if it has no
// key.
func (c *Config) Signer() (*principal.Signer, error) {
	name := cmp.Or(c.NATS.NKey, c.NATS.Creds)
	if name == "" {
		return nil, nil
	}
	file, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the key that signs who asks: %w", err)
	}
	s, err := principal.ParseSigner(file)
	if err != nil {
		return nil, fmt.Errorf("read the key that signs who asks: %s: %w", name, err)
	}
	return s, nil
}
