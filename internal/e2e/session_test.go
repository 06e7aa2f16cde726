package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// away breaks the connection over the link until back is called.
func (l *link) away() (back func()) {
	l.set(conditions{silent: true}, conditions{silent: true})
	l.cut()
	return func() { l.set(conditions{}, conditions{}) }
}

// batchesOf returns the batches of events in the order of their first events. It checks that
// the events of two batches do not mix.
func batchesOf(t *testing.T, events []messages.Event) (ids []messages.BatchID) {
	t.Helper()
	for i, e := range events {
		switch {
		case i > 0 && events[i-1].Batch == e.Batch:
		case slices.Contains(ids, e.Batch):
			t.Errorf("the event %s of batch %s comes after one of %s", eventName(e), e.Batch, events[i-1].Batch)
		default:
			ids = append(ids, e.Batch)
		}
	}
	return ids
}

// watchOver watches a session over the link.
func watchOver(f *fleet, l *link, since time.Time) (events *feed, conn *bus.Conn, end func()) {
	c, conn := f.follower(l)
	events, stop := watchWith(f, c, since)
	return events, conn, func() {
		stop()
		conn.Close()
	}
}

func watchWith(f *fleet, c *client.Client, since time.Time) (events *feed, end func()) {
	events = &feed{}
	ctx, cancel := context.WithCancel(context.Background())
	watching := make(chan error, 1)
	go func() { watching <- eachEvent(c.Watch(ctx, "s", client.WatchSince(since)), events.take) }()
	return events, func() {
		cancel()
		if err := <-watching; err != nil {
			f.t.Error(err)
		}
	}
}

func (f *feed) replies() (n int) {
	for _, e := range f.all() {
		if e.Type == messages.EventReply {
			n++
		}
	}
	return n
}

// Batches begin and end while a watcher is disconnected. The watcher receives each batch once,
// with all its events, and in the order in which the batches ran.
func TestWatchReportsWhatHappenedWhileItWasAway(t *testing.T) {
	for name, test := range map[string]struct {
		missed int
		during func(f *fleet, restart func())
		back   func(l *link, conn *bus.Conn)
	}{
		"three batches":                {missed: 3},
		"the coordinator is restarted": {missed: 3, during: func(_ *fleet, restart func()) { restart() }},
		"one batch is submitted again": {missed: 3, during: func(f *fleet, _ func()) {
			f.run(canonical("s", "before", call{"echo", ""}))
			f.run(canonical("s", "away0", call{"echo", ""}, call{"count", ""}, call{"nope", ""}))
		}},
		"more batches than a list holds": {missed: 300},
		"the link breaks again and again": {missed: 30, back: func(l *link, conn *bus.Conn) {
			var times atomic.Int32
			conn.OnReconnect(func() {
				if times.Add(1) < 10 {
					go func() {
						time.Sleep(time.Millisecond)
						l.cut()
					}()
				}
			})
		}},
	} {
		if testing.Short() && test.missed > 100 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
					return tool.Output{Value: c.Input}, nil
				})
				f.tool(schemas.Tool{Name: "count"}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("counted"), nil })
				openFirst, firstRuns := f.behindGate("first", messages.KindWrite)
				openLast, lastRuns := f.behindGate("last", messages.KindWrite)
				f.worker(worker.Config{})
				c := f.coordinator(coordinator.Config{})
				f.run(canonical("s", "before", call{"echo", ""})) // before the watcher: not reported
				f.run(canonical("other", "elsewhere", call{"echo", ""}))
				f.submit(canonical("s", "known", call{"first", ""}, call{"echo", ""}))
				f.until("the first write runs", func() bool { return firstRuns.Load() == 1 })
				l := newLink(t, srv)
				told, conn, end := watchOver(f, l, time.Time{})
				defer end()
				f.until("it is told", func() bool { return told.has("running 0 #1") })

				back := l.away()
				openFirst()
				want := []messages.BatchID{"known"}
				for i := range test.missed {
					id := fmt.Sprint("away", i)
					f.run(canonical("s", id, call{"echo", ""}, call{"count", ""}, call{"nope", ""}))
					want = append(want, messages.BatchID(id))
				}
				if test.during != nil {
					test.during(f, func() {
						c.stop()
						c = f.coordinator(coordinator.Config{})
					})
				}
				f.submit(canonical("s", "open", call{"last", ""}))
				f.submit(canonical("s", "queued", call{"count", ""}))
				f.until("the last write runs", func() bool { return lastRuns.Load() == 1 })
				if test.back != nil {
					test.back(l, conn)
				}
				back()
				f.until("the watcher has every batch that has ended", func() bool { return told.replies() == 1+test.missed })
				openLast()
				f.run(canonical("s", "after", call{"echo", ""}))
				f.until("the watcher has every batch", func() bool { return told.replies() == 4+test.missed })

				want = append(want, "open")
				// The last two are open while the watcher is there. What it missed of one of them
				// comes from the timeline, maybe after the events of the other.
				events := slices.DeleteFunc(told.all(), func(e messages.Event) bool {
					return e.Batch == "queued" || e.Batch == "after"
				})
				if diff := cmp.Diff(want, batchesOf(t, events)); diff != "" {
					t.Error(diff)
				}
				want = append(want, "queued", "after")
				for _, id := range want {
					calls := map[messages.BatchID]int{"known": 2, "open": 1, "queued": 1, "after": 1}[id]
					if calls == 0 {
						calls = 3
					}
					checkFeed(t, told.ofBatch(id), calls)
				}
			})
		})
	}
}

