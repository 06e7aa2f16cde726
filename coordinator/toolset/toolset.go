// Package toolset decides in which queue the job of a call waits for a worker.
//
//	announcements of workers -> Fleet;  a call's tool -> Place -> the token of a queue
//
// A toolset is the tools that a worker serves in a pool. Workers with the same toolset share one
// queue, so a job reaches only workers that have its tool. A job whose tool nobody serves is in a
// queue from which no worker takes jobs, until a worker comes that has the tool.
//
// Once a job is in a queue it stays there as long as a worker takes jobs from it: a job in two
// queues could run twice. Keeps and [Job.Moves] say when it goes elsewhere. A job that no worker
// has got for a while also goes elsewhere if a worker could take it there at once:
// [Fleet.PlaceFree].
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

// Tool is what a call needs of a worker.
type Tool struct{ Pool, Name, Digest string }

// Queue is a queue from which workers take jobs.
type Queue struct {
	Pool, Token          string
	Workers, Slots, Busy int // of the workers that take jobs from it; draining ones do not count
	Draining             int // workers that take the rest of its jobs, and no others

	stay, drain tools // of those workers
}

// tools is a set of tools. The workers of old versions tell only names.
type tools struct{ digests, names map[string]bool }

func (s tools) has(t Tool) bool { return s.digests[t.Digest] || s.names[t.Name] }

func (s tools) same(other tools) bool {
	return maps.Equal(s.digests, other.digests) && maps.Equal(s.names, other.names)
}

func newTools() tools { return tools{map[string]bool{}, map[string]bool{}} }

// Fleet is the queues of all workers that are there.
type Fleet struct {
	queues map[string]*Queue // by token
	pools  map[string]int    // workers that take new jobs, by pool
}

// New returns the queues that workers have announced, as far as [Bound] lets them count. A worker
// of the version before takes its jobs from the queue of the pool.
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

// Busier returns the fleet after a worker has taken that many more calls. The fleet itself stays as
// it is.
func (f *Fleet) Busier(w wire.Presence, more int) *Fleet {
	if w.Draining {
		return f
	}
	busier := &Fleet{queues: maps.Clone(f.queues), pools: f.pools}
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

// Has reports whether a worker has the tool. Workers that drain count too.
func (f *Fleet) Has(t Tool) bool {
	for _, q := range f.queues {
		if q.Pool == t.Pool && (q.stay.has(t) || q.drain.has(t)) {
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
		if q.Pool == t.Pool && q.stay.has(t) {
			all = append(all, q)
		}
	}
	return all
}

// Place returns the queue for the job of a call: of those whose workers have the tool, the one with
// the smallest share of its slots taken. out is how many jobs the caller has in a queue; the
// workers' own count is some seconds old. Among equals the call decides, so every coordinator takes
// the same. served: a worker has the tool. Otherwise the job waits.
func (f *Fleet) Place(t Tool, call string, out func(token string) int) (token string, served bool) {
	best := lightest(f.serving(t), call, out)
	if best == nil {
		return wire.WaitingQueue(t.Pool), false
	}
	return best.Token, true
}

// PlaceFree is Place for a job that waits in a queue where no worker has taken it for [Patience].
// It returns another queue that has a free slot; ok is false if there is none.
func (f *Fleet) PlaceFree(t Tool, call, from string, out func(token string) int) (token string, ok bool) {
	best := lightest(slices.DeleteFunc(f.serving(t), func(q *Queue) bool {
		return q.Token == from || max(q.Busy, out(q.Token)) >= q.Slots
	}), call, out)
	if best == nil {
		return "", false
	}
	return best.Token, true
}

// Patience is how long a job waits in a queue before it may go to one that has a free slot. A
// worker with a free slot takes a job within milliseconds.
const Patience = 3 * time.Second

// lightest returns the queue with the smallest share of its slots taken; nil if there is none.
func lightest(all []*Queue, call string, out func(token string) int) *Queue {
	if len(all) == 0 {
		return nil
	}
	load := func(q *Queue) float64 { return float64(max(q.Busy, out(q.Token))+1) / float64(q.Slots) }
	return slices.MinFunc(all, func(a, b *Queue) int {
		return cmp.Or(cmp.Compare(load(a), load(b)), cmp.Compare(rank(call, a.Token), rank(call, b.Token)), cmp.Compare(a.Token, b.Token))
	})
}

// rank orders the queues for a call: another call has another order.
func rank(call, token string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(call + "\n" + token))
	return h.Sum64()
}

// Keeps reports whether a job in this queue is taken by a worker that has the tool, or waits there
// rightly because no worker has it. A worker that drains takes the rest of its queue, which keeps
// its jobs unless another queue has a worker for them.
func (f *Fleet) Keeps(token string, t Tool) bool {
	if q := f.queues[token]; q != nil && q.Pool == t.Pool && (q.stay.has(t) || q.drain.has(t) && !f.Serves(t)) {
		return true
	}
	return token == wire.WaitingQueue(t.Pool) && !f.Serves(t)
}

// Same reports whether both have the same workers, leaving aside how much they have to do.
func (f *Fleet) Same(other *Fleet) bool {
	return maps.EqualFunc(f.queues, other.queues, func(a, b *Queue) bool {
		return (a.Workers > 0) == (b.Workers > 0) && a.stay.same(b.stay) && a.drain.same(b.drain)
	})
}

// Job is what a driver knows of a job in a queue that keeps it no longer.
type Job struct {
	Delivered time.Time // when the driver first saw that a worker has got it; zero: none has
	Sign      time.Time // when a worker last reported that it runs the call; zero: none has
}

// Moves reports whether the job is put into another queue now. It is not while its worker shows
// signs of life, and not before a worker that has got it had the time to show one: the call would
// run twice for nothing. silence is after which time without a sign a worker counts as lost.
func (j Job) Moves(now time.Time, silence time.Duration) bool {
	switch {
	case !j.Sign.IsZero():
		return now.Sub(j.Sign) >= silence
	case !j.Delivered.IsZero():
		return now.Sub(j.Delivered) >= firstSign
	}
	return true
}

// firstSign is how long a worker has to report that it runs a call: ten times as long as it takes.
const firstSign = time.Second
