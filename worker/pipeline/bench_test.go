package pipeline

import (
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// BenchmarkRun measures the six phases around a tool that does nothing: without tracing, with a
// trace that is not recorded, and with a recorded trace.
func BenchmarkRun(b *testing.B) {
	tracer := func(s sdktrace.Sampler) trace.Tracer {
		return sdktrace.NewTracerProvider(sdktrace.WithSampler(s)).Tracer("")
	}
	for name, tracer := range map[string]trace.Tracer{
		"silent": nil, "dropped": tracer(sdktrace.NeverSample()), "recorded": tracer(sdktrace.AlwaysSample()),
	} {
		b.Run(name, func(b *testing.B) {
			read := with(write, func(t *schemas.Tool) { t.Name, t.Kind = "r", messages.KindRead })
			pipe, job := made(b, Config{Tracer: tracer}, read, &probe{}), jobFor(read, `{"n":1}`)
			b.ReportAllocs()
			for b.Loop() {
				if r, err := pipe.Run(b.Context(), job, nil, nil, nil); err != nil || r.Status != messages.StatusOK {
					b.Fatal(r, err)
				}
			}
		})
	}
}
