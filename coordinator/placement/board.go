package placement

import (
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Board holds a coordinator's knowledge of the workers, and counts its jobs in each queue. Safe for
// concurrent use.
type Board struct {
	mu    sync.Mutex
	fleet *toolset.Fleet // guarded by mu
	out   map[string]int // jobs, by queue; guarded by mu
}

// NewBoard returns a board that knows no worker.
func NewBoard() *Board { return &Board{fleet: toolset.New(nil), out: map[string]int{}} }

// Set replaces the workers. It reports whether other tools are served now, or from other queues.
func (b *Board) Set(present []wire.Presence) (changed bool) {
	fleet := toolset.New(present)
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !b.fleet.Same(fleet)
	b.fleet = fleet
	return changed
}

// busier adds to the calls that a worker has taken.
func (b *Board) busier(w wire.Presence, more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if more != 0 {
		b.fleet = b.fleet.Busier(w, more)
	}
}

// Fleet returns the queues of the workers that are there.
func (b *Board) Fleet() *toolset.Fleet {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fleet
}

// place chooses the queue for a call's job, and counts the job there. avoid is a queue whose worker
// has just given the job back.
func (b *Board) place(t toolset.Tool, call, avoid string) (token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	token, _ = b.fleet.Place(t, call, func(token string) int {
		if token == avoid {
			return b.out[token] + 1<<20
		}
		return b.out[token]
	})
	b.out[token]++
	return token
}

// Strays reports whether a job of this age may have been left behind in a queue: no worker takes
// jobs from it, and if its batch is open, the job is so old that the batch must be in the log.
func (b *Board) Strays(token string, age, patience time.Duration) bool {
	return age >= patience && !b.Fleet().Staffs(token)
}

// placeFree chooses a queue with a free slot for a job that waits in another queue, and counts the
// job there. ok is false if there is none.
func (b *Board) placeFree(t toolset.Tool, call, from string) (token string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	token, ok = b.fleet.PlaceFree(t, call, from, func(token string) int { return b.out[token] })
	if ok {
		b.out[token]++
	}
	return token, ok
}

func (b *Board) count(token string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.out[token] += n; b.out[token] <= 0 {
		delete(b.out, token)
	}
}
