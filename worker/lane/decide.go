package lane

import "github.com/toolfleet/toolfleet/internal/wire"

// Next is what to do with a delivered job, as far as the call's journal says.
type Next int

// The possible next steps.
const (
	// Run: the call has no record. Take it through its phases and claim it as the first.
	Run Next = iota
	// TakeOver: the newest record is the one behind which the coordinator wants the next claim.
	TakeOver
	// Tell: the call has ended. Pass its result on to the coordinator and settle the job.
	Tell
	// Leave: another worker has the call, or it waits for something. The coordinator publishes its
	// job again when that changes.
	Leave
)

// Decide returns what to do about a call that claims or has a record. newest is the newest record
// of its journal, at sequence seq (0: there is none). takeOver is the sequence of the record that
// the job allows to claim behind.
//
// Only the coordinator decides that a claim has lapsed. A worker that finds another worker's claim
// leaves it alone, however old it is.
func Decide(takeOver uint64, newest wire.CallRecord, seq uint64) Next {
	switch {
	case seq == 0:
		return Run
	case newest.State == wire.Ended:
		return Tell
	// Only an answer, never the question itself, is claimed behind.
	case seq == takeOver && newest.State != wire.Parked:
		return TakeOver
	}
	return Leave
}

// lapsed reports whether a record is a claim. When the coordinator wants such a record taken over,
// its holder was lost, with or without the effect.
func lapsed(before wire.CallRecord) bool {
	return before.State == wire.Claimed || before.State == wire.Renewed
}
