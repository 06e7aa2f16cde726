package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// follower returns an agent whose connection goes over the link.
func (f *fleet) follower(l *link) (*client.Client, *bus.Conn) {
	conn := l.connect(f, "follower")
	return fleettest.AgentOver(conn, ""), conn
}

// cut breaks every connection over the link.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.ends = nil
}

// The connection of a follower breaks at each step of a batch. The follower receives each
// event once: those before the break, those during the break, and those after it.
func TestFollowThroughACutLink(t *testing.T) {
	t.Parallel()
	const gates = 4
	var opens []func()
	var calls []call
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
		for i := range gates {
			open, _ := f.behindGate(fmt.Sprint("gate", i), messages.KindWrite)
			opens = append(opens, open)
			calls = append(calls, call{fmt.Sprint("gate", i), ""}, call{"echo", ""})
		}
	})
	defer f.close()
	l := newLink(t, f.srv)
	c, conn := f.follower(l)
	defer conn.Close()
	f.submit(canonical("s", "b", calls...))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var told, direct feed
	following := make(chan error, 2)
	go func() { following <- eachEvent(c.Follow(ctx, "s", "b"), told.take) }()
	go func() { following <- eachEvent(f.client.Follow(ctx, "s", "b"), direct.take) }()
	for i, open := range opens {
		running := fmt.Sprint("running ", 2*i, " #1")
		f.until(running, func() bool { return told.has(running) || i == gates-1 && direct.has(running) })
		l.cut()
		if i%2 == 1 {
			f.until("the follower is connected again", conn.Connected)
			l.cut()
		}
		open() // while the connection is down
	}
	for range 2 {
		if err := <-following; err != nil {
			t.Fatal(err)
		}
	}
	checkFeed(t, told.all(), len(calls))
	checkFeed(t, direct.all(), len(calls))
	for i := range gates {
		if name := fmt.Sprint("running ", 2*i, " #1"); !told.has(name) {
			t.Errorf("there is no event %s: %v", name, eventNames(told.all()))
		}
	}
}

// A follower handles events slowly while its connection breaks and comes back. It receives the
// missed events before later ones.
func TestFollowSlowlyThroughACutLink(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	var tried, again atomic.Bool
	var openFirst func()
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
		openFirst, _ = f.behindGate("first", messages.KindWrite)
		f.tool(schemas.Tool{Name: "twice", OnCrash: messages.OnCrashIdempotent, Retry: schemas.Retry{Attempts: 2}}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
			if tried.Swap(true) {
				return tool.Text("done"), nil
			}
			<-gate
			return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: "again", Retryable: true}
		})
	})
	defer f.close()
	l := newLink(t, f.srv)
	c, conn := f.follower(l)
	defer conn.Close()
	b := canonical("s", "b", call{"first", ""}, call{"twice", ""})
	f.submit(b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var told feed
	slow := make(chan struct{})
	following := make(chan error, 1)
	go func() {
		following <- eachEvent(c.Follow(ctx, "s", "b"), func(e messages.Event) {
			told.take(e)
			if eventName(e) == "running 0 #1" {
				<-slow
			}
		})
	}()
	f.until("the first write runs", func() bool { return told.has("running 0 #1") })
	defer conn.OnReconnect(func() { again.Store(true) })()
	l.set(conditions{silent: true}, conditions{silent: true})
	l.cut()
	openFirst()
	f.until("the second write runs", tried.Load)
	l.set(conditions{}, conditions{})
	f.until("the follower is connected again", again.Load)
	close(gate)
	if _, err := f.await(b, time.Minute); err != nil {
		t.Fatal(err)
	}
	close(slow)
	if err := <-following; err != nil {
		t.Fatal(err)
	}
	want := []string{"start 0", "start 1", "running 0 #1", "end 0 #1", "running 1 #1", "running 1 #2", "end 1 #2", "result 0 #1", "result 1 #2", "reply"}
	got := slices.DeleteFunc(told.all(), func(e messages.Event) bool { return e.Type == messages.EventProgress })
	if diff := cmp.Diff(want, eventNames(got)); diff != "" {
		t.Error(diff)
	}
}

// The link of a follower drops everything for a while, and its connection reports no error.
// The follower receives each event once.
func TestFollowThroughASilentLink(t *testing.T) {
	for _, silence := range []time.Duration{time.Second, 45 * time.Second} {
		t.Run(silence.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				var open func()
				var running *atomic.Int32
				f := watchedFleet(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindWrite) })
				defer f.close()
				l := newLink(t, srv)
				c, conn := f.follower(l)
				defer conn.Close()
				var told feed
				f.submit(canonical("s", "b", call{"echo", ""}, call{"gate", ""}, call{"echo", ""}, call{"count", ""}))
				following := make(chan error, 1)
				go func() { following <- eachEvent(c.Follow(t.Context(), "s", "b"), told.take) }()
				f.until("the write runs", func() bool { return running.Load() == 1 })
				f.until("the follower has the event that the write runs", func() bool { return told.has("running 1 #1") })
				l.set(conditions{silent: true}, conditions{silent: true})
				open()
				time.Sleep(silence)
				l.set(conditions{}, conditions{})
				select {
				case err := <-following:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(time.Hour):
					t.Fatalf("the events do not end with the reply: %v", eventNames(told.all()))
				}
				checkFeed(t, told.all(), 4)
			})
		})
	}
}
