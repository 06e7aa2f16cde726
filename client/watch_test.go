package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// A batch is running already: Watch still yields it from its beginning.
func TestWatchTellsBatchesWhole(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", whole[:2]...)
		s.lists(0, open("b"))
		s.watch(func() {
			s.until(2)
			s.publish(report(2, 1, 0.5))
			s.lists(7, ended("b", 7))
			s.happens(whole[2:]...)
			s.until(6)
			s.publish(whole[4], whole[2]) // late
			time.Sleep(time.Minute)
		})
		want := []string{"start 0 #0", "running 0 #1", "progress 0 #1 0.5", "end 0 #1", "result 0 #1", "reply -1 #0"}
		if diff := cmp.Diff(want, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// hang adds n batches, hung0 and so on, whose get handler never answers.
func (s *stage) hang(n int) {
	s.t.Helper()
	for i := range n {
		stop, err := s.conn.Subscribe(s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", hung(i))), "", func(bus.Msg) {})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(stop)
	}
}

func hung(i int) messages.BatchID { return messages.BatchID(fmt.Sprint("hung", i)) }

// Some batches have a get handler that never answers. Requests to them delay the events of another
// batch only once and only briefly, however many such batches there are.
func TestWatchBesideAHandlerThatDoesNotAnswer(t *testing.T) {
	for _, test := range []struct {
		name   string
		listed func(i int) messages.ListedBatch
	}{
		{"open batches", func(i int) messages.ListedBatch { return open(hung(i)) }},
		{"batches that have ended", func(i int) messages.ListedBatch {
			return ended(hung(i), uint64(i+1))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				var list []messages.ListedBatch
				for i := range 12 {
					list = append(list, test.listed(i))
				}
				s.hang(len(list))
				s.past("running", whole[:1]...)
				s.lists(100, append(list, open("b"))...)
				s.watch(func() {
					began := time.Now()
					s.until(1)
					if took := time.Since(began); took > 3*time.Second {
						t.Errorf("told after %v", took)
					}
					for i, e := range whole[1:] {
						time.Sleep(7 * time.Second) // the hung requests end, and are sent again
						began = time.Now()
						if e.Type == messages.EventReply {
							s.lists(101, ended("b", 101))
						}
						s.happens(e)
						s.until(i + 2)
						if took := time.Since(began); took > time.Second {
							t.Errorf("%s told after %v", e.Type, took)
						}
					}
				})
			})
		})
	}
}

// A batch is submitted again: its stored reply is published again, and the batch is in the log for
// a while. Watch shows the reply only if the list says that it is new.
func TestWatchKnowsABatchFromAnEarlierOne(t *testing.T) {
	for _, test := range []struct {
		name  string
		after []messages.ListedBatch // what the list has later
		want  []string
	}{
		{name: "submitted again", after: nil, want: nil},
		{name: "submitted again, and in the log for long", after: []messages.ListedBatch{open("b")}, want: nil},
		{name: "ended at once", after: []messages.ListedBatch{ended("b", 7)}, want: wholeNames},
	} {
		t.Run(test.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				s.past("completed", whole...)
				s.watch(func() {
					time.Sleep(time.Minute)
					s.lists(5, open("b"))
					if err := s.conn.Publish(s.conn.Names().Of(wire.VerbReply, s.key), nil, []byte(`{"batch":"b"}`)); err != nil {
						t.Fatal(err)
					}
					<-s.asked
					s.lists(7, test.after...)
					time.Sleep(time.Minute)
				})
				if diff := cmp.Diff(test.want, s.all()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// watch watches the session while during runs.
func (s *stage) watch(during func()) {
	s.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	watching := make(chan error, 1)
	go func() { watching <- shown(s.c.Watch(ctx, "s"), s.take) }()
	during()
	end()
	if err := <-watching; err != nil {
		s.t.Error(err)
	}
}

// During an update of the fleet an older coordinator may answer. The next request may reach a newer
// one.
func TestWatchAsksAgainWhereNobodyKnowsLists(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.batches.Batches = nil
		s.past("running", whole[:1]...)
		s.watch(func() {
			time.Sleep(time.Minute)
			if told := s.all(); told != nil {
				t.Errorf("told %v", told)
			}
			s.lists(0, open("b"))
			time.Sleep(10 * time.Second)
			if diff := cmp.Diff(wholeNames[:1], s.all()); diff != "" {
				t.Error(diff)
			}
		})
	})
}

// The request for the list is refused, or never answered, just when another batch begins. The batch
// that is known already is shown to its end. The other one is shown once the list says where it
// comes.
func TestWatchBesideAListThatFails(t *testing.T) {
	for name, answer := range map[string]any{
		"refused":      map[string]any{"error": messages.Refusal{Class: messages.ClassBusy, Message: "later"}},
		"not answered": nil,
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				door(t, s.conn, s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", "c")), 1<<19, func(bus.Msg) any {
					return messages.Timeline{V: 1, Session: "s", Batch: "c", Status: "running", Events: []messages.Event{asks("of c")}}
				})
				s.past("running", whole[:1]...)
				s.lists(0, open("b"))
				s.watch(func() {
					s.until(1)
					s.mu.Lock()
					s.listing = func() any { return answer }
					s.mu.Unlock()
					other := wire.KeyOf("_", "s", "c")
					if err := s.conn.Publish(s.conn.Names().Of(wire.VerbEvent, other), nil, []byte(`{"batch":"c","type":"start"}`)); err != nil {
						t.Fatal(err)
					}
					for i, e := range whole[1:] {
						time.Sleep(7 * time.Second)
						began := time.Now()
						s.happens(e)
						s.until(i + 2)
						if took := time.Since(began); took > 3*time.Second {
							t.Errorf("%s told after %v", e.Type, took)
						}
					}
					s.lists(7, ended("b", 7), open("c"))
					s.mu.Lock()
					s.listing = nil
					s.mu.Unlock()
					s.until(len(whole) + 1)
					time.Sleep(time.Minute)
				})
				if diff := cmp.Diff(append(slices.Clone(wholeNames), "awaiting_approval 0 #0 of c"), s.all()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// Two batches wait in the log. The first one begins and ends, and its events are lost. Then the
// second one begins. It waits for the list, and is shown after the first.
func TestWatchShowsAFastBatchFirst(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("completed", whole...)
		door(t, s.conn, s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", "c")), 1<<19, func(bus.Msg) any {
			return messages.Timeline{V: 1, Session: "s", Batch: "c", Status: "running", Events: []messages.Event{asks("of c")}}
		})
		s.lists(0, open("b"), open("c"))
		s.answering = func() { s.batches.Batches, s.batches.Place = []messages.ListedBatch{ended("b", 7), open("c")}, 7 }
		s.watch(func() { s.until(len(whole) + 1) })
		if diff := cmp.Diff(append(slices.Clone(wholeNames), "awaiting_approval 0 #0 of c"), s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// A page of the list has batches whose timelines take long to read. The batches are shown in the
// order of the log, except those that take so long that the others do not wait for them.
func TestWatchShowsAPageInOrder(t *testing.T) {
	for _, test := range []struct {
		name string
		took func(i int) time.Duration // how long the timeline of a batch takes
	}{
		{name: "all are slow", took: func(int) time.Duration { return 500 * time.Millisecond }},
		{name: "one is slow", took: func(i int) time.Duration {
			if i == 3 {
				return 5 * time.Second
			}
			return time.Duration(i%3) * 10 * time.Millisecond
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				var list []messages.ListedBatch
				var want, late []string
				for i := range 60 {
					id := messages.BatchID(fmt.Sprintf("b%02d", i))
					list = append(list, ended(id, uint64(i+1)))
					if name := "start 0 #0 " + string(id); test.took(i) > 2*time.Second {
						late = append(late, name)
					} else {
						want = append(want, name)
					}
					events := slices.Clone(whole)
					events[0].Batch = id
					door(t, s.conn, s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", id)), 1<<19, func(bus.Msg) any {
						time.Sleep(test.took(i))
						return messages.Timeline{V: 1, Session: "s", Batch: id, Status: "completed", Events: events}
					})
				}
				s.lists(100, list...)
				var got []string
				for e, err := range s.c.Watch(t.Context(), "s", client.WatchSince(time.Unix(0, 0))) {
					if err != nil {
						t.Fatal(err)
					}
					if e.Type == messages.EventStart {
						got = append(got, fmt.Sprintf("start 0 #0 %s", e.Batch))
					}
					if len(got) == len(list) {
						break
					}
				}
				if diff := cmp.Diff(append(want, late...), got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// However many batches get no answer, few requests are in flight, and the other batches are shown.
func TestWatchSendsFewRequestsAtATime(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		requests := make(chan struct{}, 1000)
		var list []messages.ListedBatch
		for i := range 63 {
			list = append(list, open(hung(i)))
			door(t, s.conn, s.conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", hung(i))), 1<<19, func(bus.Msg) any {
				requests <- struct{}{}
				return nil
			})
		}
		s.past("running", whole[:1]...)
		s.lists(100, append(list, open("b"))...)
		s.watch(func() {
			time.Sleep(9 * time.Second) // a request lives for 10 s
			if n := len(requests); n > 20 {
				t.Errorf("%d requests are in flight", n)
			}
			time.Sleep(time.Minute)
			if diff := cmp.Diff(wholeNames[:1], s.all()); diff != "" {
				t.Error(diff)
			}
		})
	})
}
