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

// lease tells the broker and the other coordinators that this coordinator drives a batch,
// so that they do not drive it too. This only saves work: two drivers of one batch do no
// harm. Safe for concurrent use.
type lease struct {
	peers    *peers.Peers
	cfg      Config
	id       string // of this coordinator
	accepted journal.Accepted

	mu       sync.Mutex
	log      *slog.Logger   // guarded by mu
	delivery *pull.Delivery // the batch's newest delivery, or nil; guarded by mu
	ended    bool           // the run of the batch has ended; guarded by mu
	head     bool           // the batch is the oldest of its session without a reply; guarded by mu
	told     bool           // this coordinator has told its peers that it drives the batch; guarded by mu
}

func (l *lease) setLog(log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = log
}

// current returns the newest delivery of the batch, or nil if it had none.
func (l *lease) current() *pull.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delivery
}

// adopt takes over a further delivery of the batch. The broker delivers a batch again
// unless the newest delivery is renewed, so keep renews this one from now on. A delivery
// with another sequence belongs to a later batch with the same id, and goes back to the
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

// announce marks the batch as the oldest of its session. From now on the lease tells the
// peers about the batch if it has no delivery.
func (l *lease) announce() {
	l.mu.Lock()
	before := l.head || l.ended
	l.head = true
	l.mu.Unlock()
	if !before {
		l.publishRunning()
	}
}

// keep tells the broker and the peers at intervals that the batch is driven. stop ends
// that.
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

// publishRunning tells the peers that this coordinator drives the batch, if it has no
// delivery of it. In that case the broker may deliver the batch to a peer.
func (l *lease) publishRunning() {
	l.mu.Lock()
	publish := l.head && l.delivery == nil
	l.told = l.told || publish
	l.mu.Unlock()
	if publish {
		l.peers.PublishRunning(l.accepted.Key.String())
	}
}

// release ends the lease. If the batch is unfinished, its delivery goes back to the broker.
// The broker delivers it again at once if ends is set, because this coordinator shuts down.
// A suspended batch is delivered again at the time suspended. In any other case the delay
// grows with each delivery, because perhaps no coordinator can drive the batch.
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
			let.AfterMS = 1 // the broker delivers it again
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
