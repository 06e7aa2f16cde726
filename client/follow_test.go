package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// stage is a fleet that has only the get handler and the published events.
type stage struct {
	t     *testing.T
	c     *client.Client
	conn  *bus.Conn
	key   wire.BatchKey
	asked chan struct{}

	mu       sync.Mutex
	timeline messages.Timeline // guarded by mu
	told     []string          // guarded by mu

	answering func() // called once an answer is made; guarded by mu
}

func event(kind messages.EventType, index, attempt int) messages.Event {
	e := messages.Event{V: 1, Type: kind, Session: "s", Batch: "b", Index: index, Attempt: attempt, Time: time.Unix(0, 0)}
	if kind == messages.EventEnd || kind == messages.EventResult {
		e.Result = &messages.Result{Index: index, Status: messages.StatusOK}
	}
	return e
}

func report(counter, attempt int, fraction float64) messages.Event {
	e := event(messages.EventProgress, 0, attempt)
	e.Counter, e.Progress = counter, &messages.Progress{Fraction: fraction}
	return e
}

func asks(id string) messages.Event {
	e := event(messages.EventAwaiting, 0, 0)
	e.Approval = &messages.Pending{ID: id}
	return e
}

// newStage has a get handler that answers with the timeline that past has set last.
func newStage(t *testing.T, srv *devserver.Server) *stage {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, err := bus.Connect(ctx, bus.Options{InProcess: srv, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	s := &stage{t: t, c: client.Over(conn, ""), conn: conn, key: wire.KeyOf("_", "s", "b"), asked: make(chan struct{}, 100)}
	door(t, conn, conn.Names().Of(wire.VerbGet, s.key), 1<<19, func(bus.Msg) any {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked <- struct{}{}
		answer := s.timeline
		if s.answering != nil {
			s.answering()
		}
		return answer
	})
	return s
}

func (s *stage) past(status string, events ...messages.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeline = messages.Timeline{V: 1, Session: "s", Batch: "b", Status: status, Events: append([]messages.Event{}, events...)}
}

func (s *stage) publish(events ...messages.Event) {
	s.t.Helper()
	for _, e := range events {
		if err := s.conn.Publish(s.conn.Names().Of(wire.VerbEvent, s.key), bus.Header{messages.EventHeader: {string(e.Type)}}, rawjson.MustMarshal(e)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) take(e messages.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%s %d #%d", e.Type, e.Index, e.Attempt)
	if e.Progress != nil {
		name += fmt.Sprintf(" %g", e.Progress.Fraction)
	}
	if e.Approval != nil {
		name += " " + e.Approval.ID
	}
	s.told = append(s.told, name)
}

func (s *stage) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

func (s *stage) until(n int) {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); len(s.all()) < n; {
		if time.Now().After(deadline) {
			s.t.Fatalf("told only %v", s.all())
		}
		time.Sleep(time.Millisecond)
	}
}

// Events may come late, twice, or in the wrong order.
func TestFollowTellsEverythingOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", event(messages.EventStart, 0, 0), event(messages.EventStart, 1, 0), asks("q1"), event(messages.EventRunning, 0, 1))
		following := make(chan error, 1)
		go func() { following <- s.c.Follow(context.Background(), "s", "b", s.take) }()
		s.until(4)
		s.publish(
			event(messages.EventStart, 1, 0), // again: from the timeline
			asks("q1"), event(messages.EventRunning, 0, 1),
			report(2, 1, 0.2), report(4, 1, 0.4), report(3, 1, 0.3), report(5, 1, 0.1),
			report(2, 3, 0.5), // the end of the second attempt and the start of the third were lost
			event(messages.EventRunning, 0, 2), report(6, 2, 0.9), event(messages.EventRunning, 0, 3), report(3, 3, 0.6),
			asks("q2"),
			event(messages.EventEnd, 0, 3), event(messages.EventEnd, 0, 3), report(9, 3, 1), event(messages.EventRunning, 0, 4), asks("q3"),
			event(messages.EventEnd, 1, 0), event(messages.EventResult, 0, 3), event(messages.EventResult, 0, 3), event(messages.EventResult, 1, 0),
			event(messages.EventReply, -1, 0),
		)
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		want := []string{
			"start 0 #0", "start 1 #0", "awaiting_approval 0 #0 q1", "running 0 #1", "progress 0 #1 0.2", "progress 0 #1 0.4",
			"running 0 #3", "progress 0 #3 0.5", "progress 0 #3 0.6", "awaiting_approval 0 #0 q2", "end 0 #3", "end 1 #0",
			"result 0 #3", "result 1 #0", "reply -1 #0",
		}
		if diff := cmp.Diff(want, s.all()); diff != "" {
			t.Error(diff)
		}
		if n := len(s.asked); n != 1 {
			t.Errorf("the door was asked %d times, want once: nothing was missing", n)
		}
	})
}

