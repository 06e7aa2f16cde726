package e2e

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// A coordinator drives a batch because it is next in its session, and JetStream delivers the
// batch to another coordinator. The other coordinator learns that the batch is driven, and
// leaves it alone.
func TestABatchIsDrivenByOneCoordinator(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "look", messages.KindRead, time.Minute, "", &n)
		f.worker(worker.Config{Slots: 100})
		for range 3 {
			f.coordinator(coordinator.Config{})
		}
		var ends atomic.Int64
		unsubscribe, err := f.conn.Subscribe("toolfleet.event.>", "", func(m bus.Msg) {
			if m.Header.Get(messages.EventHeader) == string(messages.EventReply) {
				ends.Add(1)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unsubscribe()
		const sessions, batches = 10, 10
		var last []messages.Batch
		for s := range sessions {
			for b := range batches {
				batch := canonical(fmt.Sprint("s", s), fmt.Sprint("b", b), call{"look", `{"ms":8000}`})
				f.submit(batch)
				if b == batches-1 {
					last = append(last, batch)
				}
			}
		}
		for _, b := range last {
			if _, err := f.await(b, 10*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		// The event of the reply comes a moment after the reply.
		f.until("each batch has its reply event", func() bool { return ends.Load() >= sessions*batches })
		// Simulated: repeated events have come by then.
		time.Sleep(time.Minute)
		if replied := ends.Load(); replied > sessions*batches*11/10 {
			t.Errorf("%d batches have %d reply events", sessions*batches, replied)
		}
	})
}
