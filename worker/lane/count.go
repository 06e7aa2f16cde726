package lane

import "github.com/toolfleet/toolfleet/worker/attempt"

// Count names something that is counted.
type Count int

// The counted events. The zero Count is none of them.
const (
	Taken       Count = iota + 1 // the worker takes a job
	Left                         // the worker is done with a job
	Redelivered                  // a job is delivered again
	Claimed                      // a claim is stored
	// ClaimRefused: another worker has the call, or the call has ended. Counted at most
	// once per attempt.
	ClaimRefused
	LeaseLost  // a claim could not be renewed in time
	Progressed // a tool reported progress
)

var counts = map[attempt.Counted]Count{
	attempt.Claimed: Claimed, attempt.ClaimRefused: ClaimRefused, attempt.LeaseMissed: LeaseLost, attempt.Progressed: Progressed,
}