// Events are lost without a sign of it.
func TestFollowNoticesWhatIsMissing(t *testing.T) {
	all := []messages.Event{
		event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventReply, -1, 0),
	}
	want := []string{"start 0 #0", "running 0 #1", "end 0 #1", "result 0 #1", "reply -1 #0"}
	for _, test := range []struct {
		name  string
		known int // how many of all the timeline has at first
		heard []messages.Event
		reply bool // the server publishes the stored reply
		wait  time.Duration
	}{
		{name: "the end and the result", known: 2, heard: all[4:]},
		{name: "the end", known: 2, heard: all[3:]},
		{name: "that it ran", known: 1, heard: all[2:]},
		{name: "all but that there is a reply", known: 2, reply: true, wait: time.Second},
		{name: "all", known: 2, wait: 30 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				s.past("running", all[:test.known]...)
				following := make(chan error, 1)
				go func() { following <- s.c.Follow(context.Background(), "s", "b", s.take) }()
				s.until(test.known)
				began := time.Now()
				s.past("completed", all...)
				s.publish(test.heard...)
				if test.reply {
					if err := s.conn.Publish(s.conn.Names().Of(wire.VerbReply, s.key), nil, []byte(`{"batch":"b"}`)); err != nil {
						t.Fatal(err)
					}
				}
				if err := <-following; err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, s.all()); diff != "" {
					t.Error(diff)
				}
				if took := time.Since(began).Round(time.Second); took != test.wait {
					t.Errorf("noticed after %v, want %v", took, test.wait)
				}
			})
		})
	}
}

func TestFollowWithoutAFleet(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv, Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := client.Over(conn, "")
		if err := c.Follow(t.Context(), "s", "b", nil); !errors.Is(err, client.ErrNoFleet) {
			t.Errorf("got %v, want %v", err, client.ErrNoFleet)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Follow(ctx, "s", "b", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := c.Watch(ctx, "s", nil); err != nil {
			t.Errorf("a watch that was ended: %v", err)
		}
	})
}

