package coordinator

import (
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// runs holds the runs of this coordinator: one for each session and one for each batch that
// it drives.
type runs struct {
	size   prometheus.Gauge
	log    *slog.Logger
	rested rested

	mu       sync.Mutex
	byKey    map[string]*batchRun   // by batch key; guarded by mu
	sessions map[string]*sessionRun // by tenant and session; guarded by mu
}

func newRuns(size prometheus.Gauge, log *slog.Logger) *runs {
	return &runs{size: size, log: log, byKey: map[string]*batchRun{}, sessions: map[string]*sessionRun{}}
}

// sessionName names a session in the form that notices between coordinators use.
func sessionName(key wire.BatchKey) string { return key.Tenant + "." + key.Session }

// enter adds the run of a session. If the session already has a run, enter returns that run
// and makes all its batches read the journal. Without the read, that run might suspend its
// batches and miss what is new.
func (r *runs) enter(s *sessionRun) (other *sessionRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := sessionName(s.key)
	if other := r.sessions[name]; other != nil {
		other.readSoon()
		r.nudge(name + ".")
		return other
	}
	r.sessions[name] = s
	r.rested.forget(name)
	return nil
}

// add adds the run of a batch.
func (r *runs) add(d *batchRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byKey[d.accepted.Key.String()] = d
	r.size.Set(float64(len(r.byKey)))
}

// leave removes the run of a batch.
func (r *runs) leave(d *batchRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(d)
}

// leaveSession removes the run of a session that no longer drives any batch.
func (r *runs) leaveSession(s *sessionRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name := sessionName(s.key); r.sessions[name] == s {
		delete(r.sessions, name)
	}
}

// leaveIfQuiet removes the runs of a session and of its batches, unless there is news for one
// of the batches: an unread notice, a request to read the journal, or a changed turn. After
// the removal, a new driver of the session starts a new run.
func (r *runs) leaveIfQuiet(s *sessionRun, batches []*batchRun) (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range batches {
		if len(d.nudge)+len(d.notices)+len(d.turned) > 0 {
			return false
		}
	}
	for _, d := range batches {
		r.remove(d)
	}
	delete(r.sessions, sessionName(s.key))
	return true
}

// remove removes this run of a batch. If the batch already has a newer run, remove keeps the
// newer one. The caller holds mu.
func (r *runs) remove(d *batchRun) {
	if key := d.accepted.Key.String(); r.byKey[key] == d {
		delete(r.byKey, key)
	}
	r.size.Set(float64(len(r.byKey)))
}

// ofSession returns the run of a session, or nil.
func (r *runs) ofSession(name string) *sessionRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[name]
}

// Asked answers a peer that asks whether this coordinator drives a batch or session. If this
// coordinator drives the session, its run also reads the log, because the peer has got a later
// batch of the session.
func (r *runs) Asked(name string) (driven bool) {
	if s := r.ofSession(name); s != nil {
		s.askedByPeer()
		return true
	}
	return r.named(name) != nil
}

// of returns the run of a batch, or nil.
func (r *runs) of(key wire.BatchKey) *batchRun { return r.named(key.String()) }

func (r *runs) named(batch string) *batchRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byKey[batch]
}

// Nudge asks the run of every batch whose key begins with prefix to read the journal.
func (r *runs) Nudge(prefix string) {
	r.rested.forget(strings.TrimSuffix(prefix, "."))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nudge(prefix)
}

// nudge is Nudge for a caller that holds mu.
func (r *runs) nudge(prefix string) {
	for key, d := range r.byKey {
		if strings.HasPrefix(key, prefix) {
			d.lookSoon()
		}
	}
}

// onNotice hands a worker's notice to the run of its batch. It drops the notice if there is no
// run or its channel is full. In both cases the next poll finds in the journal what happened.
func (r *runs) onNotice(m bus.Msg) {
	var n wire.Notice
	if err := rawjson.Unmarshal(m.Data, &n); err != nil {
		r.log.Warn("a worker's notice cannot be read and is dropped; the next poll finds what it was about", "err", err)
		return
	}
	if d := r.named(n.Batch); d != nil {
		select {
		case d.notices <- n:
		default:
		}
	}
}
