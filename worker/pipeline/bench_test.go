package pipeline

import (
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// BenchmarkRun is what the six phases cost around a tool that does nothing, without tracing.
func BenchmarkRun(b *testing.B) {
	read := with(write, func(t *schemas.Tool) { t.Name, t.Kind = "r", messages.Read })
	pipe, job := made(b, Config{}, read, &probe{}), jobFor(read, `{"n":1}`)
	b.ReportAllocs()
	for b.Loop() {
		if r, err := pipe.Run(b.Context(), job, nil, nil, nil); err != nil || r.Status != messages.StatusOK {
			b.Fatal(r, err)
		}
	}
}