// Watch delivers a batch from its beginning, even when it starts in the middle of one.
func TestWatchTellsBatchesWhole(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1))
		ctx, end := context.WithCancel(context.Background())
		watching := make(chan error, 1)
		go func() { watching <- s.c.Watch(ctx, "s", s.take) }()
		time.Sleep(time.Second)
		s.publish(report(2, 1, 0.5), event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventReply, -1, 0), event(messages.EventReply, -1, 0))
		s.until(6)
		s.publish(event(messages.EventEnd, 0, 1)) // late
		time.Sleep(time.Second)
		end()
		if err := <-watching; err != nil {
			t.Error(err)
		}
		want := []string{"start 0 #0", "running 0 #1", "progress 0 #1 0.5", "end 0 #1", "result 0 #1", "reply -1 #0"}
		if diff := cmp.Diff(want, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// Until the reply of a read-only batch is stored, nothing durable says that a call could not run. A
// watcher that missed that end makes it from the result, and all ends come before all results.
func TestFollowHasEveryEndBeforeTheResults(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", event(messages.EventStart, 0, 0), event(messages.EventStart, 1, 0), event(messages.EventStart, 2, 0), event(messages.EventRunning, 0, 1))
		following := make(chan error, 1)
		go func() { following <- s.c.Follow(context.Background(), "s", "b", s.take) }()
		s.until(4)
		s.publish(event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventResult, 2, 0), event(messages.EventResult, 1, 0), event(messages.EventReply, -1, 0))
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		want := []string{
			"start 0 #0", "start 1 #0", "start 2 #0", "running 0 #1", "end 0 #1", "end 1 #0", "end 2 #0", "result 0 #1", "result 1 #0", "result 2 #0", "reply -1 #0",
		}
		if diff := cmp.Diff(want, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// Follow delivers nothing after its context has ended, even if more events are known.
func TestFollowEndsWithItsContext(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("completed", event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventReply, -1, 0))
		ctx, end := context.WithCancelCause(context.Background())
		enough := errors.New("enough")
		err := s.c.Follow(ctx, "s", "b", func(e messages.Event) {
			s.take(e)
			if e.Type == messages.EventRunning {
				end(enough)
			}
		})
		if !errors.Is(err, enough) {
			t.Errorf("got %v, want the context's error", err)
		}
		if diff := cmp.Diff([]string{"start 0 #0", "running 0 #1"}, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// A coordinator of a version without timelines answers with the state of the batch.
func TestFollowWhereNobodyKnowsTimelines(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.timeline = messages.Timeline{V: 1, Status: "running"}
		ctx, end := context.WithTimeout(context.Background(), time.Hour)
		defer end()
		if err := s.c.Follow(ctx, "s", "b", s.take); err == nil || !strings.Contains(err.Error(), "knows no timelines") {
			t.Errorf("got %v", err)
		}
		watching := make(chan error, 1)
		go func() { watching <- s.c.Watch(ctx, "s", s.take) }()
		time.Sleep(time.Second)
		s.publish(event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1))
		s.until(2)
		end()
		if err := <-watching; err != nil {
			t.Error(err)
		}
	})
}

// A handler that does not answer holds up only the batch that it was asked for.
func TestWatchBesideADoorThatDoesNotAnswer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		names := s.conn.Names()
		for i := range 6 {
			stop, err := s.conn.Subscribe(names.Of(wire.VerbGet, wire.KeyOf("_", "s", messages.BatchID(fmt.Sprint("hung", i)))), "", func(bus.Msg) {})
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		ctx, end := context.WithCancel(context.Background())
		watching := make(chan error, 1)
		go func() { watching <- s.c.Watch(ctx, "s", s.take) }()
		time.Sleep(time.Second)
		for i := range 6 {
			e := event(messages.EventRunning, 0, 1)
			e.Batch = messages.BatchID(fmt.Sprint("hung", i))
			s.publish(e)
		}
		began := time.Now()
		s.publish(event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventReply, -1, 0))
		s.until(5)
		if took := time.Since(began); took > time.Second {
			t.Errorf("told after %v", took)
		}
		end()
		if err := <-watching; err != nil {
			t.Error(err)
		}
	})
}

