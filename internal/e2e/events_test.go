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
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
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

// of returns the events of one batch.
func (f *feed) of(id messages.BatchID) (events []messages.Event) {
	for _, e := range f.all() {
		if e.Batch == id {
			events = append(events, e)
		}
	}
	return events
}

// eachEvent calls each for every event, and returns the error at the end.
func eachEvent(events iter.Seq2[messages.Event, error], each func(messages.Event)) error {
	for e, err := range events {
		if err != nil {
			return err
		}
		each(e)
	}
	return nil
}

// watchable returns a fleet with the tools echo (a read) and count (a write), and those that more
// adds.
func watchable(t testing.TB, srv *devserver.Server, more func(f *fleet)) *fleet {
	f := newFleet(t, srv)
	f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	f.tool(schemas.Tool{Name: "count"}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("counted"), nil })
	if more != nil {
		more(f)
	}
	erasable := provision.Config{Erasable: true} // so that a test can forget replies
	f.worker(worker.Config{Provision: erasable})
	f.coordinator(coordinator.Config{Provision: erasable})
	return f
}

// A watcher and a request see what a call has given while the others still run. An end event has a
// small output, and names a larger one.
func TestOutputsBeforeTheReply(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchable(t, srv, func(f *fleet) {
			open, running = f.behindGate("gate", messages.KindWrite)
			f.tool(schemas.Tool{Name: "say", Kind: messages.KindRead, MaxOutput: 1 << 30}, func(_ context.Context, c tool.Call) (tool.Output, error) {
				var in struct{ N int }
				err := json.Unmarshal(c.Input, &in)
				return tool.Text(strings.Repeat("x", in.N)), err
			})
		})
		defer f.close()
		const most, large, huge = messages.MaxEventOutput - 2, messages.MaxEventOutput - 1, 300 << 10 // with their quotes
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

// What the events of a batch cost: those of ten reads with an output of 200 characters, and with one
// that is as large as an event may have.
func TestSizeOfEvents(t *testing.T) {
	f := watchable(t, natstest.Server(t, natstest.Fast), nil)
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

// behindGate registers a tool whose runs wait until the gate is opened.
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

func (f *fleet) timeline(s messages.SessionID, b messages.BatchID) messages.Timeline {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tl, err := f.client.Timeline(ctx, s, b)
	if err != nil {
		f.t.Fatalf("timeline of %s: %v", b, err)
	}
	return tl
}

func TestTheTimelineOfABatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchable(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindWrite) })
		defer f.close()
		if _, err := f.client.Timeline(t.Context(), "s", "never"); !errors.Is(err, client.ErrUnknown) {
			t.Errorf("a batch that nobody knows: %v", err)
		}
		b := canonical("s", "b", call{"echo", `{"a":1}`}, call{"gate", ""}, call{"nope", ""}, call{"echo", ""})
		f.submit(b)
		f.submit(canonical("s", "next", call{"echo", ""}, call{"count", ""}))
		f.until("the write runs", func() bool { return running.Load() == 1 })

		queued := f.timeline("s", "next")
		if diff := cmp.Diff([]string{"start 0", "start 1"}, eventNames(queued.Events)); diff != "" || queued.Status != "running" || queued.Accepted.IsZero() {
			t.Errorf("a batch that is queued: %s, accepted %v\n%s", queued.Status, queued.Accepted, diff)
		}
		now := f.timeline("s", "b")
		want := []string{"start 0", "start 1", "start 2", "start 3", "end 2", "running 0 #1", "end 0 #1", "running 1 #1"}
		if diff := cmp.Diff(want, eventNames(now.Events)); diff != "" || now.Status != "running" || now.Session != "s" || now.Batch != "b" {
			t.Errorf("a batch that runs: %+v\n%s", now, diff)
		}
		for i, stage := range []int{0, 1, 2, 2} {
			if e := now.Events[i]; e.Stage != stage || e.CallID != messages.CallID(fmt.Sprint("c", i)) || e.Tool == "" {
				t.Errorf("start of call %d: %+v", i, e)
			}
		}
		open()
		if _, err := f.await(b, time.Hour); err != nil {
			t.Fatal(err)
		}
		done := f.timeline("s", "b")
		checkFeed(t, done.Events, 4)
		if n := len(want); done.Status != "completed" || !slices.Equal(eventNames(done.Events)[:n], want) {
			t.Errorf("a batch that has ended: %s, %v, want it to begin with %v", done.Status, eventNames(done.Events), want)
		}
		for i := 1; i < len(done.Events); i++ {
			if e := done.Events[i]; e.Time.Before(done.Events[i-1].Time) || e.Time.IsZero() {
				t.Errorf("%s is at %v, after one at %v", eventName(e), e.Time, done.Events[i-1].Time)
			}
		}
		for _, e := range done.Events {
			if e.Type == messages.EventStart && e.Stage != []int{0, 1, 2, 2}[e.Index] {
				t.Errorf("start of call %d in stage %d", e.Index, e.Stage)
			}
		}

		// The records of a batch are deleted long before its reply.
		if _, err := f.await(canonical("s", "next"), time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Hour)
		late := f.timeline("s", "b")
		checkFeed(t, late.Events, 4)
		slices.Sort(want)
		if got := eventNames(late.Events)[:len(want)]; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("from the reply alone: %v, want %v in some order", got, want)
		}
	})
}

