package coordinator

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
)

// rested holds the sessions that this coordinator suspended lately. A delivery of a batch in such a
// session is no reason to drive it: thousands of batches may wait behind a question. Safe for
// concurrent use.
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

// noMore is the last batch of a session whose line was full.
const noMore = math.MaxUint64

// note adds a session that is suspended now.
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

// forget drops a session that has news.
func (r *rested) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, name)
}

// covers reports whether a batch was considered when its session was suspended, or had no place in
// the line, and the session still has the same head.
func (r *rested) covers(name string, head, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, found := r.sessions[name]
	return found && s.head == head && seq <= s.last && time.Since(s.at) < session.MaxSuspend
}
