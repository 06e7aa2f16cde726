package lane

import "github.com/toolfleet/toolfleet/worker/attempt"

// Count is something that happens to calls and is counted.
type Count int

// The counted events.
const (
	Taken       Count = iota // a job is taken in hand
	Left                     // a job is out of hand again
	Redelivered              // the job of a delivery was delivered before
	Claimed                  // a claim is stored
	// Another worker has the call, or it has ended; at most once per attempt.
	ClaimRefused
	LeaseLost  // a claim could not be renewed in time
	Progressed // a tool reported progress
)

var counts = map[attempt.Counted]Count{
	attempt.Claimed: Claimed, attempt.ClaimRefused: ClaimRefused, attempt.LeaseMissed: LeaseLost, attempt.Progressed: Progressed,
}
