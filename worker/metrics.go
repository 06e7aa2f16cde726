package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// Metrics is what a worker counts. Tools are those of its registry, hooks those of its config, so the labels are bounded.
type Metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	waited  prometheus.Histogram
	phases  *prometheus.HistogramVec
	hooks   *prometheus.CounterVec
}

// NewMetrics registers the metrics; with a nil registerer they are counted and never seen.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	buckets := prometheus.ExponentialBuckets(0.0005, 4, 10)
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_calls_total", Help: "Calls brought to an end by this worker, by tool and status."}, []string{"tool", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolfleet_call_duration_seconds", Help: "All six phases of a call.", Buckets: buckets}, []string{"tool"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "toolfleet_call_queue_wait_seconds", Help: "From the dispatch of a call to its start here.", Buckets: buckets}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolfleet_call_phase_seconds", Help: "One phase of a call.", Buckets: buckets}, []string{"phase"}),
		hooks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_hook_failures_total", Help: "Runs of a hook that could not run, by hook and class."}, []string{"hook", "class"}),
	}
	if reg != nil {
		reg.MustRegister(m.calls, m.seconds, m.waited, m.phases, m.hooks)
	}
	return m
}

func (m *Metrics) ended(r messages.Result) {
	m.calls.WithLabelValues(r.Tool, string(r.Status)).Inc()
	m.seconds.WithLabelValues(r.Tool).Observe(r.DurationMS / 1000)
	m.waited.Observe(r.QueueMS / 1000)
}

func (m *Metrics) phase(name string, took time.Duration) {
	m.phases.WithLabelValues(name).Observe(took.Seconds())
}

func (m *Metrics) hookFailed(name string, class hook.Class) {
	m.hooks.WithLabelValues(name, string(class)).Inc()
}
