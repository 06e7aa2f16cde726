package coordinator

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// queue removes jobs of one batch from the job stream. A worker may hold a removed job; it then
// finds that the call has ended.
type queue struct {
	conn *bus.Conn
	key  wire.BatchKey
}

// of returns the jobs of a call that are in its lanes, queued or held by workers.
func (q queue) of(ctx context.Context, index int, pool string) ([]bus.Msg, error) {
	names, key := q.conn.Names(), q.key.Call(index)
	return q.conn.LastOfEach(ctx, names.Stream(bus.Jobs), names.Lane(false, pool, key), names.Lane(true, pool, key))
}

// withdraw removes the jobs of a call, so that no worker starts them.
func (q queue) withdraw(ctx context.Context, index int, pool string) error {
	jobs, err := q.of(ctx, index, pool)
	return q.remove(ctx, jobs, err)
}

// withdrawAll removes all jobs of the batch.
func (q queue) withdrawAll(ctx context.Context) error {
	names := q.conn.Names()
	jobs, err := q.conn.LastOfEach(ctx, names.Stream(bus.Jobs), names.JobsOf(q.key)...)
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
