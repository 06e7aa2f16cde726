package lane

import "github.com/toolfleet/toolfleet/messages"

// Next is what a delivery of a call's job is good for, as far as the call's journal says.
type Next int

// What may be next.
const (
	// Run: nobody has claimed the call. Take it through its phases and claim it as the first.
	Run Next = iota
	// TakeOver: the newest record is the one that the coordinator wants the next claim behind.
	TakeOver
	// Tell: the call has ended. Pass that on and be done.
	Tell
	// Leave: the call is somebody else's, or waits for something. When that changes the coordinator publishes its
	// job again.
	Leave
)

// Decide is the next thing to do about a call that claims or has a record, given the newest record of its journal, at sequence seq
// (0: there is none), and the record that its job says may be claimed behind.
//
// Whether a claim has lapsed is for the coordinator to see, never for a worker: a worker that finds a claim of
// another leaves it alone, however old it is.
func Decide(takeOver uint64, newest messages.CallRecord, seq uint64) Next {
	switch {
	case seq == 0:
		return Run
	case newest.State == messages.Ended:
		return Tell
	case seq == takeOver && newest.State != messages.Parked: // only what a person said goes on from a question
		return TakeOver
	}
	return Leave
}

// lapsed reports whether a record is a claim. Where the coordinator wants it taken over its holder was lost, with or
// without the effect.
func lapsed(before messages.CallRecord) bool {
	return before.State == messages.Claimed || before.State == messages.Renewed
}