// Before the plan is stored, the timeline says only that the calls belong to the batch, because the
// plan decides the rest. So it never reports an end that did not happen.
func TestATimelineBeforeThePlan(t *testing.T) {
	late := func(f *fleet) {
		more := &tool.Registry{}
		promise := schemas.Tool{Name: "late", Kind: messages.KindRead, InputSchema: []byte(`{"type":"object"}`)}
		if err := more.Add(promise, tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })); err != nil {
			f.t.Fatal(err)
		}
		f.workerWith(more, worker.Config{Name: "late"})
	}
	for name, start := range map[string]func(f *fleet) (open func()){
		"in a fleet that just starts": func(f *fleet) func() {
			f.coordinator(coordinator.Config{})
			return func() {}
		},
		"behind another batch": func(f *fleet) func() {
			open, running := f.behindGate("gate", messages.KindWrite)
			f.worker(worker.Config{})
			f.coordinator(coordinator.Config{})
			f.submit(canonical("s", "first", call{"gate", ""}))
			f.until("the first runs", func() bool { return running.Load() == 1 })
			return open
		},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				open := start(f)
				b := canonical("s", "b", call{"late", ""})
				f.submit(b)
				var told feed
				following := make(chan error, 1)
				go func() { following <- eachEvent(f.client.Follow(t.Context(), "s", "b"), told.take) }()
				time.Sleep(time.Second)
				if diff := cmp.Diff([]string{"start 0"}, eventNames(f.timeline("s", "b").Events)); diff != "" {
					t.Errorf("before it is planned: %s", diff)
				}
				late(f)
				time.Sleep(time.Second)
				open()
				if _, err := f.await(b, time.Hour); err != nil {
					t.Fatal(err)
				}
				if err := <-following; err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]string{"start 0", "running 0 #1", "end 0 #1", "result 0 #1", "reply"}, eventNames(told.all())); diff != "" {
					t.Error(diff)
				}
				for _, e := range told.all() {
					if e.Result != nil && e.Result.Status != messages.StatusOK {
						t.Errorf("%s: %s", eventName(e), e.Result.Status)
					}
				}
			})
		})
	}
}

// A tool is announced again as another kind while its calls run: the timeline keeps to the plan.
func TestATimelineIsThePlans(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchable(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindRead) })
		defer f.close()
		reads := canonical("s", "reads", call{"gate", ""}, call{"echo", ""})
		mixed := canonical("other", "mixed", call{"count", ""}, call{"gate", ""}, call{"echo", ""})
		f.submit(reads)
		f.submit(mixed)
		f.until("the reads run", func() bool { return running.Load() == 2 })
		kinds := func(s messages.SessionID, b messages.BatchID) (told []string) {
			for _, e := range f.timeline(s, b).Events {
				if e.Type == messages.EventStart {
					told = append(told, fmt.Sprint(e.Kind, " ", e.Stage))
				}
			}
			return told
		}
		before := map[messages.SessionID][]string{"s": {" 0", "read 0"}, "other": {"write 0", "read 1", "read 1"}}
		f.until("the other reads have ended", func() bool { return kinds("s", "reads")[1] == "read 0" })
		more := &tool.Registry{}
		promise := schemas.Tool{Name: "gate", Kind: messages.KindWrite, InputSchema: []byte(`{"type":"object"}`)}
		if err := more.Add(promise, tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })); err != nil {
			t.Fatal(err)
		}
		f.workerWith(more, worker.Config{Name: "anew"})
		time.Sleep(time.Minute)
		if diff := cmp.Diff(before, map[messages.SessionID][]string{"s": kinds("s", "reads"), "other": kinds("other", "mixed")}); diff != "" {
			t.Error(diff)
		}
		open()
		for _, b := range []messages.Batch{reads, mixed} {
			if _, err := f.await(b, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		after := map[messages.SessionID][]string{"s": {"read 0", "read 0"}, "other": before["other"]}
		if diff := cmp.Diff(after, map[messages.SessionID][]string{"s": kinds("s", "reads"), "other": kinds("other", "mixed")}); diff != "" {
			t.Errorf("after its end: %s", diff)
		}
	})
}

