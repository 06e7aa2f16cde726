package placement_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

var now = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

// stream stands for the stream of jobs.
type stream struct {
	jobs      []placement.Queued
	delivered bool
	broken    error
	last      uint64
}

func (s *stream) put(token string, index int) {
	s.last++
	s.jobs = append(s.jobs, placement.Queued{Token: token, Index: index, Seq: s.last})
}

func (s *stream) Of(_ context.Context, index int) (jobs []placement.Queued, err error) {
	for _, job := range s.jobs {
		if job.Index == index {
			jobs = append(jobs, job)
		}
	}
	return jobs, s.broken
}

func (s *stream) All(context.Context) ([]placement.Queued, error) {
	return slices.Clone(s.jobs), s.broken
}

func (s *stream) Remove(_ context.Context, seq uint64) error {
	s.jobs = slices.DeleteFunc(s.jobs, func(job placement.Queued) bool { return job.Seq == seq })
	return s.broken
}

func (s *stream) Delivered(context.Context, placement.Queued) bool { return s.delivered }

// worker returns a worker with these tools in pool p. A tool is named by its digest.
func worker(digests ...string) wire.Presence {
	return wire.Presence{Pools: []string{"p"}, Slots: 1, Queues: map[string]wire.Queue{"p": {Token: token(digests...), Tools: digests}}}
}

func token(digests ...string) string { return wire.QueueToken("p", digests) }

var waiting = wire.WaitingQueue("p")

// batchOf returns the jobs of a batch with two calls of tool a.
func batchOf(board *placement.Board, s *stream) *placement.Jobs {
	return placement.New(board, s, placement.Batch{
		Key: wire.KeyOf("_", "s", "b"), Calls: 2, Silence: 10 * time.Second, Failed: func(int, error) {},
		Tool: func(int) toolset.Tool { return toolset.Tool{Pool: "p", Name: "a", Digest: "a"} },
	})
}

// publish puts a job into its queue, as a driver does. It checks which queue that is, and the
// events for the machine.
func publish(t *testing.T, j *placement.Jobs, s *stream, index int, want string, events ...batch.Event) {
	t.Helper()
	got, told := j.For(t.Context(), now, index)
	if got != want || !cmp.Equal(told, events) {
		t.Fatalf("the job of call %d goes to %s, and the machine hears %v; want %s and %v", index, got, told, want, events)
	}
	s.put(got, index)
}

func out(time.Time, int) (sign time.Time, out bool) { return time.Time{}, true }

func TestAJobFollowsItsWorkers(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	j := batchOf(board, s)
	publish(t, j, s, 0, waiting) // no worker of the pool is there, but one may come
	board.Set([]wire.Presence{worker("b")})
	if got := j.Move(t.Context(), now, out); !cmp.Equal(got, []batch.Event{batch.Unserved{Index: 0, Is: true}}) {
		t.Fatalf("a worker without its tool comes: %v", got)
	}
	board.Set([]wire.Presence{worker("b"), worker("a")})
	if got := j.Move(t.Context(), now, out); !cmp.Equal(got, []batch.Event{batch.Unserved{Index: 0}, batch.LetGo{Index: 0}}) || len(s.jobs) != 0 {
		t.Fatalf("a worker with its tool comes: %v, left are %v", got, s.jobs)
	}
	publish(t, j, s, 0, token("a"))
	board.Set([]wire.Presence{worker("a", "b")})
	s.delivered = true
	if got := j.Move(t.Context(), now, out); got != nil {
		t.Fatalf("a worker that has gone may have the job since a moment ago: %v", got)
	}
	if got := j.Move(t.Context(), now.Add(time.Second), out); !cmp.Equal(got, []batch.Event{batch.LetGo{Index: 0, Lost: true}}) || len(s.jobs) != 0 {
		t.Fatalf("it shows no sign: %v, left are %v", got, s.jobs)
	}
	publish(t, j, s, 0, token("a", "b"))
	if !j.Leave() {
		t.Error("jobs were moved, and none can have been left behind")
	}
}

