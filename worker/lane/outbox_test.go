package lane

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/toolfleet/toolfleet/internal/spare"
)

// The sending of a message hangs: the goroutine that queues messages goes on, because it also
// watches the lease. Messages that are queued later are sent in order.
func TestAStuckSendBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running{consumer: &Consumer{goroutines: spare.New()}}
		defer r.consumer.goroutines.End()
		var sent []int
		stuck := make(chan struct{})
		r.queue(func() { <-stuck; sent = append(sent, 0) })
		synctest.Wait()
		for i := 1; i < 10; i++ {
			r.queue(func() { sent = append(sent, i) })
		}
		close(stuck)
		r.work.Wait()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
		r.queue(func() { sent = nil })
		r.work.Wait()
		if sent != nil {
			t.Error("a message queued after the outbox was empty is not sent")
		}
	})
}
