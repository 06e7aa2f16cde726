package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what a server answers.
type Metrics struct {
	requests *prometheus.CounterVec
	streams  prometheus.Gauge
}

// NewMetrics returns the metrics of a server. It registers them with reg, unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolfleet_http_requests_total", Help: "Answered requests of the HTTP API, by route and status.",
		}, []string{"route", "status"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "toolfleet_http_streams", Help: "Open event streams of the HTTP API.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.streams)
	}
	return m
}

func (m *Metrics) answered(route string, status int) {
	if status == 0 { // the client was gone before the answer
		status = 499
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
}

// streaming counts a stream until the returned function is called.
func (m *Metrics) streaming() func() {
	m.streams.Inc()
	return m.streams.Dec
}

// countedWriter remembers the status of an answer.
type countedWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (w *countedWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *countedWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap gives [http.ResponseController] the writer below.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// withCancel returns the context of a request with a function that ends the context.
func withCancel(q *request) (context.Context, context.CancelCauseFunc) {
	return context.WithCancelCause(q.Context())
}
