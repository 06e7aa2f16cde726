// Package telemetry builds the logger, the metrics and the tracer of a process, and the small
// HTTP server for metrics and health. Only programs use it. Other packages get a *slog.Logger,
// a prometheus.Registerer or a trace.Tracer.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Logger returns a logger for records of at least the given level (debug, info, warn, error).
// It writes each record as one line of text or JSON. The format auto is text on a terminal and
// JSON elsewhere.
func Logger(w io.Writer, level, format string, terminal bool) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: least, ReplaceAttr: readable(terminal && format != "json")}
	switch {
	case format == "json", format == "auto" && !terminal:
		return slog.New(lateHandler{Handler: slog.NewJSONHandler(w, options)}), nil
	case format == "text", format == "auto":
		return slog.New(lateHandler{Handler: slog.NewTextHandler(w, options)}), nil
	}
	return nil, fmt.Errorf("log format %q: want auto, text or json", format)
}

// readable returns a function that writes durations with their unit and times in UTC, so that
// lines of several machines can be sorted. With clockOnly, which is for a terminal, the time
// of a line is only the local time of day.
func readable(clockOnly bool) func([]string, slog.Attr) slog.Attr {
	return func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case a.Value.Kind() == slog.KindDuration:
			a.Value = slog.StringValue(a.Value.Duration().String())
		case clockOnly && len(groups) == 0 && a.Key == slog.TimeKey:
			a.Value = slog.StringValue(a.Value.Time().Format("15:04:05.000"))
		case a.Value.Kind() == slog.KindTime:
			a.Value = slog.TimeValue(a.Value.Time().UTC())
		}
		return a
	}
}

// Registry returns a registry with the metrics of this process: those of Go and of the
// operating system, and a metric that says which build it is.
func Registry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "toolfleet_build_info", Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// readyIn limits the time of one readiness check.
const readyIn = 2 * time.Second

// Handler serves /metrics, /healthz and /readyz. /healthz succeeds if the process answers,
// whatever the state of NATS, so that an outage of NATS does not make an orchestrator restart
// the fleet. /readyz succeeds if ready returns nil. Otherwise it answers 503 with the error.
func Handler(reg *prometheus.Registry, ready func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyIn)
		defer cancel()
		if err := ready(ctx); err != nil {
			writeText(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		writeText(w, http.StatusOK, "ok")
	})
	return mux
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // the client may be gone
}

// closeIn limits how long open requests may take after ctx has ended.
const closeIn = 3 * time.Second

// Serve answers on a listener until ctx ends, and then returns nil.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP at %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
	defer cancel()
	if err := srv.Shutdown(closing); err != nil {
		_ = srv.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP at %s: %w", l.Addr(), err)
	}
	return nil
}
