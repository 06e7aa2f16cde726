// Package placement keeps the jobs of a batch in queues from which workers take them.
//
//	a job is to be published  -> For      -> the queue for it
//	workers have come or gone -> Move     -> jobs to publish again
//	a worker gives a job up   -> GaveBack
//
// The rules are in package toolset. Jobs remembers in which queues the jobs of one batch are.
// It removes jobs from queues where they may not stay. In the simulation, it runs on a model
// of the job stream.
package placement

import (
	"context"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Queued is a job in a queue. It waits there, or a worker has it.
type Queued struct {
	Token string // token of the queue; "" if the job's subject cannot be read
	Index int    // index of the call
	Seq   uint64 // sequence of the job in the stream
}

// Queues gives access to the jobs of one batch in the stream of jobs.
type Queues interface {
	// Of returns the jobs of a call.
	Of(ctx context.Context, index int) ([]Queued, error)
	// All returns the jobs of the batch.
	All(ctx context.Context) ([]Queued, error)
	Remove(ctx context.Context, seq uint64) error
	// Delivered reports whether a worker may have got the job. It returns true if it cannot
	// find out.
	Delivered(ctx context.Context, job Queued) bool
}

// Batch is what Jobs needs to know about its batch.
type Batch struct {
	Key     wire.BatchKey
	Calls   int
	Tool    func(index int) toolset.Tool // the planned tool of a call
	Silence time.Duration                // how long a worker counts as alive without a report
	// Failed is called if a job may be left in a queue that has no worker for it.
	Failed func(index int, err error)
}

// Jobs tracks the jobs of one batch. Only one goroutine at a time may call its methods.
type Jobs struct {
	board   *Board
	queues  Queues
	batch   Batch
	places  map[int]place // by call
	lacking map[int]bool  // calls that wait because no worker of their pool has their tool
	moved   bool          // a job was removed from a queue, so a second job may be left over
}

// place is the queue that holds the job of a call.
type place struct {
	token string    // "": no job is known to be in a queue
	at    time.Time // when the job was put into the queue, or was first seen there
	seq   uint64    // sequence of the job when last read; 0: not read yet
	taken time.Time // when a worker was first seen to have the job; zero: no worker was
	avoid string    // the queue whose worker has given the job back
}

// New returns a Jobs that knows of no job yet.
func New(board *Board, queues Queues, b Batch) *Jobs {
	return &Jobs{board: board, queues: queues, batch: b, places: map[int]place{}, lacking: map[int]bool{}}
}

// For chooses the queue for a job that is about to be published. The call keeps its queue
// while workers of that queue have the tool. events are for the batch's machine.
//
// An empty token means that no job must be published now: an older job of the call may still
// be in a queue that has no worker for it. Move decides about that job.
func (j *Jobs) For(ctx context.Context, now time.Time, index int) (token string, events []batch.Event) {
	p, t, fleet := j.places[index], j.batch.Tool(index), j.board.Fleet()
	if p.token != "" && !fleet.Keeps(p.token, t) || p.token == "" && p.avoid != "" {
		if p.token != "" && j.at(ctx, now, index) != settled {
			return "", j.unserved(index, p.token, fleet)
		}
		j.takeBack(ctx, now, index)
		p = j.places[index]
	}
	if p.token == "" {
		p.token, p.at = j.board.place(t, j.batch.Key.Call(index).String(), p.avoid), now
		j.places[index] = p
	}
	return p.token, j.unserved(index, p.token, fleet)
}

// unserved returns an event for the machine if it has changed whether the call waits because
// no worker of its pool has its tool.
func (j *Jobs) unserved(index int, token string, fleet *toolset.Fleet) []batch.Event {
	pool := j.batch.Tool(index).Pool
	is := token == wire.WaitingQueue(pool) && fleet.Staffed(pool)
	if is == j.lacking[index] {
		return nil
	}
	j.lacking[index] = is
	return []batch.Event{batch.Unserved{Index: index, Is: is}}
}

// takeBack removes the job of a call from queues where it may not stay. It keeps a job that
// another driver has put into a queue where it may stay.
func (j *Jobs) takeBack(ctx context.Context, now time.Time, index int) {
	j.Forget(index)
	jobs, err := j.queues.Of(ctx, index)
	for _, job := range jobs {
		switch {
		case !j.board.Fleet().Keeps(job.Token, j.batch.Tool(index)):
			j.moved = true
			err = errors.Join(err, j.queues.Remove(ctx, job.Seq))
		case job.Token != j.places[index].avoid: // in avoid, the worker is about to settle the job
			j.found(now, job)
		}
	}
	if err != nil {
		j.moved = true
		j.batch.Failed(index, err)
	}
}

// found records that a job of a call is in a queue.
func (j *Jobs) found(now time.Time, job Queued) {
	j.Forget(job.Index)
	j.board.count(job.Token, 1)
	j.places[job.Index] = place{token: job.Token, at: now}
}

// Forget records that no job of a call is in a queue.
func (j *Jobs) Forget(index int) {
	if p, has := j.places[index]; has && p.token != "" {
		j.board.count(p.token, -1)
		j.places[index] = place{avoid: p.avoid}
	}
}

// Holds reports whether the newest job of a call may be in this queue. The queue "" is any
// queue.
func (j *Jobs) Holds(index int, queue string) bool {
	token := j.places[index].token
	return queue == "" || token == "" || queue == token
}

// GaveBack records that a worker has given up the job of a call.
func (j *Jobs) GaveBack(index int) {
	token := j.places[index].token
	j.Forget(index)
	j.places[index] = place{avoid: token}
}

// Adopt finds the jobs that an earlier driver has published.
func (j *Jobs) Adopt(ctx context.Context, now time.Time) error {
	jobs, err := j.queues.All(ctx)
	for _, job := range jobs {
		if job.Token != "" && job.Index < j.batch.Calls {
			j.moved = j.moved || j.places[job.Index].token != ""
			j.found(now, job)
		}
	}
	return err
}

// Holding reports whether a job of a call is known to be in a queue.
func (j *Jobs) Holding(index int) bool { return j.places[index].token != "" }

// Any reports whether any job of the batch is known to be in a queue.
func (j *Jobs) Any() bool {
	for _, p := range j.places {
		if p.token != "" {
			return true
		}
	}
	return false
}

// Move removes jobs from queues that have lost their workers. If a worker has come for a job
// in a waiting queue, it removes that job too. The returned events make the machine publish
// these jobs again. out is [batch.Machine.JobOut].
func (j *Jobs) Move(ctx context.Context, now time.Time, out func(now time.Time, index int) (sign time.Time, out bool)) (events []batch.Event) {
	fleet := j.board.Fleet()
	for index := range j.batch.Calls {
		token := j.places[index].token
		sign, isOut := out(now, index)
		if token == "" || !isOut {
			continue
		}
		t := j.batch.Tool(index)
		if fleet.Keeps(token, t) {
			events = append(events, j.unserved(index, token, fleet)...)
			if sign.IsZero() && j.toFreeSlot(ctx, now, index) {
				events = append(events, batch.LetGo{Index: index})
			}
			continue
		}
		at := j.at(ctx, now, index)
		job := toolset.Job{Delivered: j.places[index].taken, Sign: sign}
		if at != settled && job.Moves(now, j.batch.Silence) {
			j.takeBack(ctx, now, index)
			events = append(append(events, j.Served(index, fleet)...), batch.LetGo{Index: index, Lost: at == taken})
		}
	}
	return events
}

// Served returns an event for the machine if the machine wrongly believes that no worker has
// the tool of a call.
func (j *Jobs) Served(index int, fleet *toolset.Fleet) []batch.Event {
	t := j.batch.Tool(index)
	if !j.lacking[index] || !fleet.Serves(t) && fleet.Staffed(t.Pool) {
		return nil
	}
	j.lacking[index] = false
	return []batch.Event{batch.Unserved{Index: index}}
}

// Gone reports whether no worker has the tool of a call. fleet must have been read just now.
// If a worker has the tool, events tell the machine so.
func (j *Jobs) Gone(index int, fleet *toolset.Fleet) (events []batch.Event, gone bool) {
	if events = j.Served(index, fleet); len(events) == 0 && fleet.Has(j.batch.Tool(index)) {
		// Move may have found the worker before the machine was told that there is none.
		events = []batch.Event{batch.Unserved{Index: index}}
	}
	return events, len(events) == 0
}

// toFreeSlot moves the job of a call to a queue with a free slot, if no worker has taken the
// job for a while. It only removes the job from its queue. The machine then publishes the job
// in the other queue.
func (j *Jobs) toFreeSlot(ctx context.Context, now time.Time, index int) bool {
	p, t := j.places[index], j.batch.Tool(index)
	if now.Sub(p.at) < toolset.Patience || p.token == wire.WaitingQueue(t.Pool) {
		return false
	}
	to, ok := j.board.placeFree(t, j.batch.Key.Call(index).String(), p.token)
	if !ok {
		return false
	}
	if j.at(ctx, now, index) != waits || j.queues.Remove(ctx, j.places[index].seq) != nil {
		j.board.count(to, -1)
		return false
	}
	j.Forget(index)
	j.places[index] = place{token: to, at: now}
	return true
}

// stage is how far a job has come in its queue.
type stage uint8

const (
	waits   stage = iota // no worker has got it
	taken                // a worker may have it
	settled              // it is not in the queue: its worker has ended it or given it up
)

// at returns how far the job of a call has come, and remembers when a worker was first seen to
// have the job. If the queue cannot be read, the job counts as taken.
func (j *Jobs) at(ctx context.Context, now time.Time, index int) stage {
	p := j.places[index]
	at, seq := j.read(ctx, index, p.token)
	if p.seq != 0 && seq != p.seq { // the call has another job since the last read
		p.at, p.taken = now, time.Time{}
	}
	if p.seq = seq; at == taken && p.taken.IsZero() {
		p.taken = now
	}
	j.places[index] = p
	return at
}

// read returns how far the job of a call has come in a queue, and the sequence of the job.
func (j *Jobs) read(ctx context.Context, index int, token string) (stage, uint64) {
	jobs, err := j.queues.Of(ctx, index)
	if err != nil {
		return taken, j.places[index].seq
	}
	for _, job := range jobs {
		switch {
		case job.Token != token:
		case token != wire.WaitingQueue(j.batch.Tool(index).Pool) && j.queues.Delivered(ctx, job):
			return taken, job.Seq
		default:
			return waits, job.Seq
		}
	}
	return settled, 0
}

// Leave forgets the jobs, because the batch has ended or another driver goes on with it. It
// reports whether a job may be left in a queue without workers.
func (j *Jobs) Leave() (leftBehind bool) {
	for index := range j.places {
		j.Forget(index)
	}
	return j.moved
}
