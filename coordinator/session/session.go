// Package session decides which batch of a session a coordinator may drive.
//
// The oldest batch of a session in the log is its head. Only the head is driven, so coordinators
// need no agreement about it. A decision may use an old observation: a batch leaves the log only
// after its reply is stored, so a head that was seen was a head. At worst a coordinator drives a
// batch that has ended since, and finds its reply.
//
// The package is pure. The coordinator and the simulation both call it.
package session

import "time"

// MaxSuspend is how long a suspended batch is left alone at most.
const MaxSuspend = 5 * time.Minute

// Observation is what a coordinator knows of a batch that was delivered to it. It is read piece by
// piece, and each piece may be old.
type Observation struct {
	Seq        uint64 // its sequence in the log
	Head       uint64 // sequence of the oldest batch of its session; 0: the session has none
	Replied    bool   // the reply of the batch is stored
	Driven     bool   // this coordinator drives the batch
	Elsewhere  bool   // another coordinator said lately that it drives the batch
	Deliveries int    // how many times the batch was delivered so far, this delivery included
}

// Action is what a coordinator does about a delivered batch.
type Action uint8

// The actions.
const (
	// Drive: the batch is the head. Drive it, and then each next head.
	Drive Action = iota
	// Join: this coordinator already drives the batch. Its driver renews this delivery from now on.
	Join
	// Answer: the batch has its reply. Publish the reply again and remove the batch from the log.
	Answer
	// Wait: an earlier batch comes first, and its driver drives this one next; or another
	// coordinator drives this one already.
	Wait
	// Clear: the batch has waited behind an earlier one for a while. Remove the head if it has its
	// reply.
	Clear
	// Vanished: the batch has just left the log.
	Vanished
	// Rescue: drive the head, and let the batch wait.
	Rescue
)

func (a Action) String() string {
	return [...]string{"drive", "join", "answer", "wait", "clear", "vanished", "rescue"}[a]
}

// Decide returns what to do about a delivered batch.
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

// Cleared is what a coordinator knows of a batch that has waited for a while, once the heads before
// it that have their reply are removed.
type Cleared struct {
	Seq        uint64 // of the batch in the log
	Head       uint64 // of the oldest batch of its session; 0: the session has none
	Elsewhere  bool   // another coordinator said lately that it drives that head
	Deliveries int    // of the batch so far, this one included
}

// DecideCleared is what to do about such a batch: Drive, Rescue, Wait or Vanished.
func DecideCleared(c Cleared) Action {
	switch {
	case c.Head == 0:
		return Vanished
	case c.Elsewhere:
		return Wait
	case c.Head == c.Seq:
		return Drive
	case rescuesHead(c.Deliveries):
		return Rescue
	}
	return Wait
}

// rescuesHead reports whether a batch that was delivered so often has the head of its session
// driven, which has no reply. The head may have no driver, and the broker may never deliver it
// again: after a restart of the server a consumer can count a message as settled that the stream
// still holds. It happens seldom and ever more seldom, so a head that waits for a person for long
// costs little.
func rescuesHead(deliveries int) bool {
	return deliveries >= 8 && deliveries&(deliveries-1) == 0
}

// RemovesHead reports whether a head that has its reply is removed by who looks for the next head.
// With settled, a driver that has just stored the reply is left time to remove the head itself.
// Driven: this coordinator drives it. Age is that of the reply.
func RemovesHead(settled time.Duration, driven bool, age time.Duration) bool {
	return settled == 0 || !driven && age >= settled
}

// Unattended reports whether a head of this age may have no driver, if none of its calls waits for
// people: its driver would have been heard of, and its delivery made again.
func Unattended(age, ackWait time.Duration) bool { return age >= MaxSuspend+2*ackWait }
