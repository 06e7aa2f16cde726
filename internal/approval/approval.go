// Package approval holds a question to people and their signed answers: what a decision is bound
// to, which approvers count, what a decision does to a question, and the one line that a person
// reads about a call.
//
//	q := the question          ID(q) names it: a digest of all that is asked
//	d := Answer(q, Approve, "alice"); d.At = now; d, err = key.Sign(d)
//	q, state, refusal := approvers.Take(q, d, now)     the coordinator, before it stores q
//	err := approvers.Holds(q, now)                     the worker, right before it runs the call
//
// A decision is good for one question, once. It repeats what it is bound to, the signature covers
// all of it, and every part is checked against the question. The state of the question makes it
// single-use: an answered question takes no other decision, and the caller stores the new state by
// compare-and-set.
//
// The package is pure except for [ReadKey] and [Key.Write], and for the random numbers in [NewKey]
// and in a nonce. It leaves to others where questions are kept and how decisions travel.
package approval

import (
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// StartWithin is how long after a question's expiry a call that was granted in time may still
// start, because it waits for a worker and for its turn. After that the grant no longer holds.
const StartWithin = 5 * time.Minute

// ID names a question: the hex digest of everything in it except the id itself and the decisions.
// The arguments enter by their hash. Set it last, once Asked and Expires are known.
func ID(q messages.Approval) string {
	q.ID, q.Decisions, q.Input = "", nil, nil
	q.Asked, q.Expires = q.Asked.UTC(), q.Expires.UTC()
	if q.Original != nil {
		q.Original = &messages.Arguments{ArgsHash: q.Original.ArgsHash}
	}
	return messages.Digest(append([]byte("toolfleet question v1\n"), rawjson.MustMarshal(q)...))
}

// Answer returns a decision that is bound to the question. The caller adds the time, the reason,
// the ticket or the new input, and the signature.
func Answer(q messages.Approval, v messages.Verdict, by string) messages.Decision {
	return messages.Decision{
		V: messages.Version, Approval: q.ID, Tenant: q.Tenant, Session: q.Session, Batch: q.Batch, Index: q.Index, CallID: q.CallID, Tool: q.Tool,
		ArgsHash: q.ArgsHash, ToolDigest: q.ToolDigest, Policy: q.Policy, Expires: q.Expires.UTC(), Verdict: v, By: by,
	}
}

// hash returns the hash of an input, or why it is no input.
func hash(input []byte) (string, error) {
	if err := rawjson.Check(input); err != nil {
		return "", err
	}
	if _, err := rawjson.Object(input); err != nil {
		return "", err
	}
	canonical, err := rawjson.Canonical(input)
	return messages.Digest(canonical), err
}

// intact reports whether a question matches its id, and its arguments match their hashes.
func intact(q messages.Approval) bool {
	return q.ID == ID(q) && fits(q.Input, q.ArgsHash) && (q.Original == nil || fits(q.Original.Input, q.Original.ArgsHash))
}

func fits(input []byte, want string) bool {
	sum, err := hash(input)
	return err == nil && sum == want
}

// decided reports whether a question is answered: one denial, or enough agreements.
func decided(q messages.Approval) bool {
	for _, d := range q.Decisions {
		if d.Verdict == messages.VerdictDeny {
			return true
		}
	}
	return len(q.Decisions) >= people(q)
}

// people is how many have to agree: as many as the question says, and at least what its tier needs.
func people(q messages.Approval) int {
	if q.Tier == messages.TierCritical {
		return max(q.Approvers, 2)
	}
	return max(q.Approvers, 1)
}

// ticketed reports whether a decision names a ticket, or the question needs none.
func ticketed(q messages.Approval, decisions ...messages.Decision) bool {
	for _, d := range decisions {
		if strings.TrimSpace(d.Ticket) != "" {
			return true
		}
	}
	return !q.Ticket && q.Tier != messages.TierCritical
}
