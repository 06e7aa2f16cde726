package coordinator

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator/metrics"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/coordinator/tuning"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/tracing"
)

// Config holds the settings of a Coordinator. The zero value works.
type Config struct {
	Slots        int           // batches driven at once. Default 1024
	Window       int           // calls of one session dispatched at once. Default 8
	Lookahead    int           // batches of one session driven at once. Default 32
	AckWait      time.Duration // silence of a driver before a redelivery. Default 10 s
	Poll         time.Duration // time between reads of the journal. Default AckWait/3
	QueueTimeout time.Duration // how long a call may wait for a worker. Default 60 s
	// BatchTTL is how long a batch may start calls, counted from when it was stored. Time that
	// calls wait for people is added, but at most another BatchTTL. Default 1 h.
	BatchTTL time.Duration
	Grace    time.Duration // added to a lease before it counts as lapsed. Default 2 s
	// StartWait is how long a batch waits for tools while no worker announces any. It is also
	// the least time that a call waits if its pool has workers, but none of them serves the
	// planned version of its tool. The wait of such a call is never shorter than two lifetimes
	// of a worker's announcement. Default 30 s.
	StartWait time.Duration
	Drain     time.Duration   // how long open batches go on after Run's ctx has ended. Default 5 s
	Hurry     <-chan struct{} // closing it ends the drain at once. May be nil
	Poison    int             // number of lost claims after which a call is given up. Default 5
	// AfterUnknown decides what happens to the later writes of a batch after a write whose
	// outcome is unknown. Default Stop.
	AfterUnknown AfterUnknown
	Approvers    approval.Approvers // the people whose decisions count. Default: none
	Audit        audit.Config       // settings of the audit log
	// HTTPKeys are the public nkeys of the HTTP servers. An HTTP server signs the name of the
	// user who asks for a batch. Default: none.
	HTTPKeys []string
	// TenantPools are the pools that belong to one tenant: the tenant, by pool. Calls of other
	// tenants never go there. Default: none.
	TenantPools map[string]string
	// Policy is the version of the platform's policy. Every job names this version. A worker
	// that has no policy gives up a job that names one. Default: none.
	Policy    string
	Provision provision.Config // the streams that Run makes if they are missing
	Logger    *slog.Logger     // nil: no log
	Tracer    trace.Tracer     // nil: no spans. Workers get an agent's trace context all the same
	Metrics   *metrics.Metrics // nil: no metrics
}

// AfterUnknown says what happens to the later writes of a batch after a write whose outcome is
// unknown.
type AfterUnknown string

// Stop skips the later writes, because they may build on a write that did not happen.
// Continue runs them.
const (
	Stop     AfterUnknown = "stop"
	Continue AfterUnknown = "continue"
)

func (c Config) withDefaults() Config {
	standard := tuning.Default()
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	if c.Slots == 0 {
		c.Slots = standard.Slots
	}
	if c.Window == 0 {
		c.Window = standard.Window
	}
	if c.Lookahead == 0 {
		c.Lookahead = standard.Lookahead
	}
	def(&c.AckWait, standard.AckWait)
	def(&c.Poll, tuning.DefaultPoll(c.AckWait))
	def(&c.QueueTimeout, standard.QueueTimeout)
	def(&c.BatchTTL, standard.BatchTTL)
	def(&c.Grace, standard.Grace)
	def(&c.StartWait, standard.StartWait)
	def(&c.Drain, standard.Drain)
	if c.Poison == 0 {
		c.Poison = standard.Poison
	}
	if c.AfterUnknown == "" {
		c.AfterUnknown = AfterUnknown(standard.AfterUnknown)
	}
	if c.Provision.BatchTTL == 0 {
		c.Provision.BatchTTL = c.BatchTTL
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Tracer = tracing.OrSilent(c.Tracer)
	if c.Metrics == nil {
		c.Metrics = metrics.New(nil)
	}
	return c
}

// unservedWait returns how long a call waits if its pool has workers, but none that serves the
// planned version of its tool. The wait is long enough for a worker whose announcement was
// lost to announce itself again.
func (c Config) unservedWait() time.Duration {
	return max(c.StartWait, 2*c.Provision.WithDefaults().WorkerTTL)
}

// owners returns the pools that belong to one tenant.
func (c Config) owners() toolset.Owners { return toolset.Owners(c.TenantPools) }

func (c Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"slots", c.Slots < 1}, {"window", c.Window < 1}, {"lookahead", c.Lookahead < 1}, {"ack_wait", c.AckWait < 0}, {"poll", c.Poll < 0},
		{"queue_timeout", c.QueueTimeout < 0}, {"batch_ttl", c.BatchTTL < 0}, {"grace", c.Grace < 0}, {"poison", c.Poison < 1},
	} {
		if f.bad {
			errs = append(errs, fmt.Errorf("coordinator: %s must be positive", f.name))
		}
	}
	if c.AfterUnknown != Stop && c.AfterUnknown != Continue {
		errs = append(errs, fmt.Errorf("coordinator: after_unknown is %q; want stop or continue", c.AfterUnknown))
	}
	if ttl := c.Provision.ReplyTTL; ttl != 0 && ttl < 3*c.BatchTTL {
		errs = append(errs, fmt.Errorf("coordinator: reply_ttl is %v; it must be at least three times batch_ttl (%v), or a batch could be run again while its records are still there", ttl, c.BatchTTL))
	}
	return errors.Join(errs...)
}

// NewMetrics returns the metrics of a coordinator. It registers them with reg unless reg is
// nil.
func NewMetrics(reg prometheus.Registerer) *metrics.Metrics { return metrics.New(reg) }
