package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// stage is a fleet reduced to what a follower sees: the get handler, and published events.
type stage struct {
	t     *testing.T
	c     *client.Client
	conn  *bus.Conn
	key   wire.BatchKey
	asked chan struct{}

	mu       sync.Mutex
	timeline messages.Timeline  // guarded by mu
	batches  messages.BatchList // the list of the session; guarded by mu
	told     []string           // guarded by mu

	answering func()        // called once an answer is made; guarded by mu
	listing   func() any    // its value is the answer in place of the list, nil: no answer; guarded by mu
	slow      time.Duration // how long a timeline takes
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

// newStage starts a get handler. It answers with the timeline that past has set last, and with the
// list that lists has set.
func newStage(t *testing.T, srv *devserver.Server) *stage {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, err := bus.Connect(ctx, bus.Options{InProcess: srv, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	s := &stage{t: t, c: over(t, conn), conn: conn, key: wire.KeyOf("_", "s", "b"), asked: make(chan struct{}, 10_000)}
	door(t, conn, conn.Names().Of(wire.VerbGet, s.key), 1<<19, func(bus.Msg) any {
		time.Sleep(s.slow)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked <- struct{}{}
		answer := s.timeline
		if s.answering != nil {
			s.answering()
		}
		return answer
	})
	s.batches = messages.BatchList{V: 1, Batches: []messages.ListedBatch{}}
	door(t, conn, conn.Names().Of(wire.VerbGet, wire.KeyOf("_", "s", messages.NoBatch)), 1<<19, func(m bus.Msg) any {
		var get messages.Get
		if err := json.Unmarshal(m.Data, &get); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.listing != nil {
			return s.listing()
		}
		answer := s.batches
		answer.Batches = slices.DeleteFunc(slices.Clone(answer.Batches), func(b messages.ListedBatch) bool {
			return get.After != nil && !b.Open() && b.Place <= *get.After
		})
		return answer
	})
	return s
}

// lists sets the list of the session's batches.
func (s *stage) lists(place uint64, batches ...messages.ListedBatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches.Place, s.batches.Batches = place, append([]messages.ListedBatch{}, batches...)
}

func open(id messages.BatchID) messages.ListedBatch {
	return messages.ListedBatch{Batch: id, Status: "running"}
}

func ended(id messages.BatchID, place uint64) messages.ListedBatch {
	return messages.ListedBatch{Batch: id, Status: "completed", Ended: time.Unix(0, 0), Place: place}
}

// over returns a client on the connection conn, which the test itself closes.
func over(t *testing.T, conn *bus.Conn) *client.Client {
	t.Helper()
	c, err := client.Connect(t.Context(), fleet.Options{}, clientconn.Over(conn))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shown calls each for every event, and returns the error at the end.
func shown(events iter.Seq2[messages.Event, error], each func(messages.Event)) error {
	for e, err := range events {
		if err != nil {
			return err
		}
		each(e)
	}
	return nil
}

// follow runs Follow on the batch in the background.
func (s *stage) follow() <-chan error {
	following := make(chan error, 1)
	go func() { following <- shown(s.c.Follow(context.Background(), "s", "b"), s.take) }()
	return following
}

// happens makes events durable and then publishes them, as the fleet does.
func (s *stage) happens(events ...messages.Event) {
	s.t.Helper()
	s.mu.Lock()
	s.timeline.Events = append(slices.Clone(s.timeline.Events), events...)
	s.mu.Unlock()
	s.publish(events...)
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
			s.t.Fatalf("got only the events %v", s.all())
		}
		time.Sleep(time.Millisecond)
	}
}

// whole is a batch of one call, from its beginning to its reply.
var whole = []messages.Event{
	event(messages.EventStart, 0, 0), event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1), event(messages.EventResult, 0, 1), event(messages.EventReply, -1, 0),
}

var wholeNames = []string{"start 0 #0", "running 0 #1", "end 0 #1", "result 0 #1", "reply -1 #0"}

// Follow yields each event once and in order, although live events come late, twice, or in the
// wrong order.
func TestFollowTellsEverythingOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", event(messages.EventStart, 0, 0), event(messages.EventStart, 1, 0), asks("q1"), event(messages.EventRunning, 0, 1))
		following := s.follow()
		s.until(4)
		s.publish(
			event(messages.EventStart, 1, 0), // a repeat: the timeline already had it
			asks("q1"), event(messages.EventRunning, 0, 1),
			report(2, 1, 0.2), report(4, 1, 0.4), report(3, 1, 0.3),
			report(2, 3, 0.5), // the journal does not know yet that the third attempt runs
			report(6, 2, 0.9), report(3, 3, 0.6),
		)
		s.until(9)
		s.happens(event(messages.EventRunning, 0, 2)) // late: the third attempt was shown
		s.happens(event(messages.EventRunning, 0, 3), asks("q2"))
		s.until(10)
		s.happens(event(messages.EventEnd, 0, 3))
		s.until(11)
		s.publish(event(messages.EventEnd, 0, 3), report(9, 3, 1), event(messages.EventRunning, 0, 4))
		s.happens(event(messages.EventEnd, 1, 0), event(messages.EventResult, 0, 3), event(messages.EventResult, 1, 0), event(messages.EventReply, -1, 0))
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
	})
}

