package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// BenchmarkBatch runs batches of 8 reads and 2 writes with tools that do nothing, from submit to reply, in
// one process. Compare ratios of one run (-count=6, benchstat), never absolute figures.
func BenchmarkBatch(b *testing.B) {
	for _, sync := range []struct {
		name    string
		options []natstest.Option
	}{{"file", []natstest.Option{natstest.Fast}}, {"sync", nil}} {
		for _, sessions := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/sessions=%d", sync.name, sessions), func(b *testing.B) {
				f := newFleet(b, natstest.Server(b, sync.options...))
				defer f.close()
				echo := func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Output{Value: c.Input}, nil }
				f.tool(schemas.Tool{Name: "rd", Kind: messages.Read}, echo)
				f.tool(schemas.Tool{Name: "wr"}, echo)
				f.worker(worker.Config{Slots: max(10, sessions)})
				f.coordinator(coordinator.Config{})
				input := `{"p":"` + strings.Repeat("x", 128) + `"}`
				calls := make([]call, 10)
				for i := range calls {
					calls[i] = call{"rd", input}
					if i >= 8 {
						calls[i].name = "wr"
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
							batch := batchIn(messages.Anthropic, fmt.Sprint("s", s), fmt.Sprint("b", n), calls...)
							if err := f.client.Submit(context.Background(), batch); err != nil {
								b.Error(err)
								return
							}
							<-waits[s]
						}
					}()
				}
				for range sessions {
					<-done
				}
				b.StopTimer()
				b.ReportMetric(float64(10*b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		}
	}
}
