package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

const pool = "default"

// workshop has the streams and the consumer of a pool.
func workshop(t *testing.T, srv *devserver.Server, ackWait time.Duration) *bus.Conn {
	t.Helper()
	c := connect(t, srv)
	provision(t, c)
	ensurePool(t, c, ackWait)
	return c
}

func ensurePool(t *testing.T, c *bus.Conn, ackWait time.Duration) {
	t.Helper()
	consumer, err := c.PoolConsumer(pool, ackWait, 0)
	if err == nil {
		err = c.EnsureConsumer(t.Context(), consumer)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keepRemade keeps the pool's consumer, which a restart of the server removes, until stop.
func keepRemade(t *testing.T, c *bus.Conn, ackWait time.Duration) (stop func()) {
	t.Helper()
	consumer, err := c.PoolConsumer(pool, ackWait, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var keeping sync.WaitGroup
	keeping.Go(func() { c.KeepRemade(ctx, bus.Provision{}, consumer) })
	return func() { cancel(); keeping.Wait() }
}

func job(c *bus.Conn, i int) string {
	return c.Names().Lane(i%3 == 0, pool, key("s", fmt.Sprint("b", i)).Call(i))
}

func sendJobs(t *testing.T, c *bus.Conn, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := c.Append(t.Context(), job(c, i), nil, []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

// pull runs a puller until the test ends, or until stop, which waits for Run.
func pull(t *testing.T, c *bus.Conn, slots *bus.Slots, handle func(*bus.Delivery)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Puller(c.Names().Stream(bus.Jobs), pool).Run(ctx, slots, handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := receive(t, done); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// meter counts the running calls, at the same time and in all.
type meter struct {
	mu                 sync.Mutex
	running, most, all int
	seen               map[string]int
}

func newMeter() *meter { return &meter{seen: map[string]int{}} }

func (m *meter) enter(subject string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running++
	m.most = max(m.most, m.running)
	m.all++
	m.seen[subject]++
}

func (m *meter) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
}

// until waits in simulated time.
func until(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

func TestPullerNeverExceedsItsSlots(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			c := workshop(t, srv, 10*time.Second)
			slots, m := bus.NewSlots(n), newMeter()
			pull(t, c, slots, func(d *bus.Delivery) {
				m.enter(d.Subject)
				defer m.leave()
				time.Sleep(time.Duration(1+d.Seq%5) * time.Second)
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
			})
			sendJobs(t, c, 0, 60)
			until(t, "all jobs done", time.Hour, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.all >= 60 && m.running == 0 })
			if m.most != n || m.all != 60 {
				t.Errorf("%d slots: at most %d ran at once, %d runs of 60 jobs", n, m.most, m.all)
			}
		}, natstest.Fast)
	}
}

// Messages without a slot stay at the server, for other workers.
func TestPullerFetchesNothingAhead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := workshop(t, srv, 10*time.Second)
		hold := make(chan struct{})
		var greedy, other atomic.Int32
		handler := func(count *atomic.Int32) func(*bus.Delivery) {
			return func(d *bus.Delivery) {
				count.Add(1)
				<-hold
				_ = d.Ack()
			}
		}
		pull(t, c, bus.NewSlots(3), handler(&greedy))
		time.Sleep(time.Second)
		sendJobs(t, c, 0, 10)
		time.Sleep(time.Second)
		pull(t, c, bus.NewSlots(7), handler(&other))
		time.Sleep(time.Second)
		if greedy.Load() != 3 || other.Load() != 7 {
			t.Errorf("3 slots hold %d, 7 slots hold %d", greedy.Load(), other.Load())
		}
		close(hold)
		time.Sleep(time.Second)
	})
}

func TestPullerOutlivesIdleHours(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := workshop(t, srv, 10*time.Second)
		slots, got := bus.NewSlots(4), make(chan int, 100)
		pull(t, c, slots, func(d *bus.Delivery) {
			got <- d.Delivered
			_ = d.Ack()
		})
		for i := range 5 {
			time.Sleep(3 * time.Hour)
			sendJobs(t, c, i, i+1)
			if n := receive(t, got); n != 1 {
				t.Errorf("job %d came as delivery %d", i, n)
			}
		}
	})
}

func TestPullerOutlivesServerRestarts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := workshop(t, srv, 10*time.Second)
		defer keepRemade(t, c, 10*time.Second)()
		slots, m := bus.NewSlots(5), newMeter()
		pull(t, c, slots, func(d *bus.Delivery) {
			m.enter(d.Subject)
			defer m.leave()
			time.Sleep(2 * time.Second)
			_ = d.Ack() // fails while the server is down: the job comes again
		})
		for round := range 5 {
			sendJobs(t, c, 10*round, 10*round+10)
			time.Sleep(time.Second)
			srv.Stop()
			until(t, "cut off", time.Minute, func() bool { return !c.Connected() })
			time.Sleep(time.Duration(round) * time.Minute)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			until(t, "reconnected", time.Minute, c.Connected)
		}
		until(t, "all jobs done", time.Hour, func() bool {
			left, err := c.All(t.Context(), c.Names().Stream(bus.Jobs), "toolfleet.>")
			return err == nil && len(left) == 0
		})
		until(t, "all but the asked-for slots free", time.Minute, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.running == 0 })
		m.mu.Lock() // a job may come once more after it was done
		defer m.mu.Unlock()
		if m.most > 5 || len(m.seen) != 50 {
			t.Errorf("at most %d at once with 5 slots; %d of 50 jobs seen", m.most, len(m.seen))
		}
	})
}

