package coordinator

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
)

// rested remembers which sessions this coordinator has suspended lately. It need not look at their
// batches when they are delivered: thousands of batches may wait behind one question to a person.
// Safe for concurrent use.
type rested struct {
	mu       sync.Mutex
	sessions map[string]restedSession // by tenant and session; guarded by mu
	pruned   time.Time                // guarded by mu
}

// restedSession is the state of a session when it was suspended.
type restedSession struct {
	head, last uint64 // the sequences of its first batch, and of the last batch that was considered
	at         time.Time
}

// noMore stands for the last batch of a session that has more batches than one coordinator drives
// at once. No later batch would be driven either.
const noMore = math.MaxUint64

// note remembers a session that is suspended now, with the sequences of its oldest batch and of the
// last batch that was looked at.
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

// forget removes a session in which something has happened.
func (r *rested) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, name)
}

// covers reports whether a batch may be left alone: the session still has the same oldest batch,
// and this batch was looked at when the session was suspended, or there would be no room to drive
// it.
func (r *rested) covers(name string, head, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, found := r.sessions[name]
	return found && s.head == head && seq <= s.last && time.Since(s.at) < session.MaxSuspend
}