// A batch without events still has a timeline and can be followed.
func TestTheTimelineOfABatchWithoutEvents(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchable(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindWrite) })
		defer f.close()
		f.submit(canonical("s", "first", call{"gate", ""}))
		f.until("the first runs", func() bool { return running.Load() == 1 })
		bad := canonical("s", "bad", call{"echo", ""})
		bad.Provider = "nobody"
		following := make(chan error, 2)
		var told [2]feed
		for i, b := range []messages.Batch{canonical("s", "none"), bad} {
			f.submit(b)
			// It is answered as soon as a driver reads it.
			if tl := f.timeline("s", b.ID); (tl.Status == "running") != (len(tl.Events) == 0) {
				t.Errorf("%s: %s, %v", b.ID, tl.Status, eventNames(tl.Events))
			}
			go func() { following <- eachEvent(f.client.Follow(t.Context(), "s", b.ID), told[i].take) }()
		}
		time.Sleep(time.Second)
		open()
		for range told {
			if err := <-following; err != nil {
				t.Fatal(err)
			}
		}
		for i := range told {
			checkFeed(t, told[i].all(), 0)
		}
	})
}

func TestTheTimelineOfARefusedBatch(t *testing.T) {
	f := watchable(t, natstest.Server(t, natstest.Fast), nil)
	defer f.close()
	b := canonical("s", "b")
	b.Provider = "nobody"
	_, err := f.client.Run(t.Context(), b)
	var refusal *messages.Refusal
	if !errors.As(err, &refusal) {
		t.Fatal(err)
	}
	tl := f.timeline("s", "b")
	if tl.Status != "refused" || !slices.Equal(eventNames(tl.Events), []string{"reply"}) {
		t.Errorf("%s: %v", tl.Status, eventNames(tl.Events))
	}
}

// A timeline may be larger than a message.
func TestALargeTimeline(t *testing.T) {
	f := watchable(t, natstest.Server(t, natstest.Fast), nil)
	defer f.close()
	var calls []call
	for range messages.MaxCalls {
		calls = append(calls, call{strings.Repeat("n", 900), ""})
	}
	f.run(canonical("s", "b", calls...))
	tl := f.timeline("s", "b")
	checkFeed(t, tl.Events, len(calls))
	if size := len(rawjson.MustMarshal(tl)); size < 1<<20 {
		t.Errorf("%d bytes fit into a message", size)
	}
}

// The timeline of a call that needs approval has the question, and later who answered it. It hides
// what the agent must not see.
func TestTheTimelineOfAQuestion(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		p := newPeople(t, "alice")
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "refund"}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
		f.worker(p.worker(t, "ask: [refund]\n"))
		f.coordinator(p.coordinator())
		var live feed
		b := canonical("s", "b", call{"refund", `{"cents":4711}`}, call{"refund", `{"cents":1}`})
		f.submit(b)
		following := make(chan error, 1)
		go func() { following <- eachEvent(f.client.Follow(t.Context(), "s", "b"), live.take) }()

		q := f.question(b, 0)
		open := f.timeline("s", "b")
		asked := open.Events[len(open.Events)-1]
		if asked.Type != messages.EventAwaiting || asked.Approval.State != "" || !strings.Contains(asked.Approval.Line, "4711") {
			t.Errorf("while it is open: %v, %+v", eventNames(open.Events), asked.Approval)
		}
		if _, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := f.sendDecision(p, "alice", f.question(b, 1), messages.VerdictDeny, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := f.await(b, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		f.gone(b) // while it is in the log its arguments are known
		done := f.timeline("s", "b")
		checkFeed(t, done.Events, 2)
		checkFeed(t, live.all(), 2)
		want := []string{"start 0", "start 1", "awaiting_approval 0", "running 0 #1", "end 0 #1", "awaiting_approval 1", "end 1", "result 0 #1", "result 1", "reply"}
		if diff := cmp.Diff(want, eventNames(done.Events)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want, eventNames(live.all())); diff != "" {
			t.Errorf("as it was followed: %s", diff)
		}
		for i, state := range map[int]string{2: "granted", 5: "denied"} {
			if a := done.Events[i].Approval; a == nil || a.State != state || !slices.Equal(a.Agreed, []string{"alice"}) || strings.Contains(a.Line, "4711") {
				t.Errorf("event %d, afterwards: %+v", i, a)
			}
		}
	})
}