// A batch begins while a watcher catches up with missed batches. The watcher receives it after
// the missed ones, even if no further batch comes.
func TestWatchReportsWhatBeginsWhileItCatchesUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := watchedFleet(t, srv, nil)
		defer f.close()
		l := newLink(t, srv)
		told, _, end := watchOver(f, l, time.Time{})
		defer end()
		time.Sleep(time.Second)
		want := []string{}
		back := l.away()
		for i := range 40 {
			want = append(want, fmt.Sprint("away", i))
			f.run(canonical("s", want[i], call{"echo", ""}))
		}
		back()
		l.set(conditions{delay: 20 * time.Millisecond}, conditions{delay: 20 * time.Millisecond})
		f.until("the watcher has some batches", func() bool { return told.replies() > 3 })
		f.run(canonical("s", "meanwhile", call{"echo", ""}))
		if n := told.replies(); n > 39 {
			t.Fatalf("the watcher already has %d batches", n)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff(append(want, "meanwhile"), batchNames(told.all())); diff != "" {
			t.Error(diff)
		}
	})
}

// The connection of a watcher breaks before the watcher has its first answer. It still
// receives the batches that ended since it began.
func TestWatchBeginsWhileItIsCutOff(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := watchedFleet(t, srv, nil)
		defer f.close()
		f.run(canonical("s", "before", call{"echo", ""}))
		time.Sleep(time.Second)
		l := newLink(t, srv)
		c, conn := f.follower(l)
		defer conn.Close()
		l.set(conditions{silent: true}, conditions{silent: true})
		told, end := watchWith(f, c, time.Time{})
		defer end()
		time.Sleep(time.Second)
		f.run(canonical("s", "meanwhile", call{"echo", ""}))
		var times atomic.Int32
		conn.OnReconnect(func() {
			if times.Add(1) == 1 {
				l.cut()
			}
		})
		l.cut()
		l.set(conditions{}, conditions{})
		time.Sleep(time.Minute)
		f.run(canonical("s", "after", call{"echo", ""}))
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"meanwhile", "after"}, batchNames(told.all())); diff != "" {
			t.Error(diff)
		}
	})
}

