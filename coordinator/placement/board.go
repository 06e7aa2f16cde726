package placement

import (
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Board has what a coordinator knows about the workers, and counts the coordinator's jobs in
// each queue. Safe for concurrent use.
type Board struct {
	owners toolset.Owners

	mu    sync.Mutex
	fleet *toolset.Fleet // guarded by mu
	out   map[string]int // jobs, by queue; guarded by mu
}

// NewBoard returns a board without workers. owners may be nil.
func NewBoard(owners toolset.Owners) *Board {
	return &Board{owners: owners, fleet: owners.Fleet(nil), out: map[string]int{}}
}

// Set replaces the workers. It reports whether the served tools or their queues have
// changed.
func (b *Board) Set(present []wire.Presence) (changed bool) {
	fleet := b.owners.Fleet(present)
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !b.fleet.Same(fleet)
	b.fleet = fleet
	return changed
}

// busier adds more to the number of calls that a worker has taken.
func (b *Board) busier(w wire.Presence, more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if more != 0 {
		b.fleet = b.fleet.Busier(w, more)
	}
}

// Fleet returns the queues of the present workers.
func (b *Board) Fleet() *toolset.Fleet {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fleet
}

// place chooses the queue for a call's job, and counts the job there. avoid is the queue whose
// worker has just given the job back. place chooses avoid only if there is no other queue.
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

// Strays reports whether a job of this age may be left over in a queue: no worker takes jobs
// from the queue, and the job is so old that the log must have its batch, if the batch is
// open.
func (b *Board) Strays(token string, age, patience time.Duration) bool {
	return age >= patience && !b.Fleet().Staffs(token)
}

// placeFree chooses a queue with a free slot for a job that waits in the queue from, and
// counts the job there. ok is false if no queue has a free slot.
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