// The timeline has no claim of a running call. Another call ended before that call began, and its
// live event was lost. Follow still shows the end before the run.
func TestFollowShowsARunAfterWhatComesBeforeIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", event(messages.EventStart, 0, 0), event(messages.EventStart, 1, 0), event(messages.EventRunning, 0, 1))
		following := s.follow()
		s.until(3)
		s.past("running", event(messages.EventStart, 0, 0), event(messages.EventStart, 1, 0), event(messages.EventRunning, 0, 1), event(messages.EventEnd, 0, 1))
		s.publish(event(messages.EventRunning, 1, 1))
		s.until(5)
		s.happens(event(messages.EventEnd, 1, 1), event(messages.EventResult, 0, 1), event(messages.EventResult, 1, 1), event(messages.EventReply, -1, 0))
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		want := []string{"start 0 #0", "start 1 #0", "running 0 #1", "end 0 #1", "running 1 #1", "end 1 #1", "result 0 #1", "result 1 #1", "reply -1 #0"}
		if diff := cmp.Diff(want, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// The timeline of a batch that only reads does not say the stage of a call. The live event does, so
// Follow shows the live one.
func TestFollowShowsTheLiveEventOfATimeline(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running")
		following := make(chan error, 1)
		var stages []int
		go func() {
			following <- shown(s.c.Follow(context.Background(), "s", "b"), func(e messages.Event) { stages = append(stages, e.Stage) })
		}()
		<-s.asked
		s.past("running", whole[:1]...)
		start := whole[0]
		start.Stage = 3
		s.publish(start)
		<-s.asked
		s.happens(whole[1:]...)
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{3, 0, 0, 0, 0}, stages); diff != "" {
			t.Error(diff)
		}
	})
}

// Many live events come: Follow reads the timeline at most every 100 ms.
func TestFollowReadsTheTimelineSeldom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", whole[:1]...)
		following := s.follow()
		s.until(1)
		for i := range 1000 {
			s.publish(asks(fmt.Sprint("never stored", i)))
			time.Sleep(time.Millisecond)
		}
		s.happens(whole[1:]...)
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		if n := len(s.asked); n > 13 {
			t.Errorf("the timeline was read %d times in about a second", n)
		}
	})
}

