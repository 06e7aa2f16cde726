package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// feed records the events that a watcher received.
type feed struct {
	mu     sync.Mutex
	events []messages.Event
}

func (f *feed) take(e messages.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
}

func (f *feed) all() []messages.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

func (f *feed) has(name string) bool { return slices.Contains(eventNames(f.all()), name) }

// ofBatch returns the events of one batch.
func (f *feed) ofBatch(id messages.BatchID) (events []messages.Event) {
	for _, e := range f.all() {
		if e.Batch == id {
			events = append(events, e)
		}
	}
	return events
}

// eachEvent calls each for every event. It returns the error that ends the events, or nil.
func eachEvent(events iter.Seq2[messages.Event, error], each func(messages.Event)) error {
	for e, err := range events {
		if err != nil {
			return err
		}
		each(e)
	}
	return nil
}

// watchedFleet returns a fleet with the tools echo (a read) and count (a write). If more is
// not nil, it adds further tools.
func watchedFleet(t testing.TB, srv *devserver.Server, more func(f *fleet)) *fleet {
	f := newFleet(t, srv)
	f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	f.tool(schemas.Tool{Name: "count"}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("counted"), nil })
	if more != nil {
		more(f)
	}
	erasable := provision.Config{Erasable: true} // so that a test can delete replies
	f.worker(worker.Config{Provision: erasable})
	f.coordinator(coordinator.Config{Provision: erasable})
	return f
}

// Some calls of a batch have ended while others run. A follower and a request get the outputs
// of the ended calls. An end event holds a small output, and a reference to a large one.
func TestOutputsBeforeTheReply(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchedFleet(t, srv, func(f *fleet) {
			open, running = f.behindGate("gate", messages.KindWrite)
			f.tool(schemas.Tool{Name: "say", Kind: messages.KindRead, MaxOutput: 1 << 30}, func(_ context.Context, c tool.Call) (tool.Output, error) {
				var in struct{ N int }
				err := json.Unmarshal(c.Input, &in)
				return tool.Text(strings.Repeat("x", in.N)), err
			})
		})
		defer f.close()
		const most, large, huge = messages.MaxEventOutput - 2, messages.MaxEventOutput - 1, 300 << 10 // plus two quotes
		b := canonical("s", "b", call{"say", `{"n":3}`}, call{"say", fmt.Sprintf(`{"n":%d}`, most)}, call{"say", fmt.Sprintf(`{"n":%d}`, large)},
			call{"say", fmt.Sprintf(`{"n":%d}`, huge)}, call{"nope", ""}, call{"count", ""}, call{"gate", ""})
		f.submit(b)
		var seen feed
		var following sync.WaitGroup
		following.Go(func() {
			if err := eachEvent(f.client.Follow(context.Background(), b.Session, b.ID), seen.take); err != nil {
				t.Error(err)
			}
		})
		f.until("the last call runs", func() bool { return running.Load() == 1 && seen.has("running 6 #1") })
		wantBrief := func(what string, events []messages.Event) {
			t.Helper()
			ends := map[int]*messages.Result{}
			for _, e := range events {
				switch e.Type {
				case messages.EventEnd:
					ends[e.Index] = e.Result
				case messages.EventResult:
					if e.Result.Output != nil {
						t.Errorf("%s: a result event has an output", what)
					}
				}
			}
			for i, n := range []int{3, most} {
				if r := ends[i]; r == nil || len(r.Output) != n+2 || r.Ref != nil || r.Trail != nil {
					t.Errorf("%s: the end of call %d is %+v", what, i, r)
				}
			}
			for i, n := range []int{large, huge} {
				whole := rawjson.MustMarshal(messages.Text(strings.Repeat("x", n)))
				want := messages.Ref{Digest: messages.Digest(whole), Size: int64(len(whole))}
				if r := ends[2+i]; r == nil || r.Output != nil || r.Ref == nil || *r.Ref != want {
					t.Errorf("%s: the end of call %d is %+v, want the ref %+v", what, 2+i, r, want)
				}
			}
			if r := ends[4]; r == nil || r.Status != messages.StatusUnknownTool || r.Err == nil {
				t.Errorf("%s: the end of call 4 is %+v", what, r)
			}
			if r := ends[5]; r == nil || string(r.Output) != `"counted"` {
				t.Errorf("%s: the end of call 5 is %+v", what, r)
			}
		}
		wantBrief("Follow", seen.all())
		wantBrief("timeline", f.timeline(b.Session, b.ID).Events)

		if reply, err := f.client.Get(t.Context(), b.Session, b.ID); !errors.Is(err, client.ErrRunning) || len(reply.Results) > 0 {
			t.Errorf("a plain get of a running batch has %d results, %v", len(reply.Results), err)
		}
		reply, err := f.client.Get(t.Context(), b.Session, b.ID, client.FullResults())
		if !errors.Is(err, client.ErrRunning) || len(reply.Results) != 6 {
			t.Fatalf("a running batch has %d ended calls, %v", len(reply.Results), err)
		}
		for i, n := range []int{3, most, large, huge} {
			if r := reply.Results[i]; r.Index != i || len(r.Output) != n+2 || r.Trail != nil {
				t.Errorf("call %d: %d bytes of output, index %d", i, len(r.Output), r.Index)
			}
		}
		if r := reply.Results[4]; r.Status != messages.StatusUnknownTool {
			t.Errorf("call 4: %+v", r)
		}
		open()
		following.Wait()
		wantBrief("Follow to the end", seen.all())
		for _, e := range f.timeline(b.Session, b.ID).Events {
			if e.Result != nil && e.Result.Output != nil {
				t.Errorf("the timeline of a batch with a reply has the output of call %d", e.Index)
			}
		}
	})
}

