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
	// A job that was delivered stays delivered, so this answer is kept for a second. A job
	// that was not delivered may be delivered at any moment, so that answer is shared only
	// by requests at about the same time.
	deliveredHolds, undeliveredHolds = time.Second, 100 * time.Millisecond
	// maxDelivered limits the number of cached queues.
	maxDelivered = 1024
)

// delivered caches, per queue, up to which job its consumer has delivered. When a worker
// leaves, many batches ask about the same queue at once.
type delivered struct {
	ask func(ctx context.Context, token string) (inspect.ConsumerState, error)

	mu     sync.Mutex
	queues map[string]*deliveredUpTo // by token; guarded by mu
}

// deliveredUpTo is the sequence of the last job that a consumer had delivered when it was
// asked.
type deliveredUpTo struct {
	turn chan struct{} // holds one token; taken while the server is asked
	seq  uint64        // owned by the holder of turn
	at   time.Time     // owned by the holder of turn
}

func newDelivered(conn *bus.Conn) *delivered {
	return &delivered{queues: map[string]*deliveredUpTo{}, ask: func(ctx context.Context, token string) (inspect.ConsumerState, error) {
		return inspect.Consumer(ctx, conn, conn.Names().Stream(bus.Jobs), token)
	}}
}

// maybe reports whether a worker may have got the job with this sequence. It returns true if it
// cannot find out.
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