// A job in the waiting queue was lost with the server: it is published again when a worker has
// its tool.
func TestALostJobThatWaited(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	board.Set([]wire.Presence{worker("b")})
	j := batchOf(board, s)
	publish(t, j, s, 0, waiting, batch.Unserved{Index: 0, Is: true})
	s.jobs = nil
	board.Set([]wire.Presence{worker("a")})
	publish(t, j, s, 0, token("a"), batch.Unserved{Index: 0})
}

func TestAJobWithASignOfLifeStays(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	board.Set([]wire.Presence{worker("a")})
	j := batchOf(board, s)
	publish(t, j, s, 0, token("a"))
	board.Set(nil)
	runs := func(time.Time, int) (time.Time, bool) { return now.Add(-time.Second), true }
	if got := j.Move(t.Context(), now.Add(time.Second), runs); got != nil {
		t.Errorf("its worker runs it: %v", got)
	}
	claimed := func(time.Time, int) (time.Time, bool) { return time.Time{}, false }
	if got := j.Move(t.Context(), now.Add(time.Minute), claimed); got != nil {
		t.Errorf("its worker has claimed it: %v", got)
	}
	if j.Leave() {
		t.Error("nothing was moved, and a job may have been left behind")
	}
}

// The worker of a queue has gone, and its job may still be in the queue. A new job, maybe with
// another version of the tool, is not put into the same queue, where another worker with the
// old toolset would get it.
func TestAJobIsNotPutIntoAQueueWithoutItsTool(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	board.Set([]wire.Presence{worker("old")})
	s.put(token("old"), 0)
	j := batchOf(board, s)
	if err := j.Adopt(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []error{nil, errors.New("no server")} {
		s.broken = broken
		if got, told := j.For(t.Context(), now, 0); got != "" || !cmp.Equal(told, []batch.Event(nil)) {
			t.Errorf("the jobs are read with %v: the job goes to %q, and the machine hears %v", broken, got, told)
		}
	}
	s.jobs, s.broken = nil, nil
	publish(t, j, s, 0, waiting, batch.Unserved{Index: 0, Is: true})
}

func TestAJobThatWasGivenBackGoesElsewhere(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	before := wire.Presence{Pools: []string{"p"}, Slots: 100, Tools: []string{"a"}} // a worker of the version before
	board.Set([]wire.Presence{worker("a"), before})
	j := batchOf(board, s)
	publish(t, j, s, 0, "p")
	j.GaveBack(0)
	publish(t, j, s, 0, token("a"))
	if len(s.jobs) != 2 {
		t.Errorf("its worker is about to settle the first job; left are %v", s.jobs)
	}
}

func TestJobsOfAnEarlierDriver(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	board.Set([]wire.Presence{worker("a")})
	s.put(token("gone"), 0)
	s.put(token("a"), 1)
	s.put(token("a"), 7) // a job that belongs to no call
	s.put("", 0)
	j := batchOf(board, s)
	if err := j.Adopt(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if got := j.Move(t.Context(), now, out); !cmp.Equal(got, []batch.Event{batch.LetGo{Index: 0}}) {
		t.Errorf("the machine hears %v", got)
	}
	publish(t, j, s, 1, token("a"))
	publish(t, j, s, 0, token("a"))
	for _, job := range s.jobs {
		if job.Index == 0 && job.Token != token("a") {
			t.Errorf("the job of call 0 is still in queue %q", job.Token)
		}
	}
	// A driver cannot remove a job: it returns an error, because the job may be left behind.
	board.Set([]wire.Presence{worker("a", "b")})
	s.broken = errors.New("no server")
	j = batchOf(board, s)
	if j.Adopt(t.Context(), now) == nil {
		t.Error("the server is away, and no error")
	}
	j.Move(t.Context(), now.Add(time.Minute), out)
	if !j.Leave() {
		t.Error("a job was not removed, and none can have been left behind")
	}
}

// Jobs count in their queues until they leave. So later jobs go to other queues.
func TestJobsAreSharedOut(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	board.Set([]wire.Presence{worker("a"), worker("a", "b")})
	j := batchOf(board, s)
	first, _ := j.For(t.Context(), now, 0)
	second, _ := j.For(t.Context(), now, 1)
	if first == second {
		t.Errorf("both jobs are in queue %s, and another is empty", first)
	}
	j.Leave()
	for range 20 { // as if there were none before
		j = batchOf(board, s)
		if again, _ := j.For(t.Context(), now, 0); again != first {
			t.Fatalf("the job goes to %s, and went to %s", again, first)
		}
		j.Leave()
	}
}

// A call is about to end because no worker has its tool, and a worker comes: the call does not
// end, whether or not its machine knows of the worker.
func TestACallIsNotGoneOnceAWorkerIsThere(t *testing.T) {
	board, s := placement.NewBoard(nil), &stream{}
	board.Set([]wire.Presence{worker("b")})
	j := batchOf(board, s)
	publish(t, j, s, 0, waiting, batch.Unserved{Index: 0, Is: true})
	if events, gone := j.Gone(0, board.Fleet()); !gone || len(events) > 0 {
		t.Fatalf("no worker has the tool: gone %v, %v", gone, events)
	}
	board.Set([]wire.Presence{worker("a")})
	for range 2 {
		if events, gone := j.Gone(0, board.Fleet()); gone || !cmp.Equal(events, []batch.Event{batch.Unserved{Index: 0}}) {
			t.Errorf("a worker has the tool: gone %v, %v", gone, events)
		}
	}
}

// No worker has taken a job for a while: the job moves to a queue with a free slot. A job that
// a worker may have stays.
func TestAJobGoesToAFreeSlot(t *testing.T) {
	for _, taken := range []bool{true, false} {
		board, s := placement.NewBoard(nil), &stream{delivered: taken}
		board.Set([]wire.Presence{worker("a")})
		j := batchOf(board, s)
		publish(t, j, s, 0, token("a"))
		board.Set([]wire.Presence{worker("a"), worker("a", "b")})
		if got := j.Move(t.Context(), now.Add(toolset.Patience-1), out); got != nil {
			t.Errorf("taken %v: the job moves at once: %v", taken, got)
		}
		got := j.Move(t.Context(), now.Add(toolset.Patience), out)
		switch {
		case taken && (got != nil || len(s.jobs) != 1):
			t.Errorf("a worker may have the job, and it moves: %v, left are %v", got, s.jobs)
		case !taken && (!cmp.Equal(got, []batch.Event{batch.LetGo{Index: 0}}) || len(s.jobs) != 0):
			t.Errorf("the job stays: %v, left are %v", got, s.jobs)
		case !taken:
			publish(t, j, s, 0, token("a", "b"))
		}
	}
}

func TestBoardTellsOfOtherWorkers(t *testing.T) {
	board := placement.NewBoard(nil)
	busy := worker("a")
	busy.Busy = 1
	for i, step := range []struct {
		present []wire.Presence
		changed bool
	}{
		{nil, false}, {[]wire.Presence{worker("a")}, true}, {[]wire.Presence{busy}, false}, {[]wire.Presence{worker("a"), worker("a")}, false},
		{[]wire.Presence{worker("a", "b")}, true}, {nil, true},
	} {
		if got := board.Set(step.present); got != step.changed {
			t.Errorf("step %d: changed %v", i, got)
		}
	}
	board.Set([]wire.Presence{worker("a")})
	for name, tc := range map[string]struct {
		token string
		age   time.Duration
		want  bool
	}{
		"a worker takes it": {token("a"), time.Hour, false},
		"it is new":         {waiting, time.Second, false},
		"it waits":          {waiting, time.Minute, true},
		"its workers left":  {token("a", "b"), time.Minute, true},
	} {
		if got := board.Strays(tc.token, tc.age, 10*time.Second); got != tc.want {
			t.Errorf("%s: a stray %v", name, got)
		}
	}
}