func TestPullerOutlivesAMissingConsumer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := connect(t, srv)
		got := make(chan int, 10)
		slots := bus.NewSlots(2)
		pull(t, c, slots, func(d *bus.Delivery) {
			got <- 1
			_ = d.Ack()
		})
		time.Sleep(time.Minute) // not even a stream
		provision(t, c)
		time.Sleep(time.Minute)
		ensurePool(t, c, time.Second)
		sendJobs(t, c, 0, 1)
		receive(t, got)
		if err := raw(t, srv).DeleteConsumer(t.Context(), c.Names().Stream(bus.Jobs), pool); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		ensurePool(t, c, time.Second)
		sendJobs(t, c, 1, 2)
		receive(t, got)
	})
}

// After a clean stop no message waits for its AckWait: neither those asked for nor those on their
// way.
func TestAStoppedPullerHandsBackAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := workshop(t, srv, time.Hour)
		slots := bus.NewSlots(5)
		release := make(chan struct{})
		var held atomic.Int32
		stop := pull(t, c, slots, func(d *bus.Delivery) {
			held.Add(1)
			<-release
			_ = d.Ack()
		})
		sendJobs(t, c, 0, 2)
		time.Sleep(time.Second)
		for i := 2; i < 20; i++ { // some on their way while it stops
			if err := c.Send(job(c, i), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		running := int(held.Load())
		if slots.Free() != 5-running {
			t.Errorf("%d slots free with %d handlers running", slots.Free(), running)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := slots.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waited for running handlers: %v", err)
		}
		close(release)
		if err := slots.Wait(t.Context()); err != nil || slots.Free() != 5 {
			t.Errorf("after the handlers: %v, %d free", err, slots.Free())
		}

		var rest atomic.Int32
		pull(t, c, bus.NewSlots(20), func(d *bus.Delivery) {
			rest.Add(1)
			_ = d.Ack()
		})
		time.Sleep(time.Minute)
		if int(rest.Load())+running != 20 {
			t.Errorf("%d ran before, %d came to the next puller within a minute: want 20 in all", running, rest.Load())
		}
	})
}

func TestSettling(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := workshop(t, srv, 10*time.Second)
		got := make(chan *bus.Delivery, 10)
		pull(t, c, bus.NewSlots(1), func(d *bus.Delivery) { got <- d })
		next := func(delivered int, after time.Duration) *bus.Delivery {
			t.Helper()
			began := time.Now()
			d := receive(t, got)
			if waited := time.Since(began).Round(time.Second); d.Delivered != delivered || waited != after {
				t.Errorf("delivery %d after %v, want %d after %v", d.Delivered, waited, delivered, after)
			}
			return d
		}
		sendJobs(t, c, 0, 1)
		d := next(1, 0)
		if d.Subject != job(c, 0) || d.Seq != 1 || time.Since(d.Time) > time.Second || d.Settled() {
			t.Errorf("delivery %+v", d)
		}
		d = next(2, 10*time.Second) // left alone
		for range 5 {               // kept alive past its AckWait
			time.Sleep(8 * time.Second)
			if err := d.InProgress(); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Nak(5 * time.Second); err != nil || !d.Settled() {
			t.Fatal(err)
		}
		for _, again := range []error{d.Ack(), d.Nak(0), d.Term("no"), d.AckSync(t.Context()), d.InProgress()} {
			if again != nil {
				t.Errorf("settled twice: %v", again)
			}
		}
		d = next(3, 5*time.Second)
		if err := d.Nak(0); err != nil {
			t.Fatal(err)
		}
		d = next(4, 0)
		if err := d.Term("on purpose"); err != nil {
			t.Fatal(err)
		}
		sendJobs(t, c, 1, 2)
		d = next(1, 0)
		if err := d.AckSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(got) != 0 {
			t.Error("settled, and came again")
		}
		if left, err := c.All(t.Context(), c.Names().Stream(bus.Jobs), c.Names().All(wire.VerbRead)); err != nil || len(left) != 0 {
			t.Errorf("still in the queue: %d, %v", len(left), err)
		}
	})
}

// A delivery whose acknowledgement could not be sent is not settled: it can be settled again.
func TestSettlingWhileDisconnected(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := workshop(t, srv, time.Hour)
		got := make(chan *bus.Delivery, 10)
		pull(t, c, bus.NewSlots(1), func(d *bus.Delivery) { got <- d })
		sendJobs(t, c, 0, 1)
		d := receive(t, got)
		srv.Stop()
		until(t, "disconnected", time.Minute, func() bool { return !c.Connected() })
		if err := d.Ack(); !errors.Is(err, bus.ErrDisconnected) || d.Settled() {
			t.Errorf("ack while disconnected: %v, settled %v", err, d.Settled())
		}
	})
}
