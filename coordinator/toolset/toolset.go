// Package toolset decides in which queue the job of a call waits for a worker.
//
//	announcements of workers -> Fleet;  a call's tool -> Place -> the token of a queue
//
// A toolset is the set of tools that a worker serves in a pool. Workers with the same toolset
// share one queue, so a job reaches only workers that have its tool. If no worker serves the
// tool, the job waits in a queue from which no worker takes jobs, until a worker with the tool
// comes.
//
// A job stays in its queue while a worker takes jobs from that queue, because a job in two
// queues could run twice. [Fleet.Keeps] and [Job.Moves] decide when a job moves. If no worker
// has taken a job for a while, the job also moves to a queue whose workers have a free slot:
// see [Fleet.PlaceFree].
//
// The package is pure: no clock, no I/O, no goroutine.
package toolset

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Tool is the tool that a call needs. Tenant is the token of the tenant that calls it.
type Tool struct{ Pool, Name, Digest, Tenant string }

// Queue is a queue from which workers take jobs.
type Queue struct {
	Pool, Token          string
	Workers, Slots, Busy int // sums over the workers that take new jobs from the queue
	Draining             int // number of workers that only finish the jobs left in the queue

	stay, drain tools // the tools of the workers that stay, and of those that drain
}

// tools is a set of tools. A worker of an old version announces only the names of its tools.
type tools struct{ digests, names map[string]bool }

func (s tools) has(t Tool) bool { return s.digests[t.Digest] || s.names[t.Name] }

func (s tools) same(other tools) bool {
	return maps.Equal(s.digests, other.digests) && maps.Equal(s.names, other.names)
}

func newTools() tools { return tools{map[string]bool{}, map[string]bool{}} }

// Fleet holds the queues of all present workers.
type Fleet struct {
	queues map[string]*Queue // by token
	pools  map[string]int    // number of workers that take new jobs, by pool
	owners Owners
}

// New returns the queues of the announced workers, within the limits of [Bound]. A worker
// of the previous version announces no queue and uses the queue of its pool. New knows of no
// pool that belongs to a tenant: see [Owners.Fleet].
func New(present []wire.Presence) *Fleet {
	f := &Fleet{queues: map[string]*Queue{}, pools: map[string]int{}}
	for _, w := range present {
		w, _ := Bound(w)
		for _, pool := range w.Pools {
			announced, has := w.Queues[pool]
			if !has {
				announced.Token = pool
			}
			q := f.queues[announced.Token]
			if q == nil {
				q = &Queue{Pool: pool, Token: announced.Token, stay: newTools(), drain: newTools()}
				f.queues[announced.Token] = q
			}
			into := q.stay
			if w.Draining {
				into = q.drain
			}
			switch {
			case has:
				add(into.digests, announced.Tools...)
			case w.Toolsets != nil:
				add(into.digests, slices.Collect(maps.Values(w.Toolsets[pool]))...)
			default:
				add(into.names, w.Tools...)
			}
			if w.Draining {
				q.Draining++
				continue
			}
			q.Workers, q.Slots, q.Busy = q.Workers+1, q.Slots+max(w.Slots, 1), q.Busy+max(w.Busy, 0)
			f.pools[pool]++
		}
	}
	return f
}

// Busier returns a copy of the fleet in which a worker has taken more calls, by the number
// more.
func (f *Fleet) Busier(w wire.Presence, more int) *Fleet {
	if w.Draining {
		return f
	}
	busier := &Fleet{queues: maps.Clone(f.queues), pools: f.pools, owners: f.owners}
	for _, pool := range w.Pools {
		token := pool
		if announced, has := w.Queues[pool]; has {
			token = announced.Token
		}
		if q := busier.queues[token]; q != nil {
			changed := *q
			changed.Busy += more
			busier.queues[token] = &changed
		}
	}
	return busier
}

func add(set map[string]bool, values ...string) {
	for _, v := range values {
		set[v] = true
	}
}

// Queues returns the queues from which workers take jobs, sorted by token.
func (f *Fleet) Queues() []Queue {
	var all []Queue
	for _, token := range slices.Sorted(maps.Keys(f.queues)) {
		all = append(all, *f.queues[token])
	}
	return all
}

// Serves reports whether a worker that takes new jobs has the tool.
func (f *Fleet) Serves(t Tool) bool { return len(f.serving(t)) > 0 }

// Has reports whether a worker has the tool. Draining workers count too.
func (f *Fleet) Has(t Tool) bool {
	for _, q := range f.queues {
		if f.takes(q, t) && (q.stay.has(t) || q.drain.has(t)) {
			return true
		}
	}
	return false
}

