package bus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// Jobs come ten seconds apart, reads and writes. Two are in hand and the others wait. Where the
// pool's durable is gone, all of them wait.
func TestAboutPool(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := connect(t, srv)
		provision(t, c)
		want := func(when string, pending, inFlight uint64, oldest time.Duration) {
			t.Helper()
			q, err := c.AboutPool(t.Context(), pool)
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
			sendJobs(t, c, i, i+1)
			time.Sleep(10 * time.Second)
		}
		want("without a durable", 5, 0, 50*time.Second)
		ensurePool(t, c, time.Minute)
		want("before anybody pulls", 5, 0, 50*time.Second)
		release := make(chan struct{})
		stop := pull(t, c, bus.NewSlots(2), func(d *bus.Delivery) {
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
		if s, err := c.AboutConsumer(t.Context(), jobs, pool); err != nil || s.Pending != 0 || s.Delivered.Stream != 5 {
			t.Errorf("its consumer: %+v, %v", s, err)
		}
		if _, err := c.AboutConsumer(t.Context(), jobs, "other"); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("a consumer that is not there: %v", err)
		}
		if _, err := c.AboutConsumer(t.Context(), "OTHER", pool); !errors.Is(err, bus.ErrNoStream) {
			t.Errorf("a consumer of a stream that is not there: %v", err)
		}
		if _, err := c.AboutPool(t.Context(), "a.b"); err == nil {
			t.Error("a pool that cannot be")
		}
	}, natstest.Fast)
}

func TestAboutServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s, err := connect(t, srv).AboutServer(t.Context())
		if err != nil || s.Name == "" || s.Version == "" || !s.JetStream || time.Since(s.Time) > time.Second {
			t.Errorf("%+v, %v", s, err)
		}
	}, natstest.Fast)
}

func TestAboutStream(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := connect(t, srv)
		if err := c.Provision(t.Context(), bus.Provision{MaxBytes: map[string]int64{bus.Jobs: 1 << 20}}); err != nil {
			t.Fatal(err)
		}
		sendJobs(t, c, 0, 3)
		s, err := c.AboutStream(t.Context(), c.Names().Stream(bus.Jobs))
		if err != nil || s.Messages != 3 || s.Bytes < 100 || s.MaxBytes != 1<<20 {
			t.Errorf("%+v, %v", s, err)
		}
		if s, err = c.AboutStream(t.Context(), c.Names().Stream(bus.Dead)); err != nil || s.Messages != 0 || s.MaxBytes > 0 {
			t.Errorf("an empty one without a bound: %+v, %v", s, err)
		}
		if _, err := c.AboutStream(t.Context(), "OTHER"); !errors.Is(err, bus.ErrNoStream) {
			t.Errorf("one that is not there: %v", err)
		}
	}, natstest.Fast)
}

func TestValues(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := connect(t, srv)
		if err := c.Provision(t.Context(), bus.Provision{WorkerTTL: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		name := c.Names().Stream(bus.BucketWorkers)
		bucket, err := c.Bucket(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		put := func(key string) {
			t.Helper()
			if err := bucket.Put(t.Context(), key, []byte("value of "+key)); err != nil {
				t.Fatal(err)
			}
		}
		put("aged")
		until(t, "the old value has aged", time.Minute, func() bool {
			_, found, err := bucket.Get(t.Context(), "aged")
			return err == nil && !found
		})
		put("a")
		put("b")
		put("gone")
		if err := bucket.Delete(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		got, err := c.Values(t.Context(), name)
		if want := map[string][]byte{"a": []byte("value of a"), "b": []byte("value of b")}; err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s, %v", got, err)
		}
	}, natstest.Fast)
}

func TestTheMetricsOfAConnection(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := connect(t, srv)
		reg := prometheus.NewRegistry()
		reg.MustRegister(c.Collectors()...)
		want := func(when string, want map[string]float64) {
			t.Helper()
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for _, f := range families {
				got[f.GetName()] = f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		want("at first", map[string]float64{"toolfleet_nats_connected": 1, "toolfleet_nats_reconnects_total": 0})
		srv.Stop()
		time.Sleep(time.Second)
		want("while the server is away", map[string]float64{"toolfleet_nats_connected": 0, "toolfleet_nats_reconnects_total": 0})
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		want("after that", map[string]float64{"toolfleet_nats_connected": 1, "toolfleet_nats_reconnects_total": 1})
	}, natstest.Fast)
}
