package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/messages"
)

// Metrics is what a coordinator counts. No label comes from outside: tools that nobody knows are folded
// into one, so that a model that invents names cannot make time series.
type Metrics struct {
	live    prometheus.Gauge
	batches *prometheus.CounterVec
	calls   *prometheus.CounterVec
	seconds prometheus.Histogram
	refusal *prometheus.CounterVec

	decisions, notDecided *prometheus.CounterVec
}

// UnknownTool is the label of every tool that is not in the catalog.
const UnknownTool = "_unknown"

// NewMetrics registers the metrics; with a nil registerer they are counted and never seen.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		live: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "toolfleet_batches_live", Help: "Batches that this coordinator is driving."}),
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_batches_total", Help: "Batches replied to, by provider and status."}, []string{"provider", "status"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_batch_calls_total", Help: "Calls of batches replied to, by tool and status."}, []string{"tool", "status"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "toolfleet_batch_duration_seconds", Help: "From the acceptance of a batch to its stored reply, the time in which it waited for people included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 3, 11)}),
		refusal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_batches_refused_total", Help: "Batches refused, by class."}, []string{"class"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_approval_decisions_total", Help: "Decisions of people taken, by verdict."}, []string{"verdict"}),
		notDecided: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_approval_decisions_refused_total", Help: "Decisions refused, by class."}, []string{"class"}),
	}
	if reg != nil {
		reg.MustRegister(m.live, m.batches, m.calls, m.seconds, m.refusal, m.decisions, m.notDecided)
	}
	return m
}

func (m *Metrics) refused(class messages.Class) { m.refusal.WithLabelValues(string(class)).Inc() }

func (m *Metrics) replied(r messages.Reply, took time.Duration) {
	provider := "_unknown"
	for _, p := range messages.Providers {
		if r.Provider == p {
			provider = string(p)
		}
	}
	m.batches.WithLabelValues(provider, string(r.Status)).Inc()
	m.seconds.Observe(took.Seconds())
	for _, result := range r.Results {
		tool := result.Tool
		if result.Status == messages.StatusUnknownTool {
			tool = UnknownTool
		}
		m.calls.WithLabelValues(tool, string(result.Status)).Inc()
	}
}
