// Package session is the rule of a session's order: which batch of it a coordinator may drive.
//
// The log says which batch is the oldest of its session, its head. Only the head is driven, so
// nobody has to agree with anybody. An observation stays true: a batch leaves the log only after
// its reply is stored. So an observation may be old when it is judged. At worst a batch is driven
// that has ended meanwhile, and its driver finds the reply.
//
// The package is pure. The coordinator and the simulation both call it.
package session

import "time"

// MaxSuspend is when a suspended batch is looked at again, at the latest.
const MaxSuspend = 5 * time.Minute

// Observation is what a coordinator knows of a batch that was delivered to it. It is read piece by
// piece, and each piece may be old.
type Observation struct {
	Seq        uint64 // of the batch in the log
	Head       uint64 // of the oldest batch of its session; 0: the session has none
	Replied    bool   // the reply of the batch is stored
	Driven     bool   // this coordinator drives the batch
	Elsewhere  bool   // another coordinator said lately that it drives the batch
	Deliveries int    // of the batch so far, this one included
}

// Action is what a coordinator does about a delivery.
type Action uint8

// The actions.
const (
	// Drive: the batch is the head. Drive it, and then the heads behind it.
	Drive Action = iota
	// Join: this coordinator drives the batch. The delivery becomes the sign of life of that
	// driver.
	Join
	// Answer: the batch has its reply. Publish that again and remove the batch from the log.
	Answer
	// Wait: an earlier batch comes first, and its driver drives this one afterwards; or another
	// coordinator drives this one already.
	Wait
	// Clear: the batch has waited for an earlier one for a while. A head that has its reply is
	// removed.
	Clear
	// Vanished: the batch has just left the log.
	Vanished
)

func (a Action) String() string {
	return [...]string{"drive", "join", "answer", "wait", "clear", "vanished"}[a]
}

// Decide is what to do about a delivery.
func Decide(o Observation) Action {
	switch {
	case o.Driven:
		return Join
	case o.Replied:
		return Answer
	case o.Head == 0:
		return Vanished
	case o.Head != o.Seq && o.Deliveries > 1:
		return Clear
	case o.Head != o.Seq, o.Elsewhere:
		return Wait
	}
	return Drive
}

// RescuesHead reports whether a batch that was delivered so often has the head of its session
// driven, which has no reply. The head may have no driver, and the broker may never deliver it
// again: after a restart of the server a consumer can count a message as settled that the stream
// still holds. It happens seldom and ever more seldom, so a head that waits for a person for long
// costs little.
func RescuesHead(deliveries int) bool {
	return deliveries >= 8 && deliveries&(deliveries-1) == 0
}