// Events are lost without a sign: Follow finds them in the timeline.
func TestFollowNoticesWhatIsMissing(t *testing.T) {
	for _, test := range []struct {
		name  string
		known int // how many of whole the timeline has at first
		heard []messages.Event
		reply bool // the server publishes the stored reply
		most  time.Duration
	}{
		{name: "the end and the result", known: 2, heard: whole[4:], most: time.Second},
		{name: "the end", known: 2, heard: whole[3:], most: time.Second},
		{name: "that it ran", known: 1, heard: whole[2:], most: time.Second},
		{name: "all; the stored reply is seen", known: 2, reply: true, most: time.Second},
		{name: "all", known: 2, most: 31 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				s := newStage(t, srv)
				s.past("running", whole[:test.known]...)
				following := s.follow()
				s.until(test.known)
				time.Sleep(10*time.Minute + 10*time.Second) // by now Follow reads the timeline only every 30 s
				began := time.Now()
				s.past("completed", whole...)
				s.publish(test.heard...)
				if test.reply {
					if err := s.conn.Publish(s.conn.Names().Of(wire.VerbReply, s.key), nil, []byte(`{"batch":"b"}`)); err != nil {
						t.Fatal(err)
					}
				}
				if err := <-following; err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(wholeNames, s.all()); diff != "" {
					t.Error(diff)
				}
				if took := time.Since(began); took > test.most {
					t.Errorf("noticed after %v, want at most %v", took, test.most)
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
		c := over(t, conn)
		if err := shown(c.Follow(t.Context(), "s", "b"), nil); !errors.Is(err, client.ErrNoFleet) {
			t.Errorf("got %v, want %v", err, client.ErrNoFleet)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := shown(c.Follow(ctx, "s", "b"), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := shown(c.Watch(ctx, "s"), nil); err != nil {
			t.Errorf("a watch that was ended: %v", err)
		}
	})
}

// Follow delivers nothing after its context has ended or its caller has left the loop, even if more
// events are known.
func TestFollowEnds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("completed", whole...)
		ctx, end := context.WithCancelCause(context.Background())
		enough := errors.New("enough")
		err := shown(s.c.Follow(ctx, "s", "b"), func(e messages.Event) {
			s.take(e)
			if e.Type == messages.EventRunning {
				end(enough)
			}
		})
		if !errors.Is(err, enough) {
			t.Errorf("got %v, want the context's error", err)
		}
		for e, err := range s.c.Follow(t.Context(), "s", "b") {
			if s.take(e); err != nil || e.Type == messages.EventRunning {
				break
			}
		}
		if diff := cmp.Diff([]string{"start 0 #0", "running 0 #1", "start 0 #0", "running 0 #1"}, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// A coordinator of an older version has no timelines, and answers with the state of the batch:
// Follow returns an error.
func TestFollowWhereNobodyKnowsTimelines(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.timeline = messages.Timeline{V: 1, Status: "running"}
		if err := shown(s.c.Follow(t.Context(), "s", "b"), s.take); err == nil || !strings.Contains(err.Error(), "knows no timelines") {
			t.Errorf("got %v, want an error that the coordinator knows no timelines", err)
		}
	})
}

// A history that takes a second is read at most every five seconds, however many live events come.
func TestFollowReadsASlowTimelineLessOften(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.slow = time.Second
		s.past("running", whole[:1]...)
		following := s.follow()
		s.until(1)
		for i := range 300 {
			s.publish(asks(fmt.Sprint("never stored", i)))
			time.Sleep(100 * time.Millisecond)
		}
		s.happens(whole[1:]...)
		if err := <-following; err != nil {
			t.Fatal(err)
		}
		if n := len(s.asked); n > 9 {
			t.Errorf("the timeline was read %d times in about 30 s", n)
		}
	})
}

// An event is lost while a timeline request is in flight whose answer does not have the event yet.
// Follow asks again.
func TestFollowAsksAgainForWhatWasLostMeanwhile(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		s.past("running", whole[:1]...)
		s.answering = func() { // the answer is made before this change and sent after it
			s.publish(whole[2])
			s.timeline.Events, s.answering = whole, nil
		}
		if err := shown(s.c.Follow(context.Background(), "s", "b"), s.take); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wholeNames, s.all()); diff != "" {
			t.Error(diff)
		}
	})
}
