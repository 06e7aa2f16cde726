package coordinator

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// peers is what this coordinator knows of the other ones. Notices between peers save work and decide
// nothing: a lost notice costs a poll, or a batch is driven twice, which does no harm.
type peers struct {
	conn    *bus.Conn
	runs    *runs
	id      string
	ackWait time.Duration
	log     *slog.Logger
	// abandoned receives the keys of batches that a peer has given up without a delivery to hand back.
	// When it is full, the broker delivers the batch some time later.
	abandoned chan string

	mu        sync.Mutex
	elsewhere map[string]time.Time // when a peer last said that it drives a batch, by batch key; guarded by mu
	pruned    time.Time            // when elsewhere was last pruned; guarded by mu
}

func newPeers(conn *bus.Conn, r *runs, id string, ackWait time.Duration, log *slog.Logger) *peers {
	return &peers{conn: conn, runs: r, id: id, ackWait: ackWait, log: log, abandoned: make(chan string, 256), elsewhere: map[string]time.Time{}}
}

// publish sends a notice to all peers.
func (p *peers) publish(n wire.Notice) {
	n.V = messages.Version
	if err := p.conn.Publish(p.conn.Names().Coordinators(), nil, rawjson.MustMarshal(n)); err != nil {
		p.log.Debug("a notice to the other coordinators was not sent; their next poll finds what it was about", "err", err)
	}
}

// publishRunning says that a batch is driven here.
func (p *peers) publishRunning(batch string) {
	p.publish(wire.Notice{Batch: batch, Running: true, Worker: p.id})
}

// onNotice handles a peer's notice: it asks who drives a batch, drives one, has given one up, or has
// stored a control or a decision for a session.
func (p *peers) onNotice(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil || n.Worker == p.id {
		return
	}
	switch {
	case n.Driven:
		if p.runs.named(n.Batch) != nil {
			p.publishRunning(n.Batch)
		}
	case n.Running:
		p.setElsewhere(n.Batch)
	case n.LetGo != nil:
		p.mu.Lock()
		delete(p.elsewhere, n.Batch)
		p.mu.Unlock()
		if n.LetGo.AfterMS == 0 {
			select {
			case p.abandoned <- n.Batch:
			default:
			}
		}
	default:
		p.runs.nudge(n.Batch + ".")
	}
}

// setElsewhere notes that a peer drives a batch, and now and then forgets what is too old to count.
func (p *peers) setElsewhere(batch string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.elsewhere[batch] = now
	if now.Sub(p.pruned) < p.ackWait {
		return
	}
	p.pruned = now
	for key, at := range p.elsewhere {
		if now.Sub(at) > p.ackWait {
			delete(p.elsewhere, key)
		}
	}
}

// drive reports whether a peer said within the last Config.AckWait that it drives a batch.
func (p *peers) drive(key wire.BatchKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.elsewhere[key.String()]
	return ok && time.Since(at) <= p.ackWait
}

// pause waits, until ctx ends at the latest.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}
