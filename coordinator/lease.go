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

// lease tells the broker and the other coordinators that this coordinator drives a batch, so
// that they do not drive the batch too. A second driver does no harm, but it repeats work.
// Safe for concurrent use.
type lease struct {
	peers    *peers.Peers
	cfg      Config
	id       string // of this coordinator
	accepted journal.Accepted

	mu       sync.Mutex
	log      *slog.Logger   // guarded by mu
	delivery *pull.Delivery // the batch's newest delivery, or nil; guarded by mu
	ended    bool           // the run of the batch has ended; guarded by mu
	head     bool           // the batch is the head of its session; guarded by mu
	told     bool           // this coordinator has told its peers that it drives the batch; guarded by mu
}

func (l *lease) setLog(log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = log
}

// current returns the newest delivery of the batch, or nil if there was none.
func (l *lease) current() *pull.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delivery
}

// adopt takes over a further delivery of the batch. From now on keep renews this delivery,
// because the broker delivers a batch again unless its newest delivery is renewed. If the
// delivery has another sequence, it is of a later batch with the same id, and goes back to the
// broker.
func (l *lease) adopt(delivery *pull.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || delivery.Seq != l.accepted.Seq {
		logUnsettled(l.log, delivery.Nak(l.cfg.Poll))
		return
	}
	l.delivery = delivery
}

// announce marks the batch as the head of its session. From now on, while the batch has no
// delivery, the lease tells the peers at intervals that the batch is driven here.
func (l *lease) announce() {
	l.mu.Lock()
	before := l.head || l.ended
	l.head = true
	l.mu.Unlock()
	if !before {
		l.publishRunning()
	}
}

// keep tells the broker and the peers at intervals that the batch is driven. The function stop
// ends this.
func (l *lease) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
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

// publishRunning tells the peers that this coordinator drives the batch. It does so only for
// the head of a session, while this coordinator has no delivery of the batch: the broker may
// then deliver the batch to a peer.
func (l *lease) publishRunning() {
	l.mu.Lock()
	publish := l.head && l.delivery == nil
	l.told = l.told || publish
	l.mu.Unlock()
	if publish {
		l.peers.PublishRunning(l.accepted.Key.String())
	}
}

// release ends the lease. If the batch is unfinished, its delivery goes back to the broker. If
// ends is set, this coordinator shuts down, and the broker delivers the batch again at once.
// suspended is set for a suspended batch: the broker delivers it again at that time, or
// earlier (see session.PutOff). In all other cases the broker waits longer after each
// delivery, because perhaps no coordinator can drive the batch.
func (l *lease) release(finished, ends bool, suspended time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.told && !finished {
		let := wire.LetGo{}
		switch {
		case !suspended.IsZero():
			let.AfterMS = session.PutOff(time.Now(), suspended).Milliseconds()
		case l.delivery != nil:
			let.AfterMS = 1 // not 0, because the broker delivers the batch again
		}
		l.peers.Publish(wire.Notice{Batch: l.accepted.Key.String(), LetGo: &let, Worker: l.id})
	}
	if l.delivery == nil || l.delivery.Settled() {
		return
	}
	wait := bus.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}.Pause(l.delivery.Delivered)
	switch {
	case ends:
		wait = 0
	case !suspended.IsZero():
		wait = session.PutOff(time.Now(), suspended)
	}
	logUnsettled(l.log, l.delivery.Nak(wait))
}
