package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

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
		f := watchedFleet(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindWrite) })
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

// The plan of a batch is not stored yet. The timeline then says only that the calls belong to
// the batch, because the plan decides everything else. So the timeline never reports an end
// that did not happen.
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
			f.until("the first batch runs", func() bool { return running.Load() == 1 })
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

// A tool is announced again with another kind while its calls run. The timeline shows the
// kinds and stages of the plan.
func TestATimelineKeepsToThePlan(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchedFleet(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindRead) })
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
		f.until("the timeline shows the read that has ended", func() bool { return kinds("s", "reads")[1] == "read 0" })
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

// A batch has no calls, or its dialect is unknown. It still has a timeline, and it can be
// followed.
func TestTheTimelineOfABatchWithoutEvents(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		var open func()
		var running *atomic.Int32
		f := watchedFleet(t, srv, func(f *fleet) { open, running = f.behindGate("gate", messages.KindWrite) })
		defer f.close()
		f.submit(canonical("s", "first", call{"gate", ""}))
		f.until("the first batch runs", func() bool { return running.Load() == 1 })
		bad := canonical("s", "bad", call{"echo", ""})
		bad.Provider = "nobody"
		following := make(chan error, 2)
		var told [2]feed
		for i, b := range []messages.Batch{canonical("s", "none"), bad} {
			f.submit(b)
			// A driver answers such a batch as soon as it reads it.
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
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), nil)
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

// A timeline may be larger than a message on NATS.
func TestALargeTimeline(t *testing.T) {
	f := watchedFleet(t, natstest.Server(t, natstest.Fast), nil)
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

// A call needs approval. The timeline of its batch has the question, and later also who
// answered it. It hides what the agent must not see.
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
		f.awaitGone(b) // in the log, the batch still shows its arguments
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
