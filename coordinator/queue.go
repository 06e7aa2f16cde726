package coordinator

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// queue lists and removes the jobs of one batch in the job stream. A job that a worker has
// taken may be removed too: the worker reads in the journal that the call has ended.
type queue struct {
	conn      *bus.Conn
	key       wire.BatchKey
	delivered *delivered
}

// of returns the jobs of a call: those that wait in a queue, and those that workers have
// taken.
func (q queue) of(ctx context.Context, index int) ([]bus.Msg, error) {
	names := q.conn.Names()
	return q.conn.LastOfEach(ctx, names.Stream(bus.Jobs), names.JobOf(q.key.Call(index))...)
}

// all returns the jobs of the batch.
func (q queue) all(ctx context.Context) ([]bus.Msg, error) {
	names := q.conn.Names()
	return q.conn.LastOfEach(ctx, names.Stream(bus.Jobs), names.JobsOf(q.key)...)
}

// Of implements [placement.Queues].
func (q queue) Of(ctx context.Context, index int) ([]placement.Queued, error) {
	return q.queued(q.of(ctx, index))
}

// All implements [placement.Queues].
func (q queue) All(ctx context.Context) ([]placement.Queued, error) { return q.queued(q.all(ctx)) }

func (q queue) queued(jobs []bus.Msg, err error) (all []placement.Queued, _ error) {
	for _, job := range jobs {
		token, key, nameErr := q.conn.Names().Job(job.Subject)
		if nameErr != nil {
			token = ""
		}
		all = append(all, placement.Queued{Token: token, Index: key.Index, Seq: job.Seq})
	}
	return all, err
}

// Remove implements [placement.Queues].
func (q queue) Remove(ctx context.Context, seq uint64) error { return q.removeAt(ctx, seq) }

// Delivered implements [placement.Queues].
func (q queue) Delivered(ctx context.Context, job placement.Queued) bool {
	return q.delivered.maybe(ctx, job.Token, job.Seq)
}

// withdraw removes the jobs of a call, so that no worker starts them.
func (q queue) withdraw(ctx context.Context, index int) error {
	jobs, err := q.of(ctx, index)
	return q.remove(ctx, jobs, err)
}

// withdrawAll removes all jobs of the batch.
func (q queue) withdrawAll(ctx context.Context) error {
	jobs, err := q.all(ctx)
	return q.remove(ctx, jobs, err)
}

func (q queue) remove(ctx context.Context, jobs []bus.Msg, err error) error {
	for _, job := range jobs {
		err = errors.Join(err, q.removeAt(ctx, job.Seq))
	}
	return err
}

// removeAt removes the job with a sequence.
func (q queue) removeAt(ctx context.Context, seq uint64) error {
	return q.conn.Delete(ctx, q.conn.Names().Stream(bus.Jobs), seq)
}
