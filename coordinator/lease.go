package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/peers"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// lease keeps the broker and the peers from driving a batch that is driven here. It saves work and
// decides nothing. Safe for concurrent use.
type lease struct {
	peers    *peers.Peers
	cfg      Config
	id       string // of the coordinator
	accepted journal.Accepted

	mu       sync.Mutex
	log      *slog.Logger   // guarded by mu
	delivery *pull.Delivery // of the batch; nil: it did not come by one; guarded by mu
	ended    bool           // the batch is not driven here any more; guarded by mu
	told     bool           // peers were told that the batch is driven here; guarded by mu
}

func (l *lease) setLog(log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = log
}

// current returns the newest delivery of the batch; nil: it did not come by one.
func (l *lease) current() *pull.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delivery
}

// adopt takes over a delivery of the batch that comes while it is driven. The newest delivery is
// the one that keeps the broker from delivering the batch once more; settling any of them takes the
// batch out of the log. A delivery with another sequence is a later batch with the same id, whose
// first was finished elsewhere: it waits.
func (l *lease) adopt(delivery *pull.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || delivery.Seq != l.accepted.Seq {
		logUnsettled(l.log, delivery.Nak(l.cfg.Poll))
		return
	}
	l.delivery = delivery
}

// keep tells the broker and the peers that the batch is driven, until stop is called.
func (l *lease) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	l.publishRunning()
	var signs sync.WaitGroup
	signs.Go(func() {
		ticks := time.NewTicker(l.cfg.AckWait / 3)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				l.inProgress()
				l.publishRunning()
			}
		}
	})
	return func() { cancel(); signs.Wait() }
}

func (l *lease) inProgress() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.delivery != nil {
		if err := l.delivery.InProgress(); err != nil {
			l.log.Debug("a sign of life was not sent; without any the broker delivers the batch again", "err", err)
		}
	}
}

// publishRunning tells the peers of a batch that is driven without a delivery of its own: the
// broker will deliver it to one of them.
func (l *lease) publishRunning() {
	l.mu.Lock()
	delivered := l.delivery != nil
	l.told = l.told || !delivered
	l.mu.Unlock()
	if !delivered {
		l.peers.PublishRunning(l.accepted.Key.String())
	}
}

// release ends the lease. It hands an unfinished batch back to the broker: at once when this
// coordinator ends, until it is to be looked at again when it is suspended, and otherwise after a
// pause that grows, so that a batch that nobody can drive does not go round in circles.
func (l *lease) release(ctx context.Context, finished bool, suspended time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if (l.delivery == nil || l.told) && !finished {
		let := wire.LetGo{}
		switch {
		case !suspended.IsZero():
			let.AfterMS = pauseOf(suspended).Milliseconds()
		case l.delivery != nil:
			let.AfterMS = 1 // the broker delivers it again
		}
		l.peers.Publish(wire.Notice{Batch: l.accepted.Key.String(), LetGo: &let, Worker: l.id})
	}
	if l.delivery == nil || l.delivery.Settled() {
		return
	}
	wait := bus.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}.Pause(l.delivery.Delivered)
	switch {
	case ctx.Err() != nil:
		wait = 0
	case !suspended.IsZero():
		wait = pauseOf(suspended)
	}
	logUnsettled(l.log, l.delivery.Nak(wait))
}

// pauseOf is how long the delivery of a batch that is suspended until a time is put off.
func pauseOf(suspended time.Time) time.Duration {
	return min(max(time.Until(suspended), 100*time.Millisecond), session.MaxSuspend)
}
