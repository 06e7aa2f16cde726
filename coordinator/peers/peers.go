// Package peers sends and receives the notices among coordinators: which batches they drive, which
// they have given up, and which sessions have a new control or decision.
//
// The notices only save work. A lost notice costs a poll, or a batch is driven twice, which does no
// harm. The coordinator decides what to do about a batch.
package peers

import (
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Runs holds the batches that this coordinator drives, by batch key.
type Runs interface {
	// Nudge asks the drivers of all batches whose key begins with prefix to read the journal.
	Nudge(prefix string)
	// Asked reports whether a batch or a session is driven here. The driver of a session then reads
	// the log for later batches.
	Asked(name string) (driven bool)
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
	elsewhere recent // when a peer last said that it drives a batch or a session; guarded by mu
	asked     recent // when a peer last asked who drives a session; guarded by mu
}

// recent holds, by name, when a batch or a session was last heard of.
type recent struct {
	at     map[string]time.Time
	pruned time.Time // when old entries were last deleted
}

// note adds an entry for now. Every keep, it deletes the entries that are older than keep.
func (r *recent) note(name string, keep time.Duration) {
	now := time.Now()
	r.at[name] = now
	if now.Sub(r.pruned) < keep {
		return
	}
	r.pruned = now
	for name, at := range r.at {
		if now.Sub(at) > keep {
			delete(r.at, name)
		}
	}
}

// has reports whether an entry is younger than keep.
func (r *recent) has(name string, keep time.Duration) bool {
	at, ok := r.at[name]
	return ok && time.Since(at) < keep
}

// New returns the peers of a coordinator. The caller subscribes OnNotice to the coordinators'
// subject.
func New(conn *bus.Conn, r Runs, cfg Config) *Peers {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Peers{
		conn: conn, runs: r, cfg: cfg, abandoned: make(chan string, 256),
		elsewhere: recent{at: map[string]time.Time{}}, asked: recent{at: map[string]time.Time{}},
	}
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

// OnNotice handles a notice of a peer: a question who drives a batch, or news that the peer drives
// one, has given one up, or has stored a control or a decision.
func (p *Peers) OnNotice(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil || n.Worker == p.cfg.ID {
		return
	}
	switch {
	case n.AsksDriver:
		p.mu.Lock()
		p.asked.note(n.Batch, p.cfg.AckWait) // before the check, because a run may begin meanwhile
		p.mu.Unlock()
		if p.runs.Asked(n.Batch) {
			p.PublishRunning(n.Batch)
		}
	case n.Running:
		p.mu.Lock()
		p.elsewhere.note(n.Batch, p.cfg.AckWait)
		p.mu.Unlock()
	case n.LetGo != nil:
		p.mu.Lock()
		delete(p.elsewhere.at, n.Batch)
		delete(p.elsewhere.at, sessionOf(n.Batch))
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

// sessionOf returns the tenant and the session in a batch key.
func sessionOf(batch string) string { return batch[:max(strings.LastIndexByte(batch, '.'), 0)] }

// AskSession asks which peer drives the session of a batch. That peer then also reads the log for
// later batches of the session.
func (p *Peers) AskSession(key wire.BatchKey) {
	p.Publish(wire.Notice{Batch: sessionOf(key.String()), AsksDriver: true, Worker: p.cfg.ID})
}

// Asked reports whether a peer asked within the last Config.AckWait who drives a session. The
// session is given by its tenant and its name, as in a batch key.
func (p *Peers) Asked(session string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked.has(session, p.cfg.AckWait)
}

// PublishEnd tells the peers that this coordinator drives a session no longer.
func (p *Peers) PublishEnd(session string) {
	p.Publish(wire.Notice{Batch: session, LetGo: &wire.LetGo{AfterMS: 1}, Worker: p.cfg.ID})
}

// Drive reports whether a peer said within the last Config.AckWait that it drives the batch or its
// session.
func (p *Peers) Drive(key wire.BatchKey) bool {
	return p.DriveBatch(key) || p.said(sessionOf(key.String()))
}

// DriveBatch is Drive for the batch alone. Its session may be driven before the batch is.
func (p *Peers) DriveBatch(key wire.BatchKey) bool { return p.said(key.String()) }

func (p *Peers) said(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.elsewhere.has(name, p.cfg.AckWait)
}
