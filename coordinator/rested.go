package coordinator

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
)

// rested remembers which sessions this coordinator has suspended lately. Their batches need
// no look when they are delivered: thousands of them may wait behind one question to a
// person. Safe for concurrent use.
type rested struct {
	mu       sync.Mutex
	sessions map[string]restedSession // by tenant and session; guarded by mu
	pruned   time.Time                // guarded by mu
}

// restedSession describes a session at the time when it was suspended.
type restedSession struct {
	head, last uint64 // the sequences of the oldest batch, and of the last batch that the run looked at
	at         time.Time
}

// noMore takes the place of restedSession.last if the session has more batches than one
// coordinator drives at once. Then no later batch would be driven either.
const noMore = math.MaxUint64

// note remembers a session that is being suspended. head is the sequence of its oldest
// batch, last that of the last batch that the run looked at.
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

// forget drops a session about which there is news.
func (r *rested) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, name)
}

// covers reports whether a delivered batch needs no look. The session must still have the
// same oldest batch. In addition the run must have looked at this batch before it was
// suspended, or have had no room for it.
func (r *rested) covers(name string, head, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, found := r.sessions[name]
	return found && s.head == head && seq <= s.last && time.Since(s.at) < session.MaxSuspend
}
