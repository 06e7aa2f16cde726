package inspect_test

import (
	"errors"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// Jobs come ten seconds apart, reads and writes. Two are in flight and the others are pending. If
// the pool's consumer is gone, all of them count as pending.
func TestPool(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		bustest.Provision(t, c)
		want := func(when string, pending, inFlight uint64, oldest time.Duration) {
			t.Helper()
			q, err := inspect.Pool(t.Context(), c, bustest.Pool)
			waited := time.Duration(0)
			if !q.Oldest.IsZero() {
				waited = time.Since(q.Oldest).Round(time.Second)
			}
			if err != nil || q.Pending != pending || q.InFlight != inFlight || waited != oldest {
				t.Errorf("%s: %d pending and %d in flight, the oldest for %v, %v; want %d, %d, %v", when, q.Pending, q.InFlight, waited, err, pending, inFlight, oldest)
			}
		}
		want("nothing", 0, 0, 0)
		for i := range 5 {
			bustest.SendJobs(t, c, i, i+1)
			time.Sleep(10 * time.Second)
		}
		want("without a durable", 5, 0, 50*time.Second)
		bustest.EnsurePool(t, c, time.Minute)
		want("before anybody pulls", 5, 0, 50*time.Second)
		release := make(chan struct{})
		stop := bustest.Pull(t, c, pull.NewSlots(2), func(d *pull.Delivery) {
			<-release
			_ = d.Ack()
		})
		time.Sleep(time.Second)
		want("two in hand", 3, 2, 31*time.Second)
		close(release)
		time.Sleep(time.Second)
		want("all done", 0, 0, 0)
		stop()
		jobs := c.Names().Stream(bus.Jobs)
		if s, err := inspect.Consumer(t.Context(), c, jobs, bustest.Pool); err != nil || s.Pending != 0 || s.Delivered.Stream != 5 {
			t.Errorf("its consumer: %+v, %v", s, err)
		}
		if _, err := inspect.Consumer(t.Context(), c, jobs, "other"); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("a consumer that is not there: %v", err)
		}
		if _, err := inspect.Consumer(t.Context(), c, "OTHER", bustest.Pool); !errors.Is(err, bus.ErrNoStream) {
			t.Errorf("a consumer of a stream that is not there: %v", err)
		}
		if _, err := inspect.Pool(t.Context(), c, "a.b"); err == nil {
			t.Error("a pool that cannot be")
		}
	}, natstest.Fast)
}

func TestServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s, err := inspect.Server(t.Context(), bustest.Connect(t, srv))
		if err != nil || s.Name == "" || s.Version == "" || !s.JetStream || time.Since(s.Time) > time.Second {
			t.Errorf("%+v, %v", s, err)
		}
	}, natstest.Fast)
}

func TestStream(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		if err := provision.Ensure(t.Context(), c, provision.Config{MaxBytes: map[string]int64{bus.Jobs: 1 << 20}}); err != nil {
			t.Fatal(err)
		}
		bustest.SendJobs(t, c, 0, 3)
		s, err := inspect.Stream(t.Context(), c, c.Names().Stream(bus.Jobs))
		if err != nil || s.Messages != 3 || s.Bytes < 100 || s.MaxBytes != 1<<20 {
			t.Errorf("%+v, %v", s, err)
		}
		if s, err = inspect.Stream(t.Context(), c, c.Names().Stream(bus.Dead)); err != nil || s.Messages != 0 || s.MaxBytes > 0 {
			t.Errorf("an empty one without a bound: %+v, %v", s, err)
		}
		if _, err := inspect.Stream(t.Context(), c, "OTHER"); !errors.Is(err, bus.ErrNoStream) {
			t.Errorf("one that is not there: %v", err)
		}
	}, natstest.Fast)
}