// An event arrives over a new connection before the client knows that it has reconnected. The
// watcher still receives the missed events.
func TestWatchSeesABatchBeforeTheReconnect(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := watchedFleet(t, srv, nil)
		defer f.close()
		l := newLink(t, srv)
		c, conn := f.follower(l)
		defer conn.Close()
		back := make(chan struct{}, 1)
		conn.OnReconnect(func() { // the first callback takes a while
			back <- struct{}{}
			time.Sleep(100 * time.Millisecond)
		})
		told, end := watchWith(f, c, time.Time{})
		defer end()
		time.Sleep(time.Second)
		want := []string{"known", "away0", "away1", "away2", "back0", "back1", "back2"}
		f.run(canonical("s", want[0], call{"echo", ""}))
		time.Sleep(time.Second)
		home := l.away()
		for _, id := range want[1:4] {
			f.run(canonical("s", id, call{"echo", ""}))
		}
		home()
		<-back
		for _, id := range want[4:] {
			f.run(canonical("s", id, call{"echo", ""}))
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff(want, batchNames(told.all())); diff != "" {
			t.Error(diff)
		}
	})
}

// The connection of a watcher breaks many times, also while the watcher catches up. It misses
// no batch.
func TestWatchThroughManyCuts(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := watchedFleet(t, srv, nil)
				defer f.close()
				l, dice := newLink(t, srv), rand.New(rand.NewPCG(seed, 0))
				told, _, end := watchOver(f, l, time.Time{})
				defer end()
				time.Sleep(time.Second)
				pace := time.Duration(1+seed%3) * 20 * time.Millisecond
				var want []messages.BatchID
				for cut, batches := time.Now(), repeats(60, 160); len(want) < batches; {
					if time.Now().After(cut) {
						l.cut()
						l.set(conditions{delay: pace / 2}, conditions{delay: pace / 2})
						cut = time.Now().Add(time.Duration(200+dice.IntN(1500)) * time.Millisecond)
					}
					id := fmt.Sprint("b", len(want))
					want = append(want, messages.BatchID(id))
					f.run(canonical("s", id, call{"echo", ""}, call{"count", ""}))
					time.Sleep(time.Duration(dice.Int64N(int64(2 * pace))))
				}
				time.Sleep(time.Minute)
				if diff := cmp.Diff(want, batchesOf(t, told.all())); diff != "" {
					t.Error(diff)
				}
				for _, id := range want {
					checkFeed(t, told.ofBatch(id), 2)
				}
			})
		})
	}
}

// A watcher asks for batches since a time. It receives the batches that have ended since then,
// and the open batches at once.
func TestWatchSince(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		f := watchedFleet(t, srv, func(f *fleet) { open, _ = f.behindGate("gate", messages.KindWrite) })
		defer f.close()
		defer open()
		var began time.Time
		for i := range 4 {
			time.Sleep(time.Minute)
			if i == 2 {
				began = time.Now()
			}
			f.run(canonical("s", fmt.Sprint("b", i), call{"echo", ""}))
		}
		f.submit(canonical("s", "open", call{"gate", ""}))
		time.Sleep(time.Second)
		f.submit(canonical("s", "b3", call{"echo", ""})) // a repeated submit has no event
		for _, test := range []struct {
			since time.Time
			want  []messages.BatchID
		}{
			{time.Time{}, []messages.BatchID{"open"}},
			{began, []messages.BatchID{"b2", "b3", "open"}},
			{began.Add(-time.Hour), []messages.BatchID{"b0", "b1", "b2", "b3", "open"}},
			{began.Add(time.Hour), []messages.BatchID{"open"}},
		} {
			told, _, end := watchOver(f, newLink(t, srv), test.since)
			f.until("the watcher has the open batch", func() bool { return told.has("running 0 #1") && len(told.ofBatch("open")) > 1 })
			time.Sleep(time.Minute)
			if diff := cmp.Diff(test.want, batchesOf(t, told.all())); diff != "" {
				t.Errorf("since %v: %s", test.since, diff)
			}
			end()
		}
	})
}

