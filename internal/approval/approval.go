// Package approval has questions to people and their signed answers. It says to what a
// decision is bound, which approvers count, and how a decision changes a question. It also
// makes the line that a person reads about a call.
//
//	q := the question          ID(q) names it: a digest of all that is asked
//	d := Answer(q, Approve, "alice"); d.At = now; d, err = key.Sign(d)
//	q, state, refusal := approvers.Take(q, d, now)     the coordinator, before it stores q
//	err := approvers.Holds(q, now)                     the worker, right before it runs the call
//
// A decision counts for one question, and once. It repeats the parts of the question to which
// it is bound. Its signature covers all these parts, and each of them is compared with the
// question. An answered question takes no further decision. The caller stores the new state by
// compare-and-set, so two decisions cannot both be taken.
//
// The package is pure, except for [ReadKey], [Key.Write], and the random numbers in
// [NewKey] and in nonces. Its callers store the questions and send the decisions.
package approval

import (
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// StartWithin is how long after the expiry of its question a granted call may still start.
// After that the grant is not valid any more. A call may be granted just before the expiry,
// and then has to wait for a worker and for its turn.
const StartWithin = 5 * time.Minute

// ID returns the id of a question: the hex digest of everything in it, except the id itself
// and the decisions. The digest covers the arguments by their hash. Set the id after all other
// fields, also after Asked and Expires.
func ID(q messages.Approval) string {
	q.ID, q.Decisions, q.Input = "", nil, nil
	q.Asked, q.Expires = q.Asked.UTC(), q.Expires.UTC()
	if q.Original != nil {
		q.Original = &messages.Arguments{ArgsHash: q.Original.ArgsHash}
	}
	return messages.Digest(append([]byte("toolfleet question v1\n"), rawjson.MustMarshal(q)...))
}

// Answer returns a decision that is bound to the question. The caller adds the time, the
// reason, the ticket or the new input, and the signature.
func Answer(q messages.Approval, v messages.Verdict, by string) messages.Decision {
	return messages.Decision{
		V: messages.Version, Approval: q.ID, Tenant: q.Tenant, Session: q.Session, Batch: q.Batch, Index: q.Index, CallID: q.CallID, Tool: q.Tool,
		ArgsHash: q.ArgsHash, ToolDigest: q.ToolDigest, Policy: q.Policy, Expires: q.Expires.UTC(), Verdict: v, By: by,
	}
}

// hash returns the hash of an input, or an error if it is not valid JSON.
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

// Intact reports whether a question matches its id, and whether its arguments match their
// hashes.
func Intact(q messages.Approval) bool {
	return q.ID == ID(q) && fits(q.Input, q.ArgsHash) && (q.Original == nil || fits(q.Original.Input, q.Original.ArgsHash))
}

func fits(input []byte, want string) bool {
	sum, err := hash(input)
	return err == nil && sum == want
}

// decided reports whether a question is answered: by one denial, or by enough approvals.
func decided(q messages.Approval) bool {
	for _, d := range q.Decisions {
		if d.Verdict == messages.VerdictDeny {
			return true
		}
	}
	return len(q.Decisions) >= people(q)
}

// people returns how many people have to agree: as many as the question says, but at least
// two for a critical call.
func people(q messages.Approval) int {
	if q.Tier == messages.TierCritical {
		return max(q.Approvers, 2)
	}
	return max(q.Approvers, 1)
}

// ticketed reports whether one of the decisions names a ticket, or no ticket is needed.
func ticketed(q messages.Approval, decisions ...messages.Decision) bool {
	for _, d := range decisions {
		if strings.TrimSpace(d.Ticket) != "" {
			return true
		}
	}
	return !q.Ticket && q.Tier != messages.TierCritical
}
