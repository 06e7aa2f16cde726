// Package call holds the types that the lane and the pipeline exchange about one call: what its
// claim records, what a won claim grants, and the two ways in which a run ends without a result.
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

// Frozen is a call whose input no longer changes. Decisions about the call are about exactly these
// bytes.
type Frozen struct {
	Input    json.RawMessage
	ArgsHash string          // hex SHA-256 of the canonical input
	Hooks    *messages.Hooks // what the pre-hooks did; nil: there are none
	// Permission is the decision about the call.
	Permission *messages.Permission
	// OnCrash says what may be done about the call if its worker is lost.
	OnCrash messages.OnCrash
	// Deadline is how long the run may take, with the hooks after it. A claim that is held for
	// longer is given up, because its worker must be broken.
	Deadline time.Duration
}

// Grant is the permission to start the tool.
type Grant struct {
	// Attempt is the number of this claim, from 1. For a call that does not claim it counts the
	// failed attempts before its job, and the deliveries of the job.
	Attempt int
	Fence   uint64 // the sequence of the claim; 0 for a call that does not claim
	// Probe: an earlier attempt was lost. Ask the tool whether it was applied before running it
	// again.
	Probe bool
}

// Claim asks for the grant, once, right before the tool is started. If the call claims, the claim
// is durable when Claim returns. An error ends the run without a result.
type Claim func(ctx context.Context, f Frozen) (Grant, error)

// HandBack is the error for a call that was planned to run beside others, although its frozen input
// must run alone. The call did not run.
type HandBack struct{ ArgsHash, Reason string }

func (h *HandBack) Error() string {
	return "planned to run beside others, but its input must run alone (" + h.Reason + ")"
}

// Ask is the error for a call that needs a person's approval. The call did not run.
type Ask struct {
	// Approval is the question, without the times when it is asked and expires.
	Approval messages.Approval
	Hooks    *messages.Hooks // what the pre-hooks did; they do not run again
	ArgsHash string
}

func (a *Ask) Error() string { return "a person has to allow it (" + a.Approval.Rule + ")" }
