// Package peers sends and receives the notices between coordinators: which batches they
// drive, which they have given up, and which sessions have a new control or decision.
//
// The notices only save work. If a notice is lost, a coordinator polls once more, or two
// coordinators drive one batch, which does no harm. The coordinator itself decides what to do
// about a batch.
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
	// Asked reports whether this coordinator drives a batch or a session. If it drives the
	// session, it also reads the log for later batches.
	Asked(name string) (driven bool)
}

// Config is what Peers needs to know about its coordinator.
type Config struct {
	ID      string        // of this coordinator
	AckWait time.Duration // how long after its notice a peer counts as the driver of a batch
	Logger  *slog.Logger  // nil: no log
}

// Peers is what one coordinator knows about the other coordinators. Safe for concurrent use.
type Peers struct {
	conn *bus.Conn
	runs Runs
	cfg  Config
	// abandoned receives the keys of batches that a peer has given up without handing them
	// back to the broker. If the channel is full, a key is dropped. Then the broker delivers
	// that batch some minutes later.
	abandoned chan string

	mu        sync.Mutex
	elsewhere recent // when a peer last said that it drives a batch or a session; guarded by mu
	asked     recent // when a peer last asked who drives a session; guarded by mu
}

// recent holds when a batch or a session was last mentioned, by its name.
type recent struct {
	at     map[string]time.Time
	pruned time.Time // when old entries were last deleted
}

// note adds an entry with the present time. Entries are kept for the duration keep: note
// deletes older entries, at most once per keep.
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

// has reports whether there is an entry that is younger than the duration keep.
func (r *recent) has(name string, keep time.Duration) bool {
	at, ok := r.at[name]
	return ok && time.Since(at) < keep
}

// New returns the peers of a coordinator. The caller has to subscribe OnNotice to the
// coordinators' subject.
func New(conn *bus.Conn, r Runs, cfg Config) *Peers {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Peers{
		conn: conn, runs: r, cfg: cfg, abandoned: make(chan string, 256),
		elsewhere: recent{at: map[string]time.Time{}}, asked: recent{at: map[string]time.Time{}},
	}
}

// Abandoned returns the channel with the keys of batches that a peer has given up and that
// the broker may not deliver for minutes.
func (p *Peers) Abandoned() <-chan string { return p.abandoned }

// Publish sends a notice to all peers.
func (p *Peers) Publish(n wire.Notice) {
	n.V = messages.Version
	if err := p.conn.Publish(p.conn.Names().Coordinators(), nil, rawjson.MustMarshal(n)); err != nil {
		p.cfg.Logger.Debug("a notice to the other coordinators was not sent; their next poll finds what it was about", "err", err)
	}
}

// PublishRunning tells the peers that this coordinator drives a batch or a session.
func (p *Peers) PublishRunning(batch string) {
	p.Publish(wire.Notice{Batch: batch, Running: true, Worker: p.cfg.ID})
}

// OnNotice handles a notice of a peer. The peer asks who drives a batch, or says that it
// drives a batch, has given one up, or has stored an abort, a steering message or a decision.
func (p *Peers) OnNotice(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil || n.Worker == p.cfg.ID {
		return
	}
	switch {
	case n.AsksDriver:
		p.mu.Lock()
		p.asked.note(n.Batch, p.cfg.AckWait) // before the call of Asked: a run may begin meanwhile
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

// sessionOf returns the tenant and the session from a batch key.
func sessionOf(batch string) string { return batch[:max(strings.LastIndexByte(batch, '.'), 0)] }

// AskSession asks the peers which of them drives the session of a batch. The peer that drives
// it also reads the log for later batches of the session.
func (p *Peers) AskSession(key wire.BatchKey) {
	p.Publish(wire.Notice{Batch: sessionOf(key.String()), AsksDriver: true, Worker: p.cfg.ID})
}

// Asked reports whether a peer has asked within the last Config.AckWait who drives a session.
// session is its tenant and name in the form of a batch key.
func (p *Peers) Asked(session string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked.has(session, p.cfg.AckWait)
}

// PublishEnd tells the peers that this coordinator no longer drives a session.
func (p *Peers) PublishEnd(session string) {
	p.Publish(wire.Notice{Batch: session, LetGo: &wire.LetGo{AfterMS: 1}, Worker: p.cfg.ID})
}

// Drive reports whether a peer said within the last Config.AckWait that it drives the batch or
// its session.
func (p *Peers) Drive(key wire.BatchKey) bool {
	return p.DriveBatch(key) || p.said(sessionOf(key.String()))
}

// DriveBatch is like Drive, but looks only at the batch: a session may be driven while one of
// its batches is not.
func (p *Peers) DriveBatch(key wire.BatchKey) bool { return p.said(key.String()) }

func (p *Peers) said(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.elsewhere.has(name, p.cfg.AckWait)
}
