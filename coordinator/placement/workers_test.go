package placement_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Workers come, leave, and announce how busy they are. The board, which is rebuilt only when
// that is due, is always the same as one made anew from all announcements.
func TestWorkersKeepTheBoardUpToDate(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 8))
		board := placement.NewBoard(nil)
		workers, present := placement.NewWorkers(board), map[string]wire.Presence{}
		for range 60 {
			key := fmt.Sprint(rng.IntN(5))
			w, is := present[key]
			stale := false
			switch n := rng.IntN(8); {
			case !is || n == 0:
				w = worker([]string{"a", "b", "c"}[:1+rng.IntN(3)]...)
				w.Slots, w.Busy = 9, rng.IntN(3)
			case n == 1:
				w.Draining = !w.Draining
			default:
				w.Busy, w.Seen = rng.IntN(10), now.Add(time.Duration(rng.IntN(1000)))
			}
			if rng.IntN(8) == 0 {
				delete(present, key)
				stale = workers.Forget(key)
			} else {
				present[key] = w
				stale, _ = workers.Learn(key, w)
			}
			if stale {
				workers.Rebuild()
			}
			var all []wire.Presence
			for _, w := range present {
				all = append(all, w)
			}
			want := toolset.New(all)
			if diff := cmp.Diff(want.Queues(), board.Fleet().Queues(), cmpopts.IgnoreUnexported(toolset.Queue{})); diff != "" || !want.Same(board.Fleet()) {
				t.Fatalf("seed %d (-made at once +kept): %s", seed, diff)
			}
		}
	}
}

// The board is rebuilt only after changes that affect the queues.
func TestWhenARebuildIsDue(t *testing.T) {
	workers := placement.NewWorkers(placement.NewBoard(nil))
	busy, later, draining, greedy := worker("a"), worker("a"), worker("a"), worker("a")
	busy.Busy, later.Seen, draining.Draining, greedy.Slots = 1, now, true, 1<<40
	for i, step := range []struct {
		says    wire.Presence
		stale   bool
		leftOut string
	}{
		{worker("a"), true, ""}, {busy, false, ""}, {later, false, ""}, {draining, true, ""}, {draining, false, ""},
		{greedy, true, "slots"}, {greedy, false, ""}, {worker("b"), true, ""},
	} {
		stale, leftOut := workers.Learn("w", step.says)
		if stale != step.stale || (leftOut != "") != (step.leftOut != "") || !strings.Contains(leftOut, step.leftOut) {
			t.Errorf("step %d: stale %v, left out %q", i, stale, leftOut)
		}
	}
	if workers.Forget("another") || !workers.Forget("w") || workers.Forget("w") {
		t.Error("a rebuild is due only if a worker that was known has gone")
	}
}
