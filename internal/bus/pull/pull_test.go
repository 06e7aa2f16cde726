package pull_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// keepRemade makes the pool's consumer again whenever it is gone, for example after a restart
// of the server. It does so until stop is called.
func keepRemade(t *testing.T, c *bus.Conn, ackWait time.Duration) (stop func()) {
	t.Helper()
	consumer, err := provision.QueueConsumer(c.Names(), bustest.Pool, ackWait, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var keeping sync.WaitGroup
	keeping.Go(func() { provision.KeepRemade(ctx, c, provision.Config{}, consumer) })
	return func() { cancel(); keeping.Wait() }
}

// meter counts calls: those that run now, the most that ran at once, and all of them.
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

func TestPullerNeverExceedsItsSlots(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			c := bustest.Workshop(t, srv, 10*time.Second)
			slots, m := pull.NewSlots(n), newMeter()
			bustest.Pull(t, c, slots, func(d *pull.Delivery) {
				m.enter(d.Subject)
				defer m.leave()
				time.Sleep(time.Duration(1+d.Seq%5) * time.Second)
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
			})
			bustest.SendJobs(t, c, 0, 60)
			bustest.Until(t, "all jobs done", time.Hour, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.all >= 60 && m.running == 0 })
			if m.most != n || m.all != 60 {
				t.Errorf("%d slots: at most %d ran at once, %d runs of 60 jobs", n, m.most, m.all)
			}
		}, natstest.Fast)
	}
}

// A puller without a free slot fetches no message, so the message stays at the server for
// other workers.
func TestPullerFetchesNothingAhead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Workshop(t, srv, 10*time.Second)
		hold := make(chan struct{})
		var greedy, other atomic.Int32
		handler := func(count *atomic.Int32) func(*pull.Delivery) {
			return func(d *pull.Delivery) {
				count.Add(1)
				<-hold
				_ = d.Ack()
			}
		}
		bustest.Pull(t, c, pull.NewSlots(3), handler(&greedy))
		time.Sleep(time.Second)
		bustest.SendJobs(t, c, 0, 10)
		time.Sleep(time.Second)
		bustest.Pull(t, c, pull.NewSlots(7), handler(&other))
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
		c := bustest.Workshop(t, srv, 10*time.Second)
		slots, got := pull.NewSlots(4), make(chan int, 100)
		bustest.Pull(t, c, slots, func(d *pull.Delivery) {
			got <- d.Delivered
			_ = d.Ack()
		})
		for i := range 5 {
			time.Sleep(3 * time.Hour)
			bustest.SendJobs(t, c, i, i+1)
			if n := bustest.Receive(t, got); n != 1 {
				t.Errorf("job %d came as delivery %d", i, n)
			}
		}
	})
}

func TestPullerOutlivesServerRestarts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Workshop(t, srv, 10*time.Second)
		defer keepRemade(t, c, 10*time.Second)()
		slots, m := pull.NewSlots(5), newMeter()
		bustest.Pull(t, c, slots, func(d *pull.Delivery) {
			m.enter(d.Subject)
			defer m.leave()
			time.Sleep(2 * time.Second)
			_ = d.Ack() // it fails while the server is down, and then the job comes again
		})
		for round := range 5 {
			bustest.SendJobs(t, c, 10*round, 10*round+10)
			time.Sleep(time.Second)
			srv.Stop()
			bustest.Until(t, "cut off", time.Minute, func() bool { return !c.Connected() })
			time.Sleep(time.Duration(round) * time.Minute)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			bustest.Until(t, "reconnected", time.Minute, c.Connected)
		}
		bustest.Until(t, "all jobs done", time.Hour, func() bool {
			left, err := c.All(t.Context(), c.Names().Stream(bus.Jobs), "toolfleet.>")
			return err == nil && len(left) == 0
		})
		bustest.Until(t, "all but the asked-for slots free", time.Minute, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.running == 0 })
		m.mu.Lock() // so a job may come once more after it was done
		defer m.mu.Unlock()
		if m.most > 5 || len(m.seen) != 50 {
			t.Errorf("at most %d at once with 5 slots; %d of 50 jobs seen", m.most, len(m.seen))
		}
	})
}

func TestPullerOutlivesAMissingConsumer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		got := make(chan int, 10)
		slots := pull.NewSlots(2)
		bustest.Pull(t, c, slots, func(d *pull.Delivery) {
			got <- 1
			_ = d.Ack()
		})
		time.Sleep(time.Minute) // the stream is missing as well for a while
		bustest.Provision(t, c)
		time.Sleep(time.Minute)
		bustest.EnsurePool(t, c, time.Second)
		bustest.SendJobs(t, c, 0, 1)
		bustest.Receive(t, got)
		if err := bustest.Raw(t, srv).DeleteConsumer(t.Context(), c.Names().Stream(bus.Jobs), bustest.Pool); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		bustest.EnsurePool(t, c, time.Second)
		bustest.SendJobs(t, c, 1, 2)
		bustest.Receive(t, got)
	})
}

