// Package judge is the outside view of a fleet of the simulation: what really ran, and the rules
// that it must keep. Nobody in the fleet looks at it. It stops a history at the first broken rule.
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

// The tunables of every fleet: the defaults of the daemons, or less, so that it happens.
const (
	AckWait    = 10 * time.Second
	Lease      = 10 * time.Second
	Grace      = 2 * time.Second
	BatchTTL   = time.Hour
	SweepEvery = 5 * time.Minute // without a restart of the server
	Poison     = 3
	Lapses     = 2 // of claims
	Attempts   = 3
)

// Fleet is what the judge asks of the fleet.
type Fleet interface {
	// Asked has people think about a question.
	Asked(key wire.CallKey, q messages.Approval)
	// Workers are all that ever were.
	Workers() []Worker
	// Drives are the drives of a batch that is alone in its line.
	Drives(key wire.BatchKey) []Drive
}

// Submission is what an agent publishes: a Batch that is decoded and planned already, because
// neither is tried here.
type Submission struct {
	Key   wire.BatchKey
	Plan  plan.Plan // with the first version of every tool: all versions are of the same kind
	Calls []messages.ToolCall
	// Refused: the batch cannot be decoded.
	Refused bool
}

// Attempt is what a worker knows of a job that it runs.
type Attempt struct {
	*world.Process
	Key    wire.CallKey
	Job    wire.Job
	Grant  call.Grant
	Input  []byte
	Lost   int // deliveries of the job that were lost with their worker
	Claims bool
	Served bool // the worker has its tool in that version
	Run    *Run
	// ArgsHash is that of Input, Policy that of the worker.
	ArgsHash, Policy string
}

// Worker is a worker as others see it.
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

// Drive is a batch that is driven.
type Drive struct {
	*world.Process
	Sub  *Submission
	Born time.Time
	// First: it has the first delivery, so it reads nothing of an earlier driver. While its process
	// slept, another may have come and gone.
	First bool
}

// HashOf is the hash of the arguments of a call.
func HashOf(input json.RawMessage) string {
	canonical, err := rawjson.Canonical(input)
	if err != nil {
		panic(err)
	}
	return messages.Digest(canonical)
}
