// Package judge watches a simulated fleet from outside: what really ran, and the rules that it must
// keep. Nothing in the fleet reads it. It stops a history at the first broken rule.
package judge

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Settings of every fleet: the defaults of the daemons, or less, so that the bounds are reached.
const (
	AckWait    = 10 * time.Second
	Lease      = 10 * time.Second
	Grace      = 2 * time.Second
	BatchTTL   = time.Hour
	SweepEvery = 5 * time.Minute // if the server does not restart
	Poison     = 3
	Lapses     = 2 // of claims
	Attempts   = 3
)

// Fleet is the fleet as the judge uses it.
type Fleet interface {
	// Asked lets people decide about a question.
	Asked(key wire.CallKey, q messages.Approval)
	// Workers returns all workers of the run, also those that have ended.
	Workers() []Worker
	// Drives returns the drivers of a batch that is alone in its line.
	Drives(key wire.BatchKey) []Drive
}

// Submission is a batch that an agent publishes. It is already decoded and planned, since neither
// is tested here.
type Submission struct {
	Key   wire.BatchKey
	Plan  plan.Plan // with the first version of every tool: all versions are of the same kind
	Calls []messages.ToolCall
	// Refused: the batch cannot be decoded.
	Refused bool
}

// Attempt is a worker's knowledge of a job that it runs.
type Attempt struct {
	*world.Process
	Key    wire.CallKey
	Job    wire.Job
	Queued time.Time // when its job was stored
	Grant  call.Grant
	Input  []byte
	Lost   int // deliveries of the job that were lost with their worker
	Claims bool
	Served bool // the worker has its tool in that version
	Run    *Run
	// ArgsHash is the hash of Input. Policy is the worker's.
	ArgsHash, Policy string
}

// Worker describes a worker.
type Worker struct {
	*world.Process
	File   staff.File
	Queue  string    // the token of the queue of its jobs
	Since  time.Time // when it was first announced; zero: it was not
	Ended  time.Time // when its process ended; zero: it has not
	Leaves bool      // it is about to drain
	Drains bool      // it takes no more jobs
	Free   bool      // it has no job in hand
}

// Drive describes the driver of a batch.
type Drive struct {
	*world.Process
	Sub  *Submission
	Born time.Time
	// First: this driver has the first delivery, so it does not read an earlier driver's records.
	// Another may have come and gone while its process slept.
	First bool
}

// HashOf returns the hash of a call's arguments.
func HashOf(input json.RawMessage) string {
	canonical, err := rawjson.Canonical(input)
	if err != nil {
		panic(err)
	}
	return messages.Digest(canonical)
}
