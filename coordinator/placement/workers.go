package placement

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Workers has the announcements of workers and updates a board from them. Most announcements
// only say how busy a worker is, and change one number on the board. After any other
// announcement, the board is stale until Rebuild reads all announcements. So when a thousand
// workers start, the board is rebuilt a few times and not a thousand times.
type Workers struct {
	board *Board

	mu    sync.Mutex
	known map[string]announced // by key; guarded by mu
}

// announced is one announcement.
type announced struct {
	said    wire.Presence // as it was announced
	counts  wire.Presence // the part of it that counts
	leftOut string        // describes the part that does not count; "" if all of it counts
}

// NewWorkers returns Workers without announcements, for a board without workers.
func NewWorkers(board *Board) *Workers { return &Workers{board: board, known: map[string]announced{}} }

// Learn applies one announcement. stale means that Rebuild is needed before the board shows
// it. leftOut describes the part of the announcement that does not count; it is set only when
// Learn sees that part for the first time.
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
	counts, dropped := w.board.owners.Bound(said)
	now := announced{said, counts, strings.Join(dropped, "; ")}
	w.known[key] = now
	if now.leftOut == before.leftOut {
		return true, ""
	}
	return true, now.leftOut
}

// sameBut reports whether two announcements differ at most in how busy the worker is.
func sameBut(a, b wire.Presence) bool {
	a.Busy, a.Seen = b.Busy, time.Time{}
	b.Seen = time.Time{}
	return reflect.DeepEqual(a, b)
}

// Forget removes the announcement of a worker that has gone. stale means that the board
// still shows it.
func (w *Workers) Forget(key string) (stale bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, had := w.known[key]
	delete(w.known, key)
	return had
}

// Keys returns the keys of the present workers.
func (w *Workers) Keys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.known))
}

// Rebuild updates the board. It reports whether the served tools or their queues have
// changed.
func (w *Workers) Rebuild() (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var present []wire.Presence
	for _, a := range w.known {
		present = append(present, a.counts)
	}
	return w.board.Set(present)
}
