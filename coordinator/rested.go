package coordinator

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
)

// rested remembers which sessions this coordinator has suspended lately. When a batch of such
// a session is delivered, intake hands it back without reading the log or the journal.
// Thousands of batches may wait behind one question to a person. Safe for concurrent use.
type rested struct {
	mu       sync.Mutex
	sessions map[string]restedSession // by tenant and session; guarded by mu
	pruned   time.Time                // guarded by mu
}

// restedSession describes a session as it was when it was suspended.
type restedSession struct {
	head, last uint64 // sequences of the oldest batch, and of the last batch that the run read
	at         time.Time
}

// noMore takes the place of restedSession.last if the session has more batches than one
// coordinator drives at once. No later batch of the session would be driven then either.
const noMore = math.MaxUint64

// note remembers a session that is being suspended. head is the sequence of its oldest batch,
// last the sequence of the last batch that the run read.
func (r *rested) note(name string, head, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.sessions == nil {
		r.sessions = map[string]restedSession{}
	}
	if now.Sub(r.pruned) > session.MaxSuspend {
		r.pruned = now
		maps.DeleteFunc(r.sessions, func(_ string, s restedSession) bool { return now.Sub(s.at) > session.MaxSuspend })
	}
	r.sessions[name] = restedSession{head, last, now}
}

// forget removes a session about which there is news.
func (r *rested) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, name)
}

// covers reports whether a delivered batch may go back without a look. The session must still
// have the same oldest batch. In addition, the run must have read this batch before it was
// suspended, or have had no room for it.
func (r *rested) covers(name string, head, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, found := r.sessions[name]
	return found && s.head == head && seq <= s.last && time.Since(s.at) < session.MaxSuspend
}
