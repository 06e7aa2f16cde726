package natstest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A bubble depends on details of nats-server and nats.go. If an upgrade breaks one, this test
// fails with a clear message before all the others hang.
func TestBubbleAdvances(t *testing.T) {
	real := time.Now()
	advanced := make(chan struct{})
	watchdog := time.AfterFunc(time.Minute, func() {
		select {
		case <-advanced:
		default:
			panic("a bubble's clock stands still over a live nats-server for a minute of real time: " +
				"something in the server or in nats.go waits on a channel, mutex or socket that was made outside " +
				"the bubble (see natstest.Bubble; nats-server's ats package was the one known before)")
		}
	})
	defer watchdog.Stop()

	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		js := connect(t, srv)
		consumer := queue(t, ctx, js, 10*time.Second)
		if _, err := js.Publish(ctx, "work.1", []byte("job")); err != nil {
			t.Fatal(err)
		}
		next(t, consumer, 1)
		before := time.Now()
		next(t, consumer, 2)
		if waited := time.Since(before); waited < 10*time.Second || waited > 12*time.Second {
			t.Errorf("redelivered after %v of simulated time, want the 10 s of AckWait", waited)
		}
	})
	close(advanced)
	t.Logf("10 simulated seconds took %v", time.Since(real))
}

func TestBubbleRestartsOverTheSameStore(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		js := connect(t, srv)
		consumer := queue(t, ctx, js, 10*time.Second)
		if _, err := js.Publish(ctx, "work.1", []byte("job")); err != nil {
			t.Fatal(err)
		}
		next(t, consumer, 1)

		srv.Stop()
		if _, err := srv.InProcessConn(); err == nil {
			t.Error("a stopped server takes connections")
		}
		time.Sleep(5 * time.Minute)
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		for !js.Conn().IsConnected() {
			if !sleep(ctx, 100*time.Millisecond) {
				t.Fatal("the client did not come back")
			}
		}
		next(t, consumer, 2)
	})
}

// A stream with a MaxAge removes messages by simulated time, neither too early nor too late.
func TestBubbleExpires(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		js := connect(t, srv)
		s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "AGING", Subjects: []string{"aging"}, MaxAge: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if _, err := js.Publish(ctx, "aging", nil); err != nil {
				t.Fatal(err)
			}
			info, err := s.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want := min(i+1, 4); int(info.State.Msgs) != want {
				t.Errorf("after %d times 17 minutes there are %d messages, want %d", i, info.State.Msgs, want)
			}
			time.Sleep(17 * time.Minute)
		}
	})
}

func TestBubblesFollowOneAnother(t *testing.T) {
	for range 5 {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			js := connect(t, srv)
			queue(t, ctx, js, time.Second)
			time.Sleep(3 * time.Second)
			synctest.Wait()
		}, natstest.Fast)
	}
}

func connect(t *testing.T, srv *devserver.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func queue(t *testing.T, ctx context.Context, js jetstream.JetStream, ackWait time.Duration) jetstream.Consumer {
	t.Helper()
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.*"}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "w", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// next receives one message without acknowledging it, and checks its delivery count.
func next(t *testing.T, c jetstream.Consumer, delivery uint64) {
	t.Helper()
	m, err := c.Next(jetstream.FetchMaxWait(30 * time.Second))
	if err != nil {
		t.Fatalf("delivery %d: %v", delivery, err)
	}
	meta, err := m.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	if meta.NumDelivered != delivery {
		t.Errorf("delivery %d, want %d", meta.NumDelivered, delivery)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
