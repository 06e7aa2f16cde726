package bus_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// What a power failure leaves of a stream that is not synced: folders, empty files, and the state of its consumers,
// which is synced. The stream is made anew, and its consumer must not wait for it to catch up.
func TestAConsumerThatIsAheadOfItsStreamIsMadeAnew(t *testing.T) {
	srv := natstest.Server(t)
	c := connect(t, srv)
	provision(t, c)
	jobs, err := c.PoolConsumer(pool, time.Second, 0)
	if err != nil {
		t.Fatal(err)
	}
	take := func(n int) {
		t.Helper()
		if err := c.EnsureConsumer(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if _, err := c.Append(t.Context(), fmt.Sprintf("toolfleet.read.%s._.s.b.%d", pool, i), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		taken := make(chan *bus.Delivery, n)
		stop := pull(t, c, bus.NewSlots(n), func(d *bus.Delivery) {
			if err := d.AckSync(t.Context()); err != nil {
				t.Error(err)
			}
			taken <- d
		})
		for range n {
			receive(t, taken)
		}
		stop()
	}
	take(5)
	srv.Stop()
	folder := filepath.Join(srv.DataDir(), "jetstream", "$G", "streams", jobs.Stream)
	if err := os.RemoveAll(filepath.Join(folder, "msgs")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"meta.inf", "meta.sum"} {
		if err := os.Truncate(filepath.Join(folder, file), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	c = connect(t, srv)
	provision(t, c)
	take(2)
}
