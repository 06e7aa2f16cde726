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
	// A message stays delivered, so that answer holds for a second. That it is not may change at
	// any moment: that answer only serves those who ask at the same time.
	deliveredHolds, undeliveredHolds = time.Second, 100 * time.Millisecond
	// maxDelivered bounds the queues that are remembered.
	maxDelivered = 1024
)

// delivered remembers for a moment how far the consumers of queues have come. When a worker goes,
// many batches ask about the same queue.
type delivered struct {
	ask func(ctx context.Context, token string) (inspect.ConsumerState, error)

	mu     sync.Mutex
	queues map[string]*deliveredUpTo // by token; guarded by mu
}

// deliveredUpTo is how far one consumer has come.
type deliveredUpTo struct {
	turn chan struct{} // holds one token; taken while the server is asked
	seq  uint64        // of the holder of turn
	at   time.Time     // of the holder of turn
}

func newDelivered(conn *bus.Conn) *delivered {
	return &delivered{queues: map[string]*deliveredUpTo{}, ask: func(ctx context.Context, token string) (inspect.ConsumerState, error) {
		return inspect.Consumer(ctx, conn, conn.Names().Stream(bus.Jobs), token)
	}}
}

// maybe reports whether a worker may have got the job at a sequence from a queue. It returns true
// if it cannot find out.
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
	case errors.Is(err, bus.ErrNotFound): // nobody can have pulled from it
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
