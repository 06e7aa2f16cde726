package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Calls that run together end in the opposite order. Each end event comes at once, while other
// calls still run. The result events come in the order of the calls, after the last call has
// ended.
func TestEndsAreReportedAtOnceAndResultsInOrder(t *testing.T) {
	t.Parallel()
	var opens []func()
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
		for i := range 4 {
			open, _ := f.behindGate(fmt.Sprint("gate", i), messages.KindRead)
			opens = append(opens, open)
		}
	})
	defer f.close()
	var told, raw feed // told comes through the client's repairs, raw comes straight from NATS
	listen(t, f.conn, &raw)
	f.submit(canonical("s", "b", call{"gate0", ""}, call{"gate1", ""}, call{"gate2", ""}, call{"gate3", ""}))
	following := make(chan error, 1)
	go func() { following <- eachEvent(f.client.Follow(t.Context(), "s", "b"), told.take) }()
	for i := range opens { // a client that follows later gets no running event
		f.until("every read runs", func() bool { return raw.has(fmt.Sprintf("running %d #1", i)) })
	}
	f.until("the client follows the batch", func() bool { return told.has("start 3") })
	for i := len(opens) - 1; i >= 0; i-- {
		opens[i]()
		f.until("the end of a call comes while others run", func() bool { return told.has(fmt.Sprintf("end %d #1", i)) })
	}
	if err := <-following; err != nil {
		t.Fatal(err)
	}
	want := []string{
		"start 0", "start 1", "start 2", "start 3", "end 3 #1", "end 2 #1", "end 1 #1", "end 0 #1",
		"result 0 #1", "result 1 #1", "result 2 #1", "result 3 #1", "reply",
	}
	f.until("the reply has come", func() bool { return raw.has("reply") })
	for name, events := range map[string][]messages.Event{"followed": told.all(), "as it comes": raw.all()} {
		checkFeed(t, events, 4)
		var got []string
		for _, event := range eventNames(events) {
			if !strings.HasPrefix(event, "running") && !strings.HasPrefix(event, "progress") {
				got = append(got, event)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// listen records every event as it arrives, without the repairs that the client makes.
func listen(t *testing.T, conn *bus.Conn, into *feed) {
	t.Helper()
	stop, err := conn.Subscribe("toolfleet.event._.>", "", func(m bus.Msg) {
		var e messages.Event
		if err := json.Unmarshal(m.Data, &e); err != nil {
			t.Error(err)
		}
		into.take(e)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := conn.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A tool reports progress three times, and the links of the worker and of the follower are
// slow. Each report arrives, in order.
func TestProgressKeepsItsOrderAcrossTheNetwork(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		reports := []messages.Progress{{Fraction: 0.25, Text: "read"}, {Fraction: 0.5}, {Fraction: 0.75, Text: "nearly"}}
		f.tool(schemas.Tool{Name: "nap", Kind: messages.KindRead, TimeoutMS: 60_000}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			for _, p := range reports { // without a pause
				c.Progress(p)
			}
			return tool.Text("done"), nil
		})
		near, far := newLink(t, srv), newLink(t, srv)
		f.coordinator(coordinator.Config{})
		f.workerOver(near, worker.Config{})
		_, conn := f.follower(far)
		defer conn.Close()
		var raw feed
		listen(t, conn, &raw)
		for i, slow := range []conditions{{}, {delay: 300 * time.Millisecond}, {rate: 2000}, {delay: 50 * time.Millisecond, rate: 5000}} {
			near.set(slow, slow)
			far.set(conditions{}, slow)
			b := canonical("s", fmt.Sprint("b", i), call{"nap", ""})
			f.submit(b)
			f.until("the event of the reply has come", func() bool {
				events := raw.ofBatch(b.ID)
				return len(events) > 0 && events[len(events)-1].Type == messages.EventReply
			})
			var got []messages.Progress
			for _, e := range raw.ofBatch(b.ID) {
				if e.Type == messages.EventProgress {
					got = append(got, *e.Progress)
				}
			}
			if diff := cmp.Diff(reports, got); diff != "" {
				t.Errorf("over links like %+v (-want +got):\n%s", slow, diff)
			}
		}
	})
}

// Workers and coordinators are killed at random moments over many batches. For each batch, a
// follower gets all start events before any call runs, each end event once, and at the end the
// results in the order of the calls.
func TestTheOrderOfEventsOutlivesKills(t *testing.T) {
	batches := repeats(80, 200)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		for name, promise := range map[string]schemas.Tool{
			"look": {Kind: messages.KindRead}, "put": {OnCrash: messages.OnCrashIdempotent}, "pay": {OnCrash: messages.OnCrashOnce},
		} {
			promise.Name, promise.TimeoutMS = name, 60_000
			f.tool(promise, func(ctx context.Context, c tool.Call) (tool.Output, error) {
				for i := range 4 {
					c.Progress(messages.Progress{Fraction: float64(i) / 4})
					select {
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
						return tool.Output{}, context.Cause(ctx)
					}
				}
				return tool.Text("done"), nil
			})
		}
		f.worker(worker.Config{Name: "stays"})
		f.coordinator(coordinator.Config{})
		killWorker, killCoordinator := f.killableWorker(worker.Config{}), f.killableCoordinator(coordinator.Config{})
		r := rand.New(rand.NewPCG(8, 9))
		again := 0
		for i := range batches {
			var calls []call
			for range 1 + r.IntN(5) {
				calls = append(calls, call{[]string{"look", "look", "put", "pay", "nope"}[r.IntN(5)], ""})
			}
			b := canonical(fmt.Sprint("s", i), "b", calls...)
			f.submit(b)
			var told feed
			following := make(chan error, 1)
			go func() { following <- eachEvent(f.client.Follow(t.Context(), b.Session, b.ID), told.take) }()
			time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
			if i%3 != 0 {
				killWorker()
				killWorker = f.killableWorker(worker.Config{})
			}
			if i%3 != 1 {
				killCoordinator()
				killCoordinator = f.killableCoordinator(coordinator.Config{})
			}
			select {
			case err := <-following:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(time.Hour):
				t.Fatalf("the events of batch %d do not end with the reply: %v", i, eventNames(told.all()))
			}
			checkFeed(t, told.all(), len(calls))
			for _, e := range told.all() {
				if e.Type == messages.EventRunning && e.Attempt > 1 {
					again++
				}
			}
			if t.Failed() {
				t.Fatalf("batch %d", i)
			}
		}
		if again == 0 {
			t.Error("no call was run again: nobody was killed in the middle")
		}
		t.Logf("%d attempts after the first", again)
	})
}
