package main

import (
	"context"
	"sync"
)

// gatherer runs batches on a queue without fan-in: it enqueues the jobs and gathers their results,
// which arrive by another way. Users of such queues write this by hand.
type gatherer struct {
	// enqueue adds the jobs from index i to j of a batch.
	enqueue func(ctx context.Context, f frame, i, j int) error
	waiting sync.Map // batch to chan frame
}

// result takes a result. A result that nobody waits for is a duplicate.
func (g *gatherer) result(body []byte) {
	f := decode(body)
	if in, ok := g.waiting.Load(f.Batch); ok {
		select {
		case in.(chan frame) <- f:
		default:
		}
	}
}

// run returns the reply of a batch: reads at once, then each write when the last one has ended.
func (g *gatherer) run(ctx context.Context, body []byte) ([]byte, error) {
	f := decode(body)
	in := make(chan frame, 2*len(f.parts))
	g.waiting.Store(f.Batch, in)
	defer g.waiting.Delete(f.Batch)
	reply := frame{f.head, make([][]byte, len(f.parts))}
	for i := 0; i < len(f.parts); {
		j := max(i+1, int(f.Reads))
		if err := g.enqueue(ctx, f, i, j); err != nil {
			return nil, err
		}
		for ; i < j; i++ {
			select {
			case result := <-in:
				reply.parts[result.Index] = result.parts[0]
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return reply.encode(), nil
}