// The events of ten reads have a bounded size. The outputs have 200 bytes, then the largest
// size that an event may hold, then more than that.
func TestSizeOfEvents(t *testing.T) {
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), nil)
	defer f.close()
	for _, size := range []int{200, messages.MaxEventOutput - 2 - len(`{"text":""}`), messages.MaxEventOutput * 2} {
		var mu sync.Mutex
		total, count, ended := 0, 0, make(chan struct{})
		stop, err := f.conn.Subscribe("toolfleet.event.>", "", func(m bus.Msg) {
			mu.Lock()
			defer mu.Unlock()
			total, count = total+len(m.Data), count+1
			if m.Header.Get(messages.EventHeader) == string(messages.EventReply) {
				close(ended)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		calls := make([]call, 10)
		for i := range calls {
			calls[i] = call{"echo", fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", size))}
		}
		f.run(canonical("s", fmt.Sprintf("b%d", size), calls...))
		<-ended
		stop()
		t.Logf("ten outputs of %d bytes: %d events, %d bytes", size, count, total)
		if limit := count * 500; total > limit+10*min(size+20, messages.MaxEventOutput) {
			t.Errorf("ten outputs of %d bytes: %d events have %d bytes", size, count, total)
		}
	}
}

// behindGate registers a tool whose runs wait until open is called.
func (f *fleet) behindGate(name string, kind messages.Kind) (open func(), running *atomic.Int32) {
	gate, running := make(chan struct{}), new(atomic.Int32)
	f.tool(schemas.Tool{Name: name, Kind: kind, TimeoutMS: 600_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		running.Add(1)
		c.Progress(messages.Progress{Fraction: 0.5, Text: "half"})
		select {
		case <-gate:
			return tool.Text("through"), nil
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		}
	})
	return sync.OnceFunc(func() { close(gate) }), running
}

// Every guarantee about the order of events holds in batches of all kinds: for a client that
// follows from the beginning, for one that comes late, and for a client that watches the
// session.
func TestFeedsOfManyBatches(t *testing.T) {
	t.Parallel()
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
		f.tool(schemas.Tool{Name: "steps", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			for i := range 20 {
				c.Progress(messages.Progress{Fraction: float64(i) / 10, Text: fmt.Sprint(i)})
				c.Progress(messages.Progress{Fraction: 0.1})
				c.Progress(messages.Progress{Text: "words"})
			}
			return tool.Text("done"), nil
		})
	})
	defer f.close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var watched feed
	watching, end := context.WithCancel(ctx)
	watcher := make(chan error, 1)
	go func() { watcher <- eachEvent(f.client.Watch(watching, "s"), watched.take) }()
	first := 0
	f.until("the watcher gets events", func() bool { // a watcher that starts too late misses the batch
		first++
		b := canonical("s", fmt.Sprint("first", first), call{"count", ""})
		f.run(b)
		return len(watched.all()) > 0
	})
	kinds := []string{"echo", "steps", "count", "nope", "steps", "echo"}
	for i := range repeats(60, 60) {
		var calls []call
		for j := range 1 + i%6 {
			calls = append(calls, call{kinds[(i+j*(1+i/6))%len(kinds)], ""})
		}
		b := canonical("s", fmt.Sprint("b", i), calls...)
		f.submit(b)
		var feeds [2]feed
		var followers sync.WaitGroup
		for k := range feeds {
			followers.Go(func() {
				if k == 1 {
					_, _ = f.await(b, time.Minute)
				}
				if err := eachEvent(f.client.Follow(ctx, "s", b.ID), feeds[k].take); err != nil {
					t.Error(err)
				}
			})
		}
		followers.Wait()
		for k := range feeds {
			checkFeed(t, feeds[k].all(), len(calls))
		}
		f.until("the watcher has the reply of the batch", func() bool {
			events := watched.ofBatch(b.ID)
			return len(events) > 0 && events[len(events)-1].Type == messages.EventReply
		})
		checkFeed(t, watched.ofBatch(b.ID), len(calls))
	}
	end()
	if err := <-watcher; err != nil {
		t.Error(err)
	}
	if err := eachEvent(f.client.Follow(ctx, "s", "never"), nil); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("following a batch that nobody knows: %v", err)
	}
}

