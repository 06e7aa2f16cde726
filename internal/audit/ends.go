package audit

import "sync"

// ends remembers the newest message that this process wrote on each session's subject. So
// the next batch of a session need not read it. It is only a guess: the compare-and-set
// after that message shows whether it is still the newest. Safe for concurrent use.
type ends struct {
	losses func() uint64 // grows when the connection was lost

	mu     sync.Mutex
	newest map[string]end // by subject; guarded by mu
}

// end is the newest known message of a subject.
type end struct {
	seq    uint64
	at     position // position of its batch
	losses uint64   // the number of losses when it was written
}

// maxEnds limits how many subjects are remembered.
const maxEnds = 4096

// guess returns where the lines of a batch go if the newest known message of the subject
// belongs to an earlier batch. In that case none of the batch's lines is stored yet. After
// a lost connection known is false, because a restarted server may give out a sequence
// again.
func (e *ends) guess(subject string, at position) (found storedLines, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	newest, known := e.newest[subject]
	if !known || newest.losses != e.losses() || !at.isAfter(newest.at) {
		return storedLines{}, false
	}
	return storedLines{subject: subject, newest: newest.seq}, true
}

// note remembers a message of a batch as the newest of a subject.
func (e *ends) note(subject string, seq uint64, at position, losses uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.newest == nil || len(e.newest) >= maxEnds {
		e.newest = map[string]end{}
	}
	e.newest[subject] = end{seq, at, losses}
}
