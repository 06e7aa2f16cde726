// Package call holds the types that worker/lane and worker/pipeline exchange about one call.
// The lane handles the job of the call and its claim. The pipeline runs the call.
//
//	pipeline                                    lane, worker/attempt
//	  Frozen: the call may start now      ->
//	                                      <-    Grant, or an error
//	  a result, *HandBack, *Ask, an error ->
package call

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Frozen is a call whose input does not change any more. All decisions about the call are
// about exactly these bytes.
type Frozen struct {
	Input    json.RawMessage
	ArgsHash string          // hex SHA-256 of the canonical input
	Hooks    *messages.Hooks // what the pre-hooks did; nil: there are none
	// Permission is what the permission rules decided about the call.
	Permission *messages.Permission
	// OnCrash says what may be done with the call if its worker is lost.
	OnCrash messages.OnCrash
	// Deadline limits the run together with the hooks that follow it. If a worker holds the
	// claim for longer, the coordinator takes that worker for broken and gives the claim up.
	Deadline time.Duration
}

// Grant is the lane's permission to start the tool.
type Grant struct {
	// Attempt is the number of this claim, from 1. For a call that runs without a claim, it is
	// the number of this run: failed attempts and earlier deliveries count.
	Attempt int
	Fence   uint64 // the sequence of the claim; 0: the call runs without a claim
	// Probe says that an earlier attempt was lost. The pipeline must ask the tool whether that
	// attempt was applied before it runs the tool again.
	Probe bool
}

// Claim asks the lane for the grant. The pipeline calls it just before it starts the tool, at
// most once per run. If the call needs a claim, the claim is durable when Claim returns. An
// error ends the run without a result.
type Claim func(ctx context.Context, f Frozen) (Grant, error)

// HandBack is the error of a run whose call must run alone, although it was planned to run
// beside others. Only the frozen input shows that. The call did not run.
type HandBack struct{ ArgsHash, Reason string }

func (h *HandBack) Error() string {
	return "planned to run beside others, but its input must run alone (" + h.Reason + ")"
}

// Ask is the error of a run whose call needs a person's approval. The call did not run.
type Ask struct {
	// Approval is the question, without the times when it is asked and expires.
	Approval messages.Approval
	Hooks    *messages.Hooks // what the pre-hooks did; they do not run again
	ArgsHash string
}

func (a *Ask) Error() string { return "a person has to allow it (" + a.Approval.Rule + ")" }
