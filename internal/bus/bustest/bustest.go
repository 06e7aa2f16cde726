// Package bustest has helpers for the tests of package bus and of the packages below it:
// connections to a new server, and a pool with jobs.
package bustest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Connect opens a connection that closes with the test.
func Connect(tb testing.TB, srv *devserver.Server) *bus.Conn {
	tb.Helper()
	c, err := bus.Connect(tb.Context(), bus.Options{InProcess: srv, Name: tb.Name()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Dial connects to a server by its URL. The connection closes with the test.
func Dial(t *testing.T, url string) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(t.Context(), bus.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Fleet connects to a new server that has all streams.
func Fleet(tb testing.TB, options ...natstest.Option) *bus.Conn {
	tb.Helper()
	c := Connect(tb, natstest.Server(tb, options...))
	Provision(tb, c)
	return c
}

// Provision makes the streams of the default fleet.
func Provision(tb testing.TB, c *bus.Conn) {
	tb.Helper()
	if err := provision.Ensure(tb.Context(), c, provision.Config{}); err != nil {
		tb.Fatal(err)
	}
}

// Replicated starts a cluster with all streams on all of its nodes.
func Replicated(t *testing.T) *natstest.Cluster {
	t.Helper()
	cl := natstest.StartCluster(t, natstest.Fast)
	c := Dial(t, cl.URL())
	// The timeout is long, because every stream has to elect a leader.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := provision.Ensure(ctx, c, provision.Config{Replicas: natstest.Nodes}); err != nil {
		t.Fatal(err)
	}
	return cl
}

// Raw connects a plain NATS client, without package bus, in the way of an operator's tool.
func Raw(tb testing.TB, srv *devserver.Server) jetstream.JetStream {
	tb.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

// Key returns the key of a batch.
func Key(session, batch string) wire.BatchKey {
	return wire.KeyOf(messages.OneTenant, messages.SessionID(session), messages.BatchID(batch))
}

// Receive returns the next value of a channel. It fails the test if none comes within 30 s.
func Receive[T any](tb testing.TB, ch <-chan T) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		tb.Fatal("nothing came")
		panic("unreachable")
	}
}

// Pool is the name of the pool in tests.
const Pool = "default"

// Workshop connects to a server, and makes the streams and the consumer of a pool.
func Workshop(t *testing.T, srv *devserver.Server, ackWait time.Duration) *bus.Conn {
	t.Helper()
	c := Connect(t, srv)
	Provision(t, c)
	EnsurePool(t, c, ackWait)
	return c
}

// EnsurePool makes the consumer of the pool.
func EnsurePool(t *testing.T, c *bus.Conn, ackWait time.Duration) {
	t.Helper()
	consumer, err := provision.QueueConsumer(c.Names(), Pool, ackWait, 0)
	if err == nil {
		err = provision.EnsureConsumer(t.Context(), c, consumer)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Job returns the subject of the i-th job. Every third job is a write.
func Job(c *bus.Conn, i int) string {
	return c.Names().Lane(i%3 == 0, Pool, Key("s", fmt.Sprint("b", i)).Call(i))
}

// SendJobs stores the jobs with the numbers from to to-1.
func SendJobs(t *testing.T, c *bus.Conn, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := c.Append(t.Context(), Job(c, i), nil, []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

// Until waits in simulated time until ok returns true, and fails the test after limit.
func Until(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

// Pull runs a puller until the test ends or stop is called. stop waits until Run has
// returned.
func Pull(t *testing.T, c *bus.Conn, slots *pull.Slots, handle func(*pull.Delivery)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- pull.New(c, c.Names().Stream(bus.Jobs), Pool).Run(ctx, slots, handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := Receive(t, done); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}
