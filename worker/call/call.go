// Package call holds what the lane and the pipeline tell each other about one call: what
// its claim records, what the lane grants, and the two ways in which a run ends without a
// result.
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

// Frozen is a call whose input no longer changes. All decisions about the call are about
// exactly these bytes.
type Frozen struct {
	Input    json.RawMessage
	ArgsHash string          // hex SHA-256 of the canonical input
	Hooks    *messages.Hooks // what the pre-hooks did; nil: there are none
	// Permission is the decision of the permission rules about the call.
	Permission *messages.Permission
	// OnCrash says what may be done with the call if its worker is lost.
	OnCrash messages.OnCrash
	// Deadline is how long the run may take, together with the hooks that follow it. If a
	// claim is held for longer, its worker must be broken, and the claim is given up.
	Deadline time.Duration
}

// Grant is the permission to start the tool.
type Grant struct {
	// Attempt is the number of this claim, from 1. For a call that does not claim, it is
	// the number of this run: failed attempts and earlier deliveries count.
	Attempt int
	Fence   uint64 // the sequence of the claim; 0 for a call that does not claim
	// Probe says that an earlier attempt was lost. Before running the tool again, ask it
	// whether that attempt was applied.
	Probe bool
}

// Claim asks for the grant, just before the tool is started, at most once per run. When
// Claim returns, the claim is durable, if the call claims at all. An error ends the run
// without a result.
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
