package audit

import "sync"

// ends remembers the newest message that this process wrote on each session's subject, so that
// the next batch of the session need not read it. The memory may be out of date: the
// compare-and-set after that message shows whether it is still the newest. Safe for concurrent
// use.
type ends struct {
	losses func() uint64 // its result grows when the connection was lost

	mu     sync.Mutex
	newest map[string]end // by subject; guarded by mu
}

// end is the newest known message of a subject.
type end struct {
	seq    uint64
	at     position // the position of the message's batch
	losses uint64   // the number of losses when the message was written
}

// maxEnds limits how many subjects are remembered.
const maxEnds = 4096

// guess returns where the lines of a batch go, if the newest known message of the subject is
// about an earlier batch. Then no line of the batch is stored. known is false if nothing is
// known or the connection was lost since: a server that has restarted may give out a sequence
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

// note remembers a batch's message as the newest of a subject.
func (e *ends) note(subject string, seq uint64, at position, losses uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.newest == nil || len(e.newest) >= maxEnds {
		e.newest = map[string]end{}
	}
	e.newest[subject] = end{seq, at, losses}
}
