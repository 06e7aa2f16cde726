package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// BenchmarkBatch runs batches of 8 reads and 2 writes, from submit to reply, in one process.
// The tools do nothing. Compare only ratios within one run (-count=6, benchstat), never
// absolute figures.
func BenchmarkBatch(b *testing.B) {
	for _, sync := range []struct {
		name    string
		options []natstest.Option
	}{{"file", []natstest.Option{natstest.Fast}}, {"sync", nil}} {
		for _, sessions := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/sessions=%d", sync.name, sessions), func(b *testing.B) {
				batches(b, sessions, nil, sync.options...)
			})
		}
	}
}

// BenchmarkTraces measures the cost of traces: without a tracer, with one trace in a hundred,
// with all, and with all while the collector is away, slow, or silent.
func BenchmarkTraces(b *testing.B) {
	fine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	b.Cleanup(fine.Close)
	all := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + fine.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=100"}
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(time.Second)
	}))
	b.Cleanup(slow.Close)
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and never reads
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = deaf.Close() })
	for _, sessions := range []int{1, 64} {
		for _, c := range []struct {
			name string
			env  []string
		}{
			{"off", nil},
			{"one-in-100", append(slices.Clone(all), "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01")},
			{"all", all},
			{"all-down", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}},
			{"all-slow", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + slow.URL}},
			{"all-deaf", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + deaf.Addr().String()}},
		} {
			b.Run(fmt.Sprintf("sessions=%d/%s", sessions, c.name), func(b *testing.B) {
				for _, pair := range c.env {
					name, value, _ := strings.Cut(pair, "=")
					b.Setenv(name, value)
				}
				tracer, flush, err := telemetry.Traces(b.Context(), "toolfleet", "bench", slog.New(slog.DiscardHandler))
				if err != nil {
					b.Fatal(err)
				}
				defer flush()
				batches(b, sessions, tracer, natstest.Fast)
			})
		}
	}
}

// batches runs b.N batches in the given number of sessions.
func batches(b *testing.B, sessions int, tracer trace.Tracer, options ...natstest.Option) {
	f := newFleet(b, natstest.Server(b, options...))
	defer f.close()
	echo := func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Output{Value: c.Input}, nil }
	f.tool(schemas.Tool{Name: "rd", Kind: messages.KindRead}, echo)
	f.tool(schemas.Tool{Name: "wr"}, echo)
	f.worker(worker.Config{Slots: max(10, sessions), Tracer: tracer})
	f.coordinator(coordinator.Config{Tracer: tracer})
	input := `{"p":"` + strings.Repeat("x", 128) + `"}`
	calls := make([]call, 10)
	for i := range calls {
		calls[i] = call{"rd", input}
		if i >= 8 {
			calls[i].Name = "wr"
		}
	}
	waits := make([]chan struct{}, sessions)
	index := map[string]int{}
	for s := range waits {
		waits[s] = make(chan struct{}, 1)
		index[fmt.Sprint("s", s)] = s
	}
	unsubscribe, err := f.conn.Subscribe("toolfleet.reply._.*.*", "", func(m bus.Msg) {
		waits[index[strings.Split(m.Subject, ".")[3]]] <- struct{}{}
	})
	if err != nil {
		b.Fatal(err)
	}
	defer unsubscribe()
	var next atomic.Int64
	took := make([]time.Duration, b.N)
	b.ResetTimer()
	done := make(chan struct{})
	for s := range sessions {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				began := time.Now()
				batch := batchIn(messages.Anthropic, fmt.Sprint("s", s), fmt.Sprint("b", n), calls...)
				if err := f.client.Submit(context.Background(), batch); err != nil {
					b.Error(err)
					return
				}
				<-waits[s]
				took[n-1] = time.Since(began)
			}
		}()
	}
	for range sessions {
		<-done
	}
	b.StopTimer()
	b.ReportMetric(float64(10*b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(percentile(took, 50).Microseconds())/1000, "p50-ms")
}