// A tool reports progress that jumps back and is out of range, from several goroutines. The
// worker publishes the reports of a run in order, and the fraction never decreases.
func TestProgressNeverGoesBack(t *testing.T) {
	t.Parallel()
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
		f.tool(schemas.Tool{Name: "steps"}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			var tellers sync.WaitGroup
			for range 4 {
				tellers.Go(func() {
					for i := range 25 {
						c.Progress(messages.Progress{Fraction: []float64{float64(i) / 25, 0, 2, -1, math.NaN(), math.Inf(1)}[i%6], Text: "words"})
					}
				})
			}
			tellers.Wait()
			return tool.Text("done"), nil
		})
	})
	defer f.close()
	var raw feed
	stop, err := f.conn.Subscribe("toolfleet.event._.s.b", "", func(m bus.Msg) {
		var e messages.Event
		if err := json.Unmarshal(m.Data, &e); err != nil {
			t.Error(err)
		}
		raw.take(e)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	f.run(canonical("s", "b", call{"steps", ""}))
	f.until("the event of the reply has come", func() bool { return raw.has("reply") })
	checkFeed(t, raw.all(), 1)
	counter, last := 0, 0.0
	for _, e := range raw.all() {
		if e.Worker == "" || e.Result != nil {
			continue
		}
		if e.Counter != counter+1 {
			t.Errorf("%s has counter %d after %d", eventName(e), e.Counter, counter)
		}
		counter = e.Counter
		if e.Type == messages.EventProgress {
			last = e.Progress.Fraction
		}
	}
	if last != 0.96 {
		t.Errorf("the last report is %v, want the highest of all", last)
	}
}

// The worker of a call is lost. A follower sees that another worker makes the second attempt.
func TestAFollowerSeesTheSecondAttempt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		log := f.recordedTool(schemas.Tool{Name: "put", OnCrash: messages.OnCrashIdempotent}, func(ctx context.Context, n int) (tool.Output, error) {
			if n == 1 {
				return waitForStop(ctx)
			}
			return tool.Text("put"), nil
		})
		kill := f.killableWorker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"put", ""})
		f.submit(b)
		var told feed
		following := make(chan error, 1)
		go func() { following <- eachEvent(f.client.Follow(t.Context(), "s", "b"), told.take) }()
		f.hasRun(log, 1)
		f.until("the follower has the first attempt", func() bool { return told.has("running 0 #1") })
		kill()
		f.worker(worker.Config{})
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		want := []string{"start 0", "running 0 #1", "running 0 #2", "end 0 #2", "result 0 #2", "reply"}
		if diff := cmp.Diff(want, eventNames(told.all())); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want, eventNames(f.timeline("s", "b").Events)); diff != "" {
			t.Errorf("timeline: %s", diff)
		}
	})
}

// The first batch of a session has no subscriber. A subscriber to all events who comes before
// the next batches gets every event of them.
func TestEventsReachASubscriberBetweenTwoBatches(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "look", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("seen"), nil })
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		calls := []call{{"look", ""}, {"look", ""}, {"look", ""}}
		f.run(canonical("s", "unheard", calls...))
		var heard feed
		unsubscribe, err := f.conn.Subscribe(f.conn.Names().All(wire.VerbEvent), "", func(m bus.Msg) {
			var e messages.Event
			if json.Unmarshal(m.Data, &e) == nil {
				heard.take(e)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unsubscribe()
		if err := f.conn.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		var sent []messages.Batch
		for i := range 5 { // all of them at once
			sent = append(sent, canonical("s", fmt.Sprint("b", i), calls...))
			f.submit(sent[i])
		}
		for _, b := range sent {
			f.awaitGone(b)
		}
		time.Sleep(time.Second) // simulated
		got := map[string]int{}
		for _, e := range heard.all() {
			got[fmt.Sprint(e.Batch, " ", e.Type)]++
		}
		for _, b := range sent {
			for kind, want := range map[messages.EventType]int{messages.EventStart: 3, messages.EventEnd: 3, messages.EventResult: 3, messages.EventReply: 1} {
				if n := got[fmt.Sprint(b.ID, " ", kind)]; n != want {
					t.Errorf("the subscriber got %d %s events of %s, want %d", n, kind, b.ID, want)
				}
			}
		}
	})
}