// Staffed reports whether a worker of the pool takes new jobs.
func (f *Fleet) Staffed(pool string) bool { return f.pools[pool] > 0 }

// Staffs reports whether a worker takes jobs from the queue with a token.
func (f *Fleet) Staffs(token string) bool { return f.queues[token] != nil }

// serving returns the queues whose workers have the tool and take new jobs.
func (f *Fleet) serving(t Tool) (all []*Queue) {
	for _, q := range f.queues {
		if f.takes(q, t) && q.stay.has(t) {
			all = append(all, q)
		}
	}
	return all
}

// takes reports whether jobs for the tool may go to the queue at all.
func (f *Fleet) takes(q *Queue, t Tool) bool {
	return q.Pool == t.Pool && f.owners.Serves(t.Pool, t.Tenant)
}

// Place returns the queue for a call's job: a queue whose workers have the tool, with the
// smallest share of slots in use. out returns how many jobs the caller has in a queue; the
// workers' own count is some seconds old. If shares are equal, a hash of the call decides, so
// every coordinator chooses the same queue. If no worker has the tool, served is false and the
// queue is the waiting queue of the pool.
func (f *Fleet) Place(t Tool, call string, out func(token string) int) (token string, served bool) {
	best := lightest(f.serving(t), call, out)
	if best == nil {
		return wire.WaitingQueue(t.Pool), false
	}
	return best.Token, true
}

// PlaceFree returns another queue with a free slot, for a job that no worker has taken from
// its queue for [Patience]. ok is false if there is no such queue.
func (f *Fleet) PlaceFree(t Tool, call, from string, out func(token string) int) (token string, ok bool) {
	best := lightest(slices.DeleteFunc(f.serving(t), func(q *Queue) bool {
		return q.Token == from || max(q.Busy, out(q.Token)) >= q.Slots
	}), call, out)
	if best == nil {
		return "", false
	}
	return best.Token, true
}

// Patience is how long a job waits in a queue before it may move to a queue with a free slot.
// A worker with a free slot takes a job within milliseconds.
const Patience = 3 * time.Second

// lightest returns the queue with the smallest share of slots in use, or nil.
func lightest(all []*Queue, call string, out func(token string) int) *Queue {
	if len(all) == 0 {
		return nil
	}
	load := func(q *Queue) float64 { return float64(max(q.Busy, out(q.Token))+1) / float64(q.Slots) }
	return slices.MinFunc(all, func(a, b *Queue) int {
		return cmp.Or(cmp.Compare(load(a), load(b)), cmp.Compare(rank(call, a.Token), rank(call, b.Token)), cmp.Compare(a.Token, b.Token))
	})
}

// rank orders the queues, in a different order for each call.
func rank(call, token string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(call + "\n" + token))
	return h.Sum64()
}

// Keeps reports whether a job may stay in this queue. It may stay if a worker of the queue has
// the tool. If all such workers drain, it stays only while no other queue serves the tool. In
// the waiting queue, it stays while no worker serves the tool.
func (f *Fleet) Keeps(token string, t Tool) bool {
	if q := f.queues[token]; q != nil && f.takes(q, t) && (q.stay.has(t) || q.drain.has(t) && !f.Serves(t)) {
		return true
	}
	return token == wire.WaitingQueue(t.Pool) && !f.Serves(t)
}

// Same reports whether both fleets have the same queues, with the same tools. It ignores how
// busy the workers are, and how many they are, except whether a queue has any.
func (f *Fleet) Same(other *Fleet) bool {
	return maps.EqualFunc(f.queues, other.queues, func(a, b *Queue) bool {
		return (a.Workers > 0) == (b.Workers > 0) && a.stay.same(b.stay) && a.drain.same(b.drain)
	})
}

// Job is what a driver knows about a job that has to leave its queue.
type Job struct {
	Delivered time.Time // when the driver saw that a worker had got the job; zero: no worker had
	Sign      time.Time // when a worker last reported that it runs the call; zero: no worker did
}

// Moves reports whether the job moves to another queue now. If a worker runs the call, a move
// would make the call run twice. So the job stays while its worker reports the run, and for
// firstSign after a worker has got the job. A worker that reports nothing for silence counts
// as lost.
func (j Job) Moves(now time.Time, silence time.Duration) bool {
	switch {
	case !j.Sign.IsZero():
		return now.Sub(j.Sign) >= silence
	case !j.Delivered.IsZero():
		return now.Sub(j.Delivered) >= firstSign
	}
	return true
}

// firstSign is how long a worker has to report its first run of a call. It is ten times as
// long as a worker needs.
const firstSign = time.Second
