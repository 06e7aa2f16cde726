// Package judge watches a simulated fleet from outside. It records what really ran, and checks
// this record against the rules. The fleet never reads the record. At the first broken rule,
// the judge stops the history.
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

// Settings of every fleet. They are the defaults of the daemons, or less where runs would not
// reach the limit otherwise.
const (
	AckWait    = 10 * time.Second
	Lease      = 10 * time.Second
	Grace      = 2 * time.Second
	BatchTTL   = time.Hour
	SweepEvery = 5 * time.Minute // time between sweeps if the server does not restart
	Poison     = 3
	Lapses     = 2 // limit of lapsed claims of a call
	Attempts   = 3
)

// Fleet is what the judge needs to know about the fleet.
type Fleet interface {
	// Asked lets people decide about a question.
	Asked(key wire.CallKey, q messages.Approval)
	// Workers returns all workers of the run, including those that have ended.
	Workers() []Worker
	// Drives returns the drivers that drive this batch and no other batch of its session.
	Drives(key wire.BatchKey) []Drive
}

// Submission is a batch that an agent publishes. It is decoded and planned from the start,
// because the simulation does not test decoding and planning.
type Submission struct {
	Key wire.BatchKey
	// Plan is made with the first version of every tool. The kind of a tool is the same in all
	// versions.
	Plan  plan.Plan
	Calls []messages.ToolCall
	// Refused: the batch cannot be decoded.
	Refused bool
}

// Attempt is what a worker knows about a job that it runs.
type Attempt struct {
	*world.Process
	Key    wire.CallKey
	Job    wire.Job
	Queued time.Time // when its job was stored
	Grant  call.Grant
	Input  []byte
	Lost   int // deliveries of the job that were lost with their workers
	Claims bool
	Served bool // the worker has the tool in the version of the job
	Run    *Run
	// ArgsHash is the hash of Input. Policy is the worker's policy.
	ArgsHash, Policy string
}

// Worker describes a worker.
type Worker struct {
	*world.Process
	File   staff.File
	Queue  string    // the token of the queue of its jobs
	Since  time.Time // when it was first announced; zero: never
	Ended  time.Time // when its process ended; zero: it has not
	Leaves bool      // it is about to drain
	Drains bool      // it takes no more jobs
	Free   bool      // it has no job in hand
}

// Drive is the driver of a batch.
type Drive struct {
	*world.Process
	Sub  *Submission
	Born time.Time
	// First says that this driver has the first delivery of the batch, so it does not read
	// earlier records. Even then another driver may have driven the batch while this process
	// slept.
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
