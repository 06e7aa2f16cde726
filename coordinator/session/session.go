// Package session decides which coordinator drives the batches of a session, and what each
// batch may start.
//
// The head is the oldest batch of a session in the log. A coordinator drives the head and the
// batches behind it, in the order of the log. Coordinators need not agree which of them drives
// a session. What a batch may start depends on stored facts that stay true ([Turns]), so a
// decision may rest on an old observation. At worst two coordinators drive one session, or a
// coordinator drives a batch that has already ended, and finds its reply.
//
// The package is pure. The coordinator and the simulation both call it.
package session

import "time"

// MaxSuspend is the longest time for which no coordinator reads a suspended batch.
const MaxSuspend = 5 * time.Minute

// Observation is what a coordinator knows about a batch that was delivered to it. The
// fields are read one after the other, and each may be out of date.
type Observation struct {
	Seq       uint64 // its sequence in the log
	Head      uint64 // sequence of the oldest batch of its session; 0: the session has none
	Replied   bool   // the reply of the batch is stored
	Driven    bool   // this coordinator drives the batch
	Here      bool   // this coordinator drives the session
	Elsewhere bool   // another coordinator said lately that it drives the batch
	Peer      bool   // another coordinator said lately that it drives the session
	// Rests says that this coordinator saw lately that all batches of the session, and so also
	// this one, only wait.
	Rests      bool
	Deliveries int // how many times the batch was delivered, including this delivery
}

// Action is what a coordinator does about a delivered batch.
type Action uint8

// The actions.
const (
	// Drive: the batch is the head. Drive the head and the batches behind it.
	Drive Action = iota
	// Join: this coordinator already drives the batch. Let its driver renew this delivery from
	// now on.
	Join
	// Answer: the batch has its reply. Publish the reply again and remove the batch from the
	// log.
	Answer
	// Wait: do nothing. Either the session has a driver, which will come to this batch, or its
	// batches only wait for people.
	Wait
	// AskPeers: an earlier batch comes first. Ask the other coordinators which of them drives
	// it.
	AskPeers
	// TakeOver: an earlier batch comes first, and no coordinator says that it drives the
	// session. Drive the session from its head. Remove the head if it already has its reply:
	// after a restart, the server may count a message as settled that is still in the log.
	TakeOver
	// Vanished: the batch has just left the log.
	Vanished
)

func (a Action) String() string {
	return [...]string{"drive", "join", "answer", "wait", "ask", "take over", "vanished"}[a]
}

// Decide returns what to do about a delivered batch. If the batch is not the head, its first
// delivery only makes this coordinator ask who drives the session. A later delivery makes it
// take the session over, unless a coordinator is known to drive or to have suspended it.
func Decide(o Observation) Action {
	switch {
	case o.Driven:
		return Join
	case o.Replied:
		return Answer
	case o.Head == 0:
		return Vanished
	case o.Here, o.Elsewhere:
		return Wait
	// A peer that drove the session has ended, or will soon say that it drives this batch.
	case o.Head == o.Seq:
		return Drive
	case o.Peer:
		return Wait
	case o.Deliveries <= 1:
		return AskPeers
	case o.Rests:
		return Wait
	}
	return TakeOver
}

// RemovesHead reports whether a coordinator removes a head that has its reply from the log.
// age is the age of the reply. If settled is 0, the coordinator removes the head. Otherwise it
// leaves the head to the head's driver while it drives the head itself (driven), or while the
// reply is younger than settled.
func RemovesHead(settled time.Duration, driven bool, age time.Duration) bool {
	return settled == 0 || !driven && age >= settled
}

// Unattended reports whether a head of this age may have no driver. It applies only to a head
// without a call that waits for people. By this age a driver would have announced itself, or
// the broker would have delivered the batch again.
func Unattended(age, ackWait time.Duration) bool { return age >= MaxSuspend+2*ackWait }
