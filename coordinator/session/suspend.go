package session

import "time"

// A batch that only waits for people is suspended: its driver ends, and no process keeps state
// of it. The broker gets the batch's delivery back. It delivers the batch again when the first
// question expires, or after MaxSuspend if that is earlier. A coordinator that stores a
// decision, an abort or a steering message for the session resumes the session, which means
// that it drives the head of the session again. If that coordinator dies first, the broker
// delivers the batch again.

// Quiet is what a driver knows about its batch when the driver has nothing to do.
type Quiet struct {
	Waits bool      // the batch waits only for people
	Until time.Time // when the first question expires; only with Waits
	Now   time.Time
	// Sure says that records and controls were read from the stream's leader, after the newest
	// known record was stored. If a coordinator stores a decision, an abort or a steering
	// message after that read, it finds a call that waits for a person, and resumes the batch.
	Sure bool
}

// SuspendAction is what a driver does before it waits.
type SuspendAction uint8

// The actions.
const (
	// Continue: wait for the next event.
	Continue SuspendAction = iota
	// Ask: ask the leader for records and controls, then decide again.
	Ask
	// Suspend: end the driver, unless there is an unread notice or a request to read the
	// journal.
	Suspend
)

func (a SuspendAction) String() string { return [...]string{"continue", "ask", "suspend"}[a] }

// DecideSuspend returns what to do about a batch before its driver waits.
func DecideSuspend(q Quiet) SuspendAction {
	switch {
	case !q.Waits:
		return Continue
	case !q.Sure:
		return Ask
	case !q.Now.Before(q.Until):
		return Continue
	}
	return Suspend
}

// PutOff returns the delay after which the broker should deliver a suspended batch again.
func PutOff(now, until time.Time) time.Duration {
	return min(max(until.Sub(now), 100*time.Millisecond), MaxSuspend)
}

// Suspended is what a coordinator knows about a session that it wants to resume.
type Suspended struct {
	Head      uint64 // sequence of the oldest batch in the log; 0: the session has none
	First     uint64 // the head when the coordinator began to resume the session; 0: not known
	Due       bool   // the head must be driven: a decision was stored, or a call waits for people
	Elsewhere bool   // another coordinator said lately that it drives the head
}

// ResumeAction is what a coordinator does about a session that may be suspended.
type ResumeAction uint8

// The actions.
const (
	// Resume: drive the head.
	Resume ResumeAction = iota
	// Leave: there is nothing to resume.
	Leave
	// Return: another coordinator drives the head and may be about to suspend it. Return to
	// the session after a pause.
	Return
)

func (a ResumeAction) String() string { return [...]string{"resume", "leave", "return"}[a] }

// DecideResume returns what to do about a session that may be suspended.
func DecideResume(s Suspended) ResumeAction {
	switch {
	case s.Head == 0, s.First != 0 && s.Head != s.First, !s.Due:
		return Leave
	case s.Elsewhere:
		return Return
	}
	return Resume
}
