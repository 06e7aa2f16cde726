package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/lane"
)

// Metrics holds the metrics of a worker. Each label has a limited number of values: tools come
// from the registry, hooks from the config, and pools from the tools.
type Metrics struct {
	calls       *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	phases      *prometheus.HistogramVec
	waited      *prometheus.HistogramVec
	inFlight    *prometheus.GaugeVec
	slots       *prometheus.GaugeVec
	redelivered *prometheus.CounterVec
	decisions   *prometheus.CounterVec
	hooks       *prometheus.CounterVec
	claims      prometheus.Counter
	refused     prometheus.Counter
	leases      prometheus.Counter
	progress    prometheus.Counter
}

// NewMetrics registers the metrics. If reg is nil, they are counted but not exported.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	histograms := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}, labels)
	}
	m := &Metrics{
		calls: counters("toolfleet_calls_total",
			"Calls that this worker has ended, by tool, kind and status.", "tool", "kind", "status"),
		seconds: histograms("toolfleet_call_duration_seconds", "Time that all six phases of a call took.",
			"tool", "kind", "status"),
		phases: histograms("toolfleet_call_phase_seconds", "Time that one phase of a call took.", "phase"),
		waited: histograms("toolfleet_call_queue_wait_seconds",
			"Time from the dispatch of a call to its start.", "pool"),
		inFlight: gauges("toolfleet_calls_in_flight", "Calls that this worker is processing.", "pool"),
		slots:    gauges("toolfleet_worker_slots", "The most calls that this worker processes at once.", "pool"),
		redelivered: counters("toolfleet_redeliveries_total",
			"Jobs that were delivered before, here or to another worker.", "pool"),
		decisions: counters("toolfleet_permission_decisions_total",
			"Permission decisions about attempts, by effect and source. A call that people approved counts as allow, person.", "effect", "source"),
		hooks:  counters("toolfleet_hook_failures_total", "Failed runs of hooks, by hook and class.", "hook", "class"),
		claims: counter("toolfleet_claims_total", "Claims of calls that were stored."),
		refused: counter("toolfleet_claims_refused_total",
			"Claims that were refused because another worker had claimed or ended the call."),
		leases: counter("toolfleet_leases_lost_total",
			"Claims that could not be renewed in time; their tools were killed."),
		progress: counter("toolfleet_call_progress_total", "Progress reports of tools."),
	}
	if reg != nil {
		reg.MustRegister(m.calls, m.seconds, m.phases, m.waited, m.inFlight, m.slots, m.redelivered, m.decisions,
			m.hooks, m.claims, m.refused, m.leases, m.progress)
	}
	return m
}

// ended counts a call that has ended. If the call's trace is recorded, the trace id becomes an
// exemplar of the duration.
func (m *Metrics) ended(ctx context.Context, pool string, r messages.Result) {
	labels := []string{r.Tool, string(r.Kind), string(r.Status)}
	m.calls.WithLabelValues(labels...).Inc()
	m.waited.WithLabelValues(pool).Observe(r.QueueMS / 1000)
	took := m.seconds.WithLabelValues(labels...)
	if id := tracing.SampledID(ctx); id != "" {
		took.(prometheus.ExemplarObserver).ObserveWithExemplar(r.DurationMS/1000, prometheus.Labels{"trace_id": id})
		return
	}
	took.Observe(r.DurationMS / 1000)
}

func (m *Metrics) count(what lane.Count, pool string) {
	switch what {
	case lane.Taken:
		m.inFlight.WithLabelValues(pool).Inc()
	case lane.Left:
		m.inFlight.WithLabelValues(pool).Dec()
	case lane.Redelivered:
		m.redelivered.WithLabelValues(pool).Inc()
	case lane.Claimed:
		m.claims.Inc()
	case lane.ClaimRefused:
		m.refused.Inc()
	case lane.LeaseLost:
		m.leases.Inc()
	case lane.Progressed:
		m.progress.Inc()
	}
}

func (m *Metrics) phase(name string, took time.Duration) {
	m.phases.WithLabelValues(name).Observe(took.Seconds())
}

func (m *Metrics) decided(effect, source string) {
	m.decisions.WithLabelValues(effect, source).Inc()
}

func (m *Metrics) hookFailed(name string, class hook.Class) {
	m.hooks.WithLabelValues(name, string(class)).Inc()
}