// Batches are deleted before a watcher is back. They are not reported and delay nothing.
func TestWatchAfterTheRepliesAreForgotten(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := watchedFleet(t, srv, nil)
		defer f.close()
		l := newLink(t, srv)
		told, _, end := watchOver(f, l, time.Time{})
		defer end()
		forget := func() { // as the server does when they expire
			list, err := f.client.Batches(t.Context(), "s", client.ListOptions{Since: time.Unix(0, 0)})
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range list.Batches {
				if err := f.conn.Delete(t.Context(), f.conn.Names().Stream(bus.Replies), b.Place); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.run(canonical("s", "known", call{"echo", ""}))
		f.until("it is told", func() bool { return told.replies() == 1 })
		back := l.away()
		f.run(canonical("s", "forgotten", call{"echo", ""}))
		forget()
		f.run(canonical("s", "kept", call{"echo", ""}))
		f.run(canonical("s", "known", call{"echo", ""})) // another batch with the same id
		back()
		f.until("the watcher has the batches that are still stored", func() bool { return told.replies() == 3 })
		forget() // the session has no records any more
		l.cut()
		time.Sleep(time.Minute)
		f.run(canonical("s", "after", call{"echo", ""}))
		f.until("the watcher has the batch after the cut", func() bool { return told.replies() == 4 })
		if diff := cmp.Diff([]string{"known", "kept", "known", "after"}, batchNames(told.all())); diff != "" {
			t.Error(diff)
		}
	})
}

// batchNames returns the batches of the reply events.
func batchNames(events []messages.Event) (names []string) {
	for _, e := range events {
		if e.Type == messages.EventReply {
			names = append(names, string(e.Batch))
		}
	}
	return names
}

// A list of batches holds one session only, and its length is bounded.
func TestTheBatchesOfASession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		f := watchedFleet(t, srv, func(f *fleet) { open, _ = f.behindGate("gate", messages.KindWrite) })
		defer f.close()
		defer open()
		for i := range 100 {
			f.run(canonical("s", fmt.Sprint("b", i), call{"echo", ""}))
		}
		f.run(canonical("s.", "*", call{"echo", ""}))
		for _, b := range []messages.Batch{canonical("s", "b99"), canonical("s.", "*")} {
			f.awaitGone(b) // until then the batch has a reply and is open
		}
		f.submit(canonical("s", "open", call{"gate", ""}))
		for i := range 100 {
			f.submit(canonical("s", fmt.Sprint("queued", i), call{"echo", ""}))
		}
		now, err := f.client.Batches(t.Context(), "s", client.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(now.Batches); n != 64 || now.Batches[0].Batch != "open" || now.More || now.Newest == nil || now.Newest.Batch != "b99" || now.Place != now.Newest.Place {
			t.Errorf("now: %d, more %v, %+v", n, now.More, now.Newest)
		}
		list, err := f.client.Batches(t.Context(), "s", client.ListOptions{Since: time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC)})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(list.Batches); n != 64 || !list.More || list.Batches[63].Batch != "b63" || list.Batches[63].Status != "completed" || list.Batches[0].Ended.IsZero() {
			t.Fatalf("the first page: %d, more %v: %+v", n, list.More, list.Batches)
		}
		list, err = f.client.Batches(t.Context(), "s", client.ListOptions{After: list.Place})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(list.Batches); n != 36+64 || list.More || list.Batches[35].Batch != "b99" || !list.Batches[36].Open() || list.Batches[36].Batch != "open" {
			t.Errorf("the second page: %d, more %v", n, list.More)
		}
		other, err := f.client.Batches(t.Context(), "s.", client.ListOptions{Since: time.Unix(0, 0)})
		if err != nil || len(other.Batches) != 1 || other.Batches[0].Batch != "*" {
			t.Errorf("another session: %+v, %v", other, err)
		}
		none, err := f.client.Batches(t.Context(), "never", client.ListOptions{Since: time.Unix(0, 0)})
		if err != nil || len(none.Batches) != 0 || none.Place != 0 || none.Newest != nil {
			t.Errorf("a session that nobody knows: %+v, %v", none, err)
		}
		ahead, err := f.client.Batches(t.Context(), "s", client.ListOptions{After: 1 << 62})
		if err != nil || len(ahead.Batches) != 64 || ahead.Batches[0].Batch != "b0" {
			t.Errorf("after a place that is of another time: %d, %v", len(ahead.Batches), err)
		}
	})
}
