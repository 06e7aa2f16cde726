// Package metrics counts what one coordinator does. docs/metrics.md explains each metric.
//
// No label has a value from outside. All tools that no worker has announced share one label,
// so a model that invents tool names creates no new series. The gauges of the whole fleet are
// in internal/fleetgauges.
package metrics

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

// Metrics holds the metrics of a coordinator.
type Metrics struct {
	Live, Slots prometheus.Gauge
	// Redelivered counts deliveries of a batch after the first one. Resumed counts runs of
	// batches that had a driver before.
	Redelivered, Resumed prometheus.Counter

	batches, calls   *prometheus.CounterVec
	succeeded        prometheus.Counter
	seconds, rounds  prometheus.Histogram
	refusal, unknown *prometheus.CounterVec

	decisions, notDecided *prometheus.CounterVec
	asked                 *prometheus.HistogramVec
	unaudited             prometheus.Counter
}

// UnknownTool is the label of every tool that no worker has announced.
const UnknownTool = "_unknown"

// New registers the metrics. If reg is nil, they are counted but not exported.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Live:  gauge("toolfleet_batches_live", "Batches that this coordinator is driving."),
		Slots: gauge("toolfleet_coordinator_slots", "The most batches that this coordinator drives at once."),
		batches: counters("toolfleet_batches_total", "Batches replied to, by provider and status.",
			"provider", "status"),
		succeeded: counter("toolfleet_batches_succeeded_total",
			"Batches with calls that were replied to and whose calls all ended ok."),
		calls: counters("toolfleet_batch_calls_total", "Calls of batches replied to, by tool, kind and status.",
			"tool", "kind", "status"),
		seconds: prometheus.NewHistogram(histogram("toolfleet_batch_duration_seconds",
			"Time from the acceptance of a batch to its stored reply, including waits for people.",
			prometheus.ExponentialBuckets(0.001, 3, 11))),
		rounds: prometheus.NewHistogram(histogram("toolfleet_batch_round",
			"The round of the agent's loop, for batches with a reply that state one.",
			[]float64{1, 2, 3, 5, 8, 13, 21, 34, 55, 89})),
		refusal: counters("toolfleet_batches_refused_total", "Batches refused, by class.", "class"),
		unknown: counters("toolfleet_outcome_unknown_total",
			"Writes in replies that may or may not have been applied, by tool.", "tool"),
		Redelivered: counter("toolfleet_batch_redeliveries_total",
			"Repeated deliveries of batches: the driver was lost, or the batch waited for earlier batches or for people."),
		Resumed: counter("toolfleet_batches_resumed_total",
			"Batches that a driver resumed where another driver had stopped."),
		decisions: counters("toolfleet_approval_decisions_total",
			"Decisions of people that were accepted, by verdict.", "verdict"),
		notDecided: counters("toolfleet_approval_decisions_refused_total",
			"Decisions refused, by class.", "class"),
		asked: prometheus.NewHistogramVec(histogram("toolfleet_approval_wait_seconds",
			"Time from a question to the decision that answered it, by tier.",
			prometheus.ExponentialBuckets(1, 2, 13)), []string{"tier"}),
		unaudited: counter("toolfleet_audit_write_failures_total",
			"Failed attempts to write to the audit log, and audit lines that are missing because of them."),
	}
	if reg != nil {
		reg.MustRegister(m.Live, m.Slots, m.batches, m.succeeded, m.calls, m.seconds, m.rounds, m.refusal,
			m.unknown, m.Redelivered, m.Resumed, m.decisions, m.notDecided, m.asked, m.unaudited)
	}
	return m
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// histogram returns the options of a histogram with two kinds of buckets: fixed buckets, which
// every scraper can read, and native buckets, which are finer.
func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

// observe adds a value. If the trace in ctx is recorded, its id is added as an exemplar.
func observe(ctx context.Context, into prometheus.Observer, value float64) {
	id := tracing.SampledID(ctx)
	if with, ok := into.(prometheus.ExemplarObserver); ok && id != "" {
		with.ObserveWithExemplar(value, prometheus.Labels{"trace_id": id})
		return
	}
	into.Observe(value)
}

// BatchRefused counts a refused batch or request.
func (m *Metrics) BatchRefused(class messages.Class) { m.refusal.WithLabelValues(string(class)).Inc() }

// Replied counts a reply. fold maps the names of all unknown tools to one name.
func (m *Metrics) Replied(
	ctx context.Context, r messages.Reply, round int, took time.Duration, fold func(tool string) string,
) {
	provider := UnknownTool
	if slices.Contains(messages.Providers, r.Provider) {
		provider = string(r.Provider)
	}
	m.batches.WithLabelValues(provider, string(r.Status)).Inc()
	observe(ctx, m.seconds, took.Seconds())
	if round > 0 {
		observe(ctx, m.rounds, float64(round))
	}
	if len(r.Results) > 0 && !slices.ContainsFunc(r.Results, func(r messages.Result) bool { return r.Status != messages.StatusOK }) {
		m.succeeded.Inc()
	}
	for _, result := range r.Results {
		tool := fold(result.Tool)
		m.calls.WithLabelValues(tool, kindLabel(result.Kind), string(result.Status)).Inc()
		if result.Status == messages.StatusOutcomeUnknown {
			m.unknown.WithLabelValues(tool).Inc()
		}
	}
}

// Learned creates the series of a tool before its first event. Prometheus sees no increase in
// a series that appears with the value 1.
func (m *Metrics) Learned(tool string, kind messages.Kind) {
	if kind == messages.KindWrite {
		m.unknown.WithLabelValues(tool)
	}
}

// kindLabel returns the label for the kind of a call. It returns UnknownTool for a call of an
// unknown tool.
func kindLabel(k messages.Kind) string {
	switch k {
	case messages.KindRead, messages.KindWrite, messages.KindCompute:
		return string(k)
	}
	return UnknownTool
}

// Decided counts a decision. last says that the decision closes the question; then Decided
// also records how long the question was open.
func (m *Metrics) Decided(
	ctx context.Context, d messages.Decision, q messages.Approval, waited time.Duration, last bool,
) {
	m.decisions.WithLabelValues(string(d.Verdict)).Inc()
	if last {
		observe(ctx, m.asked.WithLabelValues(tierLabel(q.Tier)), max(0, waited).Seconds())
	}
}

// Refused counts a refused decision.
func (m *Metrics) Refused(class messages.Class) {
	m.notDecided.WithLabelValues(string(class)).Inc()
}

func tierLabel(t messages.Tier) string {
	switch t {
	case messages.TierLow, messages.TierMedium, messages.TierHigh, messages.TierCritical:
		return string(t)
	}
	return UnknownTool
}

// AuditFailed counts a line of the audit log that could not be written.
func (m *Metrics) AuditFailed() { m.unaudited.Inc() }