// Every ordering guarantee for events, in batches of all kinds: for a client that follows from the
// beginning, for one that comes late, and for a watcher of the session.
func TestFeedsOfManyBatches(t *testing.T) {
	t.Parallel()
	f := watchable(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
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
	f.until("the watcher is there", func() bool { // a watcher that starts after the end misses it
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
		f.until("the watcher has heard it", func() bool {
			events := watched.of(b.ID)
			return len(events) > 0 && events[len(events)-1].Type == messages.EventReply
		})
		checkFeed(t, watched.of(b.ID), len(calls))
	}
	end()
	if err := <-watcher; err != nil {
		t.Error(err)
	}
	if err := eachEvent(f.client.Follow(ctx, "s", "never"), nil); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("following a batch that nobody knows: %v", err)
	}
}

// The progress that a worker publishes for a run is in order and never decreases, whatever its tool
// reports.
func TestProgressNeverGoesBack(t *testing.T) {
	t.Parallel()
	f := watchable(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
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
	f.until("the reply was told", func() bool { return raw.has("reply") })
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

// follower returns an agent whose connection goes over a link.
func (f *fleet) follower(l *link) (*client.Client, *bus.Conn) {
	conn := l.connect(f, "follower")
	return fleettest.AgentOver(conn, ""), conn
}

// cut breaks every connection over the link now.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.ends = nil
}

// The connection breaks at every step of a batch. The follower receives each event once: those
// before the break, those missed, and those after it.
func TestFollowThroughACutLink(t *testing.T) {
	t.Parallel()
	const gates = 4
	var opens []func()
	var calls []call
	f := watchable(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
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
			f.until("it is connected again", conn.Connected)
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
			t.Errorf("%s was not told: %v", name, eventNames(told.all()))
		}
	}
}

// The follower's callback is slow while the connection is lost and restored. It receives missed
// events before later ones.
func TestFollowSlowlyThroughACutLink(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	var tried, again atomic.Bool
	var openFirst func()
	f := watchable(t, natstest.Server(t, natstest.Fast), func(f *fleet) {
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
	f.until("the first runs", func() bool { return told.has("running 0 #1") })
	defer conn.OnReconnect(func() { again.Store(true) })()
	l.set(weather{silent: true}, weather{silent: true})
	l.cut()
	openFirst()
	f.until("the second runs", tried.Load)
	l.set(weather{}, weather{})
	f.until("it is connected again", again.Load)
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

// The link is silent for a while, and the connection does not notice.
func TestFollowThroughASilentLink(t *testing.T) {
	for _, silence := range []time.Duration{time.Second, 45 * time.Second} {
		t.Run(silence.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				var open func()
				var running *atomic.Int32
				f := watchable(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindWrite) })
				defer f.close()
				l := newLink(t, srv)
				c, conn := f.follower(l)
				defer conn.Close()
				var told feed
				f.submit(canonical("s", "b", call{"echo", ""}, call{"gate", ""}, call{"echo", ""}, call{"count", ""}))
				following := make(chan error, 1)
				go func() { following <- eachEvent(c.Follow(t.Context(), "s", "b"), told.take) }()
				f.until("the write runs", func() bool { return running.Load() == 1 })
				f.until("that is told", func() bool { return told.has("running 1 #1") })
				l.set(weather{silent: true}, weather{silent: true})
				open()
				time.Sleep(silence)
				l.set(weather{}, weather{})
				select {
				case err := <-following:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(time.Hour):
					t.Fatalf("not told to the end: %v", eventNames(told.all()))
				}
				checkFeed(t, told.all(), 4)
			})
		})
	}
}

// A worker is lost: a follower sees the second attempt.
func TestARedeliveryIsTheSecondAttempt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		log := f.kept(schemas.Tool{Name: "put", OnCrash: messages.OnCrashIdempotent}, func(ctx context.Context, n int) (tool.Output, error) {
			if n == 1 {
				return hung(ctx)
			}
			return tool.Text("put"), nil
		})
		kill := f.doomed(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"put", ""})
		f.submit(b)
		var told feed
		following := make(chan error, 1)
		go func() { following <- eachEvent(f.client.Follow(t.Context(), "s", "b"), told.take) }()
		f.hasRun(log, 1)
		f.until("the first attempt was told", func() bool { return told.has("running 0 #1") })
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

// Nobody listens to the first batch of a session. A subscriber of every event, who comes before the
// next ones, misses nothing of them.
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
		for i := range 5 { // at once
			sent = append(sent, canonical("s", fmt.Sprint("b", i), calls...))
			f.submit(sent[i])
		}
		for _, b := range sent {
			f.gone(b)
		}
		time.Sleep(time.Second) // simulated
		got := map[string]int{}
		for _, e := range heard.all() {
			got[fmt.Sprint(e.Batch, " ", e.Type)]++
		}
		for _, b := range sent {
			for kind, want := range map[messages.EventType]int{messages.EventStart: 3, messages.EventEnd: 3, messages.EventResult: 3, messages.EventReply: 1} {
				if n := got[fmt.Sprint(b.ID, " ", kind)]; n != want {
					t.Errorf("heard %d %s events of %s, want %d", n, kind, b.ID, want)
				}
			}
		}
	})
}