// An event is lost while a timeline request is in flight, and its answer does not hold the event
// yet.
func TestFollowAsksAgainForWhatWasLostMeanwhile(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		all := []messages.Event{
			event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventReply, -1, 0),
		}
		s.past("running", all[:1]...)
		s.answering = func() { // made before what follows, and on its way after it
			s.publish(all[2])
			s.timeline.Events, s.answering = all, nil
		}
		if err := s.c.Follow(context.Background(), "s", "b", s.take); err != nil {
			t.Fatal(err)
		}
		want := []string{"start 0 #0", "running 0 #1", "end 0 #1", "result 0 #1", "reply -1 #0"}
		if diff := cmp.Diff(want, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// The stored reply of a batch is published again when the batch is submitted again. Watch ignores
// it.
func TestWatchIgnoresOldReplies(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("completed", event(messages.EventStart, 0, 0), event(messages.EventEnd, 0, 0), event(messages.EventResult, 0, 0), event(messages.EventReply, -1, 0))
		ctx, end := context.WithCancel(context.Background())
		watching := make(chan error, 1)
		go func() { watching <- s.c.Watch(ctx, "s", s.take) }()
		time.Sleep(time.Second)
		if err := s.conn.Publish(s.conn.Names().Of(wire.VerbReply, s.key), nil, []byte(`{"batch":"b"}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		end()
		if err := <-watching; err != nil {
			t.Error(err)
		}
		if told := s.all(); told != nil {
			t.Errorf("told again: %v", told)
		}
	})
}

// list has the handler answer list requests of the session.
func (s *stage) list(answer func() any) {
	s.t.Helper()
	door(s.t, s.conn, s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", messages.NoBatch)), 1<<19, func(bus.Msg) any { return answer() })
}

// watch watches the session while during runs.
func (s *stage) watch(since time.Time, during func()) {
	s.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	watching := make(chan error, 1)
	go func() { watching <- s.c.WatchSince(ctx, "s", since, s.take) }()
	during()
	end()
	if err := <-watching; err != nil {
		s.t.Error(err)
	}
}

// However many listed batches get no answer from the handler, live events wait for half a minute at
// most, and until then nothing is delivered out of turn.
func TestWatchWaitsForHungBatchesOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		list := messages.BatchList{V: 1, Place: 100}
		for i := range 12 {
			id := messages.BatchID(fmt.Sprint("hung", i))
			list.Batches = append(list.Batches, messages.ListedBatch{Batch: id, Status: "completed", Ended: time.Now(), Place: uint64(i + 1)})
			stop, err := s.conn.Subscribe(s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", id)), "", func(bus.Msg) {})
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		s.list(func() any { return list })
		s.watch(time.Unix(1, 0), func() {
			time.Sleep(time.Second)
			s.publish(event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1))
			time.Sleep(28 * time.Second)
			if told := s.all(); told != nil {
				t.Errorf("told before its turn: %v", told)
			}
			time.Sleep(2 * time.Second)
			if diff := cmp.Diff([]string{"start 0 #0", "running 0 #1"}, s.all()); diff != "" {
				t.Error(diff)
			}
		})
	})
}

// During an update of the fleet an older coordinator may answer. The next request may reach a newer
// one.
func TestWatchAsksAgainWhereNobodyKnowsLists(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		asked := 0
		s.list(func() any {
			if asked++; asked < 3 {
				return messages.State{Status: "unknown"}
			}
			return messages.BatchList{V: 1, Batches: []messages.ListedBatch{{Batch: "b", Status: "running"}}}
		})
		s.past("running", event(messages.EventStart, 0, 0))
		s.watch(time.Time{}, func() {
			time.Sleep(time.Minute)
			if diff := cmp.Diff([]string{"start 0 #0"}, s.all()); diff != "" || asked != 3 {
				t.Errorf("asked %d times, told %s", asked, diff)
			}
		})
	})
}

// The clocks of the servers that stored a batch and its reply differ: a batch that was partly
// delivered is delivered to its end. The reply of an earlier batch with the same id is not
// delivered.
func TestWatchKnowsABatchFromAnEarlierOne(t *testing.T) {
	whole := []messages.Event{event(messages.EventStart, 0, 0), event(messages.EventEnd, 0, 0), event(messages.EventResult, 0, 0), event(messages.EventReply, -1, 0)}
	for _, test := range []struct {
		name     string
		accepted time.Duration // after the reply
		begun    bool
		want     []string
	}{
		{name: "a little, of one that ends at once", accepted: 50 * time.Millisecond, want: []string{"start 0 #0", "end 0 #0", "result 0 #0", "reply -1 #0"}},
		{name: "much, of one that was begun", accepted: time.Minute, begun: true, want: []string{"start 0 #0", "end 0 #0", "result 0 #0", "reply -1 #0"}},
		{name: "an earlier one", accepted: time.Minute, want: nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				s.list(func() any {
					return messages.BatchList{V: 1, Batches: []messages.ListedBatch{{Batch: "b", Status: "running", Accepted: time.Unix(0, 0).Add(test.accepted)}}}
				})
				if s.past("completed", whole...); test.begun {
					s.past("running", whole[:1]...)
				}
				s.watch(time.Time{}, func() {
					time.Sleep(time.Second)
					if s.past("completed", whole...); test.begun {
						if err := s.conn.Publish(s.conn.Names().Of(wire.VerbReply, s.key), bus.Header{"Nats-Sequence": {"7"}}, []byte(`{"batch":"b"}`)); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Minute)
				})
				if diff := cmp.Diff(test.want, s.all()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
