// Package peers sends and receives the notices among coordinators: which batches they drive, which
// they have given up, and which sessions have a new control or decision.
//
// The notices only save work. A lost notice costs a poll, or a batch is driven twice, which does no
// harm. The coordinator decides what to do about a batch.
package peers

import (
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Runs holds the batches that this coordinator drives, by batch key.
type Runs interface {
	Has(batch string) bool
	// Nudge asks the drivers of all batches whose key begins with prefix to read the journal.
	Nudge(prefix string)
}

// Config is what Peers has to know about its coordinator.
type Config struct {
	ID      string        // of this coordinator
	AckWait time.Duration // how long after a notice a peer counts as the driver of the batch
	Logger  *slog.Logger  // nil: silent
}

// Peers is what one coordinator knows about the others. Safe for concurrent use.
type Peers struct {
	conn *bus.Conn
	runs Runs
	cfg  Config
	// abandoned receives the keys of batches that a peer has given up and could not hand back to
	// the broker. If it is full, a key is dropped; the broker delivers that batch some minutes
	// later.
	abandoned chan string

	mu        sync.Mutex
	elsewhere map[string]time.Time // when a peer last said that it drives a batch, by batch key; guarded by mu
	pruned    time.Time            // when elsewhere was last pruned; guarded by mu
}

// New returns the peers of a coordinator. The caller subscribes OnNotice to the coordinators'
// subject.
func New(conn *bus.Conn, r Runs, cfg Config) *Peers {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Peers{conn: conn, runs: r, cfg: cfg, abandoned: make(chan string, 256), elsewhere: map[string]time.Time{}}
}

// Abandoned returns the channel with the keys of batches that a peer has given up and that the
// broker may not deliver for minutes.
func (p *Peers) Abandoned() <-chan string { return p.abandoned }

// Publish sends a notice to all peers.
func (p *Peers) Publish(n wire.Notice) {
	n.V = messages.Version
	if err := p.conn.Publish(p.conn.Names().Coordinators(), nil, rawjson.MustMarshal(n)); err != nil {
		p.cfg.Logger.Debug("a notice to the other coordinators was not sent; their next poll finds what it was about", "err", err)
	}
}

// PublishRunning tells the peers that this coordinator drives a batch.
func (p *Peers) PublishRunning(batch string) {
	p.Publish(wire.Notice{Batch: batch, Running: true, Worker: p.cfg.ID})
}

// OnNotice handles a notice of a peer. The peer asks who drives a batch, says that it drives one,
// has given one up, or has stored a control or a decision for a session.
func (p *Peers) OnNotice(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil || n.Worker == p.cfg.ID {
		return
	}
	switch {
	case n.Driven:
		if p.runs.Has(n.Batch) {
			p.PublishRunning(n.Batch)
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
		p.runs.Nudge(n.Batch + ".")
	}
}

// setElsewhere notes that a peer drives a batch. At intervals it deletes notes that are too old.
func (p *Peers) setElsewhere(batch string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.elsewhere[batch] = now
	if now.Sub(p.pruned) < p.cfg.AckWait {
		return
	}
	p.pruned = now
	for key, at := range p.elsewhere {
		if now.Sub(at) > p.cfg.AckWait {
			delete(p.elsewhere, key)
		}
	}
}

// Drive reports whether a peer said within the last Config.AckWait that it drives the batch.
func (p *Peers) Drive(key wire.BatchKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.elsewhere[key.String()]
	return ok && time.Since(at) <= p.cfg.AckWait
}
