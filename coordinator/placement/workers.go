package placement

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Workers holds the announcements of workers, and keeps a board up to date. Most announcements only
// say how busy a worker is, and change one count. Any other makes the board stale until Rebuild
// reads all of them. So when a fleet of a thousand workers starts, the board is rebuilt a few
// times, not a thousand times.
type Workers struct {
	board *Board

	mu    sync.Mutex
	known map[string]announced // by key; guarded by mu
}

// announced is one announcement.
type announced struct {
	said    wire.Presence // as it arrived
	counts  wire.Presence // the part that counts
	leftOut string        // describes the part that does not count; "": all counts
}

// NewWorkers returns no workers, for a board that knows none.
func NewWorkers(board *Board) *Workers { return &Workers{board: board, known: map[string]announced{}} }

// Learn applies one announcement. stale reports that the board lacks it, so Rebuild is due. leftOut
// describes the part that does not count, the first time.
func (w *Workers) Learn(key string, said wire.Presence) (stale bool, leftOut string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, had := w.known[key]
	if had && sameBut(before.said, said) {
		more := max(said.Busy, 0) - max(before.said.Busy, 0)
		before.said.Busy, before.counts.Busy = said.Busy, said.Busy
		w.known[key] = before
		w.board.busier(before.counts, more)
		return false, ""
	}
	counts, dropped := toolset.Bound(said)
	now := announced{said, counts, strings.Join(dropped, "; ")}
	w.known[key] = now
	if now.leftOut == before.leftOut {
		return true, ""
	}
	return true, now.leftOut
}

// sameBut reports whether two announcements differ only in how busy the worker is.
func sameBut(a, b wire.Presence) bool {
	a.Busy, a.Seen = b.Busy, time.Time{}
	b.Seen = time.Time{}
	return reflect.DeepEqual(a, b)
}

// Forget removes the announcement of a worker that has gone. stale: the board still has it.
func (w *Workers) Forget(key string) (stale bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, had := w.known[key]
	delete(w.known, key)
	return had
}

// Keys returns the keys of the workers that are there.
func (w *Workers) Keys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.known))
}

// Rebuild updates the board. It reports whether other tools are served now, or from other queues.
func (w *Workers) Rebuild() (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var present []wire.Presence
	for _, a := range w.known {
		present = append(present, a.counts)
	}
	return w.board.Set(present)
}
