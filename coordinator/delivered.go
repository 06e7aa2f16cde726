package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
)

const (
	// deliveredHolds is how long the answer "delivered" is cached. A delivered job stays
	// delivered. undeliveredHolds is how long the answer "not delivered" is cached. It is
	// short, because the job may be delivered at any moment.
	deliveredHolds, undeliveredHolds = time.Second, 100 * time.Millisecond
	// maxDelivered limits the number of cached queues.
	maxDelivered = 1024
)

// delivered caches, for each queue, the last job that the broker has delivered to a worker.
// The cache helps when a worker leaves and many batches ask about its queue at once.
type delivered struct {
	ask func(ctx context.Context, token string) (inspect.ConsumerState, error)

	mu     sync.Mutex
	queues map[string]*deliveredUpTo // by token; guarded by mu
}

// deliveredUpTo is the cached answer about one queue.
type deliveredUpTo struct {
	turn chan struct{} // holds one token, which a goroutine takes while it asks the server
	seq  uint64        // of the last delivered job; owned by the holder of turn
	at   time.Time     // when the server answered; owned by the holder of turn
}

func newDelivered(conn *bus.Conn) *delivered {
	return &delivered{queues: map[string]*deliveredUpTo{}, ask: func(ctx context.Context, token string) (inspect.ConsumerState, error) {
		return inspect.Consumer(ctx, conn, conn.Names().Stream(bus.Jobs), token)
	}}
}

// maybe reports whether a worker may have got the job with this sequence. It returns true if
// the server does not answer.
func (d *delivered) maybe(ctx context.Context, token string, seq uint64) bool {
	q := d.queue(token)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return true
	}
	age := time.Since(q.at)
	if q.seq >= seq && age < deliveredHolds {
		return true
	}
	if q.seq < seq && age < undeliveredHolds {
		return false
	}
	state, err := d.ask(ctx, token)
	switch {
	case errors.Is(err, bus.ErrNotFound): // without a consumer, no worker can have pulled a job
		q.seq, q.at = 0, time.Now()
		return false
	case err != nil:
		return true
	}
	q.seq, q.at = state.Delivered.Stream, time.Now()
	return q.seq >= seq
}

func (d *delivered) queue(token string) *deliveredUpTo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues[token] == nil {
		if len(d.queues) >= maxDelivered {
			clear(d.queues)
		}
		d.queues[token] = &deliveredUpTo{turn: make(chan struct{}, 1)}
	}
	return d.queues[token]
}
