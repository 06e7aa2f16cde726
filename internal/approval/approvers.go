package approval

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Limits of the texts that a person writes, in characters.
const (
	MaxReason = 2000
	MaxTicket = 200
)

// Approvers has the people whose decisions count. The zero value has nobody. Safe for
// concurrent use.
type Approvers struct{ byName map[string]messages.Approver }

var approverName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,64}$`)

// NewApprovers checks the approvers of a policy. Two approvers must not have the same key, or
// the same name (ignoring case), because a critical call needs two different people. The error
// joins all mistakes.
func NewApprovers(list []messages.Approver) (Approvers, error) {
	var errs []error
	a := Approvers{make(map[string]messages.Approver, len(list))}
	names, keys := map[string]bool{}, map[string]string{}
	for _, p := range list {
		switch folded := strings.ToLower(p.Name); {
		case !approverName.MatchString(p.Name):
			errs = append(errs, fmt.Errorf("approver %.80q: want a name of 1 to 64 of [A-Za-z0-9_.@-]", p.Name))
		case names[folded]:
			errs = append(errs, fmt.Errorf("approver %s is named twice", p.Name))
		case strings.HasPrefix(strings.TrimSpace(p.Key), "S"):
			errs = append(errs, fmt.Errorf("approver %s: the key is a seed, which is its owner's secret; want the public key (U...)", p.Name))
		case !nkeys.IsValidPublicUserKey(p.Key):
			errs = append(errs, fmt.Errorf("approver %s: the key is no public key of a user (U...)", p.Name))
		case keys[p.Key] != "":
			errs = append(errs, fmt.Errorf("approver %s has the key of %s", p.Name, keys[p.Key]))
		default:
			names[folded], keys[p.Key] = true, p.Name
			p.ActsAs, p.Scopes = slices.Clone(p.ActsAs), slices.Clone(p.Scopes)
			a.byName[p.Name] = p
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Approvers{}, err
	}
	return a, nil
}

// Check returns why a decision that was stored at a time does not count for any question: the
// approver whom it names has not signed it, or may not decide about its tenant and tool. Check
// does not compare the decision with a question.
func (a Approvers) Check(d messages.Decision, at time.Time) *messages.Refusal {
	if r := a.verify(d); r != nil {
		return r
	}
	return a.entitled(d, at)
}

// Len returns the number of approvers.
func (a Approvers) Len() int { return len(a.byName) }

// Decode reads a decision from a message.
func Decode(raw []byte) (messages.Decision, *messages.Refusal) {
	var d messages.Decision
	err := rawjson.Check(raw)
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err != nil {
		return messages.Decision{}, refuse(messages.ClassInvalidDecision, "The decision cannot be read: %v.", err)
	}
	return d, nil
}

// Take applies a decision to a question. now is the server's time. It returns the new question
// and its state: granted, waiting for another person, or denied. If it refuses the decision,
// it returns the question unchanged.
//
// One person is enough to deny. An edit replaces the arguments, and is the first approval of
// the new ones. Earlier approvals do not count any more, because they were for the old
// arguments. The edited question gets a new id.
func (a Approvers) Take(
	q messages.Approval, d messages.Decision, now time.Time,
) (messages.Approval, messages.DecisionState, *messages.Refusal) {
	if r := a.refusal(q, d, now); r != nil {
		return q, "", r
	}
	switch d.Verdict {
	case messages.VerdictDeny:
		q.Decisions = append(slices.Clone(q.Decisions), d)
		return q, messages.DecisionDenied, nil
	case messages.VerdictEdit:
		q = edited(q, d)
	default:
		q.Decisions = append(slices.Clone(q.Decisions), d)
	}
	if len(q.Decisions) < people(q) {
		return q, messages.DecisionWaiting, nil
	}
	return q, messages.DecisionGranted, nil
}

// refusal returns why a decision is not taken, or nil. It checks the author first, so that
// only an approver learns the state of a question.
func (a Approvers) refusal(q messages.Approval, d messages.Decision, now time.Time) *messages.Refusal {
	if r := readable(d); r != nil {
		return r
	}
	if r := a.Check(d, now); r != nil {
		return r
	}
	switch {
	case !Intact(q):
		return refuse(messages.ClassApprovalMismatch, "The question is not what its id says.")
	case decided(q):
		return refuse(messages.ClassNotPending, "The question has its answer already.")
	case d.Approval != q.ID || d.ArgsHash != q.ArgsHash || !sameCall(q, d):
		return refuse(messages.ClassApprovalMismatch,
			"The decision is about another question: another call, other arguments, another tool or another policy.")
	case !now.Before(q.Expires):
		return refuse(messages.ClassApprovalExpired, "The question expired at %s.", q.Expires.UTC().Format(time.RFC3339))
	case a.own(q, d):
		return refuse(messages.ClassSelfApproval, "%s is the one who asks, and cannot answer.", d.By)
	}
	counted := []messages.Decision{d}
	if d.Verdict == messages.VerdictApprove {
		counted = append(counted, q.Decisions...)
	}
	switch {
	case !distinct(counted):
		return refuse(messages.ClassSameApprover, "%s has agreed already; another person has to agree too.", d.By)
	// Any of the decisions may name the ticket, so only the last decision can be refused for
	// it.
	case d.Verdict != messages.VerdictDeny && len(counted) >= people(q) && !ticketed(q, counted...):
		return refuse(messages.ClassTicketMissing, "A call of this tier needs a ticket, and no decision names one.")
	}
	if d.Verdict == messages.VerdictEdit {
		if sum, err := hash(d.Input); err != nil {
			return refuse(messages.ClassInvalidDecision, "The new arguments cannot be read: %v.", err)
		} else if sum == q.ArgsHash {
			return refuse(messages.ClassInvalidDecision,
				"The new arguments are those that were asked about: approve them instead.")
		}
	}
	return nil
}

// Holds checks a granted question again. now is the server's time. The question must match its
// id. Enough people, who must still be approvers, must have signed for exactly these
// arguments. The time to start the call must not be over. The error is a [*messages.Refusal].
func (a Approvers) Holds(q messages.Approval, now time.Time) error {
	if !Intact(q) {
		return refuse(messages.ClassApprovalMismatch, "The question is not what its id says.")
	}
	for i, d := range q.Decisions {
		if r := readable(d); r != nil {
			return r
		}
		if r := a.Check(d, now); r != nil {
			return r
		}
		switch {
		case d.Verdict == messages.VerdictDeny:
			return refuse(messages.ClassNotPending, "%s has denied it.", d.By)
		case !sameCall(q, d), !agrees(q, d, i):
			return refuse(messages.ClassApprovalMismatch,
				"The decision of %s is about another call, other arguments, another tool or another policy.", d.By)
		case a.own(q, d):
			return refuse(messages.ClassSelfApproval, "%s is the one who asks.", d.By)
		}
	}
	switch {
	case !distinct(q.Decisions):
		return refuse(messages.ClassSameApprover, "The same person has agreed twice.")
	case len(q.Decisions) < people(q):
		return refuse(messages.ClassNotPending, "%d of %d people have agreed.", len(q.Decisions), people(q))
	case !ticketed(q, q.Decisions...):
		return refuse(messages.ClassTicketMissing, "No decision names a ticket.")
	case !now.Before(q.Expires.Add(StartWithin)):
		return refuse(messages.ClassApprovalExpired,
			"The call did not start in time: the question expired at %s.", q.Expires.UTC().Format(time.RFC3339))
	}
	return nil
}

// agrees reports whether decision i of the question is for the present arguments. If a
// decision is an edit, it must be the first: it was signed for the question before the edit,
// and it has the present arguments.
func agrees(q messages.Approval, d messages.Decision, i int) bool {
	if d.Verdict == messages.VerdictEdit {
		return i == 0 && q.Original != nil && fits(d.Input, q.ArgsHash)
	}
	return d.Approval == q.ID && d.ArgsHash == q.ArgsHash
}

// edited returns the question with the new arguments of d, and d as its only decision.
func edited(q messages.Approval, d messages.Decision) messages.Approval {
	if q.Original == nil {
		q.Original = &messages.Arguments{Input: q.Input, ArgsHash: q.ArgsHash}
	}
	q.Input = slices.Clone(d.Input)
	q.ArgsHash, _ = hash(d.Input) // refusal has checked the input
	q.Line = Line(q.Tool, q.Input)
	q.Decisions = []messages.Decision{d}
	q.ID = ID(q)
	return q
}

// readable checks the form of a decision.
func readable(d messages.Decision) *messages.Refusal {
	_, err := rawjson.Marshal(d)
	switch {
	case err != nil || d.V != messages.Version:
		return refuse(messages.ClassInvalidDecision,
			"The decision cannot be read: it is no decision of version %d.", messages.Version)
	case d.Verdict != messages.VerdictApprove && d.Verdict != messages.VerdictDeny && d.Verdict != messages.VerdictEdit:
		return refuse(messages.ClassInvalidDecision, "The verdict is none of approve, deny and edit.")
	case (d.Verdict == messages.VerdictEdit) != (len(d.Input) > 0):
		return refuse(messages.ClassInvalidDecision, "An edit, and only that, holds new arguments.")
	case d.Nonce == "":
		return refuse(messages.ClassInvalidDecision, "The decision has no nonce.")
	case utf8.RuneCountInString(d.Reason) > MaxReason, utf8.RuneCountInString(d.Ticket) > MaxTicket:
		return refuse(messages.ClassInvalidDecision, "The reason may have %d characters and the ticket %d.",
			MaxReason, MaxTicket)
	}
	return nil
}

// verify checks that a decision is signed with the key of the approver that it names. The
// refusal does not say which part is wrong.
func (a Approvers) verify(d messages.Decision) *messages.Refusal {
	if p, known := a.byName[d.By]; known && p.Key == d.Key && verified(d, p.Key) {
		return nil
	}
	return refuse(messages.ClassBadSignature, "The decision is not signed with the key of an approver of this name.")
}

// own reports whether the author of a decision is also the requester. The author is the
// approver, under the approver's name or under a principal as whom the approver acts. The
// requester is the tenant, or the user of the tenant who asks. Case is ignored.
func (a Approvers) own(q messages.Approval, d messages.Decision) bool {
	same := func(principal string) bool {
		return strings.EqualFold(principal, q.Requester) || q.User != "" && strings.EqualFold(principal, q.User)
	}
	return same(d.By) || slices.ContainsFunc(a.byName[d.By].ActsAs, same)
}

// sameCall reports whether the parts of a decision that an edit does not change are those of
// its question.
func sameCall(q messages.Approval, d messages.Decision) bool {
	return d.Tenant == q.Tenant && d.Session == q.Session && d.Batch == q.Batch && d.Index == q.Index && d.CallID == q.CallID &&
		d.Tool == q.Tool && d.ToolDigest == q.ToolDigest && d.Policy == q.Policy && d.Expires.Equal(q.Expires)
}

// distinct reports whether no two decisions share a name or a key.
func distinct(decisions []messages.Decision) bool {
	names, keys := map[string]bool{}, map[string]bool{}
	for _, d := range decisions {
		if names[d.By] || keys[d.Key] {
			return false
		}
		names[d.By], keys[d.Key] = true, true
	}
	return true
}

func refuse(class messages.Class, format string, args ...any) *messages.Refusal {
	return &messages.Refusal{Class: class, Message: fmt.Sprintf(format, args...)}
}