// A puller is stopped cleanly: no message has to wait for its AckWait, neither one that was
// requested nor one that is on its way.
func TestAStoppedPullerHandsBackAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Workshop(t, srv, time.Hour)
		slots := pull.NewSlots(5)
		release := make(chan struct{})
		var held atomic.Int32
		stop := bustest.Pull(t, c, slots, func(d *pull.Delivery) {
			held.Add(1)
			<-release
			_ = d.Ack()
		})
		bustest.SendJobs(t, c, 0, 2)
		time.Sleep(time.Second)
		for i := 2; i < 20; i++ { // some of these jobs are on their way when the puller stops
			if err := c.Send(bustest.Job(c, i), nil, nil); err != nil {
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
		bustest.Pull(t, c, pull.NewSlots(20), func(d *pull.Delivery) {
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
		c := bustest.Workshop(t, srv, 10*time.Second)
		got := make(chan *pull.Delivery, 10)
		bustest.Pull(t, c, pull.NewSlots(1), func(d *pull.Delivery) { got <- d })
		next := func(delivered int, after time.Duration) *pull.Delivery {
			t.Helper()
			began := time.Now()
			d := bustest.Receive(t, got)
			if waited := time.Since(began).Round(time.Second); d.Delivered != delivered || waited != after {
				t.Errorf("delivery %d after %v, want %d after %v", d.Delivered, waited, delivered, after)
			}
			return d
		}
		bustest.SendJobs(t, c, 0, 1)
		d := next(1, 0)
		if d.Subject != bustest.Job(c, 0) || d.Seq != 1 || time.Since(d.Time) > time.Second || d.Settled() {
			t.Errorf("delivery %+v", d)
		}
		d = next(2, 10*time.Second) // the first delivery was not settled, so the job comes again
		for range 5 {               // the delivery is extended past its AckWait
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
		bustest.SendJobs(t, c, 1, 2)
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

// An acknowledgement could not be sent: the delivery counts as not settled, and can be settled
// again.
func TestSettlingWhileDisconnected(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Workshop(t, srv, time.Hour)
		got := make(chan *pull.Delivery, 10)
		bustest.Pull(t, c, pull.NewSlots(1), func(d *pull.Delivery) { got <- d })
		bustest.SendJobs(t, c, 0, 1)
		d := bustest.Receive(t, got)
		srv.Stop()
		bustest.Until(t, "disconnected", time.Minute, func() bool { return !c.Connected() })
		if err := d.Ack(); !errors.Is(err, bus.ErrDisconnected) || d.Settled() {
			t.Errorf("ack while disconnected: %v, settled %v", err, d.Settled())
		}
	})
}

// A puller of two consumers takes messages of both into the same slots. A message of the first
// consumer hardly ever waits because the puller looks at the second one.
func TestPullerLooksAside(t *testing.T) {
	for _, n := range []int{1, 3} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			c := bustest.Workshop(t, srv, 10*time.Second)
			first := wire.QueueToken(bustest.Pool, []string{"a"})
			consumer, err := provision.QueueConsumer(c.Names(), first, 10*time.Second, 0)
			if err == nil {
				err = provision.EnsureConsumer(t.Context(), c, consumer)
			}
			if err != nil {
				t.Fatal(err)
			}
			slots, m := pull.NewSlots(n), newMeter()
			p := pull.New(c, c.Names().Stream(bus.Jobs), first)
			p.Aside(bustest.Pool)
			waited := make(chan time.Duration, 100)
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			done := make(chan error, 1)
			go func() {
				done <- p.Run(ctx, slots, func(d *pull.Delivery) {
					m.enter(d.Subject)
					defer m.leave()
					waited <- time.Since(d.Time)
					time.Sleep(time.Second)
					_ = d.Ack()
				})
			}()
			send := func(queue string, i int) {
				if _, err := c.Append(t.Context(), c.Names().Lane(false, queue, bustest.Key("s", queue).Call(i)), nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 40 { // one at a time, while the puller is idle
				time.Sleep(7*time.Second + time.Duration(i)*100*time.Millisecond)
				send(first, i)
				if took := bustest.Receive(t, waited); took > 50*time.Millisecond { // simulated
					t.Errorf("a message of the first consumer waited for %v", took)
				}
			}
			time.Sleep(time.Minute)
			send(bustest.Pool, 1000)
			if took := bustest.Receive(t, waited); took > 4*time.Second { // simulated
				t.Errorf("a message of the second consumer waited for %v", took)
			}
			for i := range 20 {
				send(first, 100+i)
				send(bustest.Pool, 100+i)
			}
			began := time.Now()
			bustest.Until(t, "all are done", time.Hour, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.all == 81 && m.running == 0 })
			if took, want := time.Since(began), time.Duration(40/n+2)*time.Second*3/2; took > want { // simulated
				t.Errorf("40 messages of a second took %d slots %v, want at most %v", n, took, want)
			}
			if m.most > n {
				t.Errorf("%d ran at once with %d slots", m.most, n)
			}
			cancel()
			if err := bustest.Receive(t, done); err != nil {
				t.Error(err)
			}
		}, natstest.Fast)
	}
}
