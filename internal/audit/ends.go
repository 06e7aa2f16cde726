package audit

import "sync"

// ends remembers the newest message of sessions' subjects that this process wrote, so that the next
// batch of a session need not read it. It is only a guess: a compare-and-set after that message
// shows whether it is still the newest. Safe for concurrent use.
type ends struct {
	losses func() uint64 // grows when the connection was lost

	mu     sync.Mutex
	newest map[string]end // by subject; guarded by mu
}

// end is the newest message of a subject.
type end struct {
	seq    uint64
	at     position // of its batch
	losses uint64   // when it was written
}

// maxEnds bounds the subjects that are remembered.
const maxEnds = 4096

// guess returns where the lines of a batch go, if the newest known message of the subject is of an
// earlier batch: none of its lines is stored then. After a lost connection nothing is known,
// because a server that was restarted may use a sequence again.
func (e *ends) guess(subject string, at position) (found storedLines, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	newest, known := e.newest[subject]
	if !known || newest.losses != e.losses() || !at.isAfter(newest.at) {
		return storedLines{}, false
	}
	return storedLines{subject: subject, newest: newest.seq}, true
}

// note remembers that a message of a batch is the newest of a subject.
func (e *ends) note(subject string, seq uint64, at position, losses uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.newest == nil || len(e.newest) >= maxEnds {
		e.newest = map[string]end{}
	}
	e.newest[subject] = end{seq, at, losses}
}
