package approval

import (
	"strings"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Answered returns the record that must follow a parked record. The new record has the
// question with the new decision, and a result if the call is denied. nonce is the nonce of
// the new record.
func Answered(parked wire.CallRecord, q messages.Approval, state messages.DecisionState, nonce string) wire.CallRecord {
	next := parked
	next.Nonce, next.Approval, next.ArgsHash, next.Worker = nonce, &q, q.ArgsHash, ""
	if q.Original != nil {
		next.Input = nil // the record has the input from before the edit
	}
	switch state {
	case messages.DecisionGranted:
		next.State = wire.Granted
	case messages.DecisionDenied:
		next.State, next.Result = wire.Ended, denied(parked, q)
		next.Input, next.Approval = nil, WithoutArguments(q)
	}
	return next
}

// denied returns the result of a call that a person has denied.
func denied(parked wire.CallRecord, q messages.Approval) *messages.Result {
	last := q.Decisions[len(q.Decisions)-1]
	message := "Denied by " + last.By + "."
	if reason := strings.TrimSpace(last.Reason); reason != "" {
		message = "Denied by " + last.By + ": " + reason
	}
	r := &messages.Result{
		V: messages.Version, Index: q.Index, CallID: q.CallID, Tool: q.Tool, Kind: q.Kind, Status: messages.StatusDenied,
		Attempt: parked.Attempt, Outcome: messages.Failed(messages.CodeDeniedByUser, message), Permission: Permission(q, "deny"),
	}
	r.Permission.By = []string{last.By}
	if h := parked.Hooks; h != nil {
		own := *h
		own.Opinion, own.By, own.Reason, own.Context = "", "", "", nil
		r.Hooks = &own
	}
	return r
}
