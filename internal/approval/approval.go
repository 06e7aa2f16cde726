// Package approval is a question to people and their signed answers: what a decision is bound to, whose word counts,
// what becomes of a question by a decision, and the one line that a person reads of a call.
//
//	q := the question          ID(q) names it: a digest of all that is asked
//	d := Answer(q, Approve, "alice"); d.At = now; d, err = key.Sign(d)
//	q, state, refusal := approvers.Take(q, d, now)     the coordinator, before it stores q
//	err := approvers.Holds(q, now)                     the worker, right before it runs the call
//
// A decision is good for one question and once. It repeats what it is bound to, the signature covers all of it, and
// every part is held against the question. Single use is a matter of the question's state: one that has its answer
// takes no other, and whoever stores the state compares and sets it.
//
// The package is pure but for [ReadKey] and [Key.Write], and the chance in [NewKey] and in a nonce. Where questions
// are kept and how decisions travel is left to others.
package approval

import (
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// StartWithin is how long after a question's expiry a call that was granted in time may still start: it waits for a
// worker, and for its turn. After it the grant does not hold any more.
const StartWithin = 5 * time.Minute

// ID names a question: the hex digest of everything in it but the id itself and the decisions. The arguments are in
// it by their hash. It is set last, once Asked and Expires are known.
func ID(q messages.Approval) string {
	q.ID, q.Decisions, q.Input = "", nil, nil
	q.Asked, q.Expires = q.Asked.UTC(), q.Expires.UTC()
	if q.Original != nil {
		q.Original = &messages.Arguments{ArgsHash: q.Original.ArgsHash}
	}
	return messages.Digest(append([]byte("toolfleet question v1\n"), messages.MustMarshal(q)...))
}

// Answer is a decision on the question, bound to it. Its time, its reason, ticket or new input, and the signature are
// the caller's to add.
func Answer(q messages.Approval, v messages.Verdict, by string) messages.Decision {
	return messages.Decision{
		V: messages.Version, Approval: q.ID, Tenant: q.Tenant, Session: q.Session, Batch: q.Batch, Index: q.Index, CallID: q.CallID, Tool: q.Tool,
		ArgsHash: q.ArgsHash, ToolDigest: q.ToolDigest, Policy: q.Policy, Expires: q.Expires.UTC(), Verdict: v, By: by,
	}
}

// hash is the hash of an input, and why it is no input.
func hash(input []byte) (string, error) {
	if err := messages.Check(input); err != nil {
		return "", err
	}
	if _, err := messages.Object(input); err != nil {
		return "", err
	}
	canonical, err := messages.CanonicalJSON(input)
	return messages.Digest(canonical), err
}

// intact reports whether a question is what its id says, and its arguments what their hash says.
func intact(q messages.Approval) bool {
	return q.ID == ID(q) && fits(q.Input, q.ArgsHash) && (q.Original == nil || fits(q.Original.Input, q.Original.ArgsHash))
}

func fits(input []byte, want string) bool {
	sum, err := hash(input)
	return err == nil && sum == want
}

// decided reports whether a question has its answer.
func decided(q messages.Approval) bool {
	for _, d := range q.Decisions {
		if d.Verdict == messages.Deny {
			return true
		}
	}
	return len(q.Decisions) >= people(q)
}

// people is how many have to agree: as many as the question says, and never fewer than its tier asks for.
func people(q messages.Approval) int {
	if q.Tier == messages.Critical {
		return max(q.Approvers, 2)
	}
	return max(q.Approvers, 1)
}

// ticketed reports whether the decisions name a ticket where the question wants one.
func ticketed(q messages.Approval, decisions ...messages.Decision) bool {
	for _, d := range decisions {
		if strings.TrimSpace(d.Ticket) != "" {
			return true
		}
	}
	return !q.Ticket && q.Tier != messages.Critical
}
