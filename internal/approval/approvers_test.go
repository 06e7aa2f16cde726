package approval

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// desk is a set of approvers, with their keys.
type desk struct {
	t    testing.TB
	keys map[string]Key
	Approvers
}

var asked = time.Date(2026, 11, 21, 9, 0, 0, 123456789, time.UTC)

func newDesk(t testing.TB) desk {
	t.Helper()
	d := desk{t: t, keys: map[string]Key{}}
	var list []messages.Approver
	for _, name := range []string{"alice", "bob", "carol", "support"} {
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		d.keys[name] = key
		p := messages.Approver{Name: name, Key: key.Public()}
		if name == "carol" {
			p.ActsAs = []string{"ops", "support"}
		}
		list = append(list, p)
	}
	var err error
	if d.Approvers, err = NewApprovers(list); err != nil {
		t.Fatal(err)
	}
	return d
}

func question(tier messages.Tier) messages.Approval {
	q := messages.Approval{
		V: messages.Version, Tenant: "acme", Session: "s 1", Batch: "b-1", Index: 1, CallID: "toolu_02", Tool: "issue_refund", Kind: messages.KindWrite,
		ToolDigest: "digest", Input: json.RawMessage(`{"amount":149.99}`), Requester: "support", Rule: "refunds", Tier: tier, Approvers: 1,
		Policy: "v7", Asked: asked, Expires: asked.Add(15 * time.Minute),
	}
	if tier == messages.TierCritical {
		q.Approvers, q.Ticket = 2, true
	}
	q.ArgsHash, _ = hash(q.Input)
	q.Line = Line(q.Tool, q.Input)
	q.ID = ID(q)
	return q
}

// says returns a signed decision on the question. The changes are made before the decision is
// signed.
func (d desk) says(q messages.Approval, v messages.Verdict, by string, change ...func(*messages.Decision)) messages.Decision {
	d.t.Helper()
	a := Answer(q, v, by)
	a.At = asked.Add(time.Minute)
	for _, c := range change {
		c(&a)
	}
	a, err := d.keys[by].Sign(a)
	if err != nil {
		d.t.Fatal(err)
	}
	return onWire(d.t, a)
}

// take applies a decision, which must be accepted with the result want, and returns the
// question after it.
func (d desk) take(q messages.Approval, a messages.Decision, want messages.DecisionState) messages.Approval {
	d.t.Helper()
	got, state, refusal := d.Take(q, a, asked.Add(time.Minute))
	if refusal != nil || state != want {
		d.t.Fatalf("%s by %s: got %q, %v; want %q", a.Verdict, a.By, state, refusal, want)
	}
	return onWire(d.t, got)
}

// onWire returns the value after an encoding and decoding.
func onWire[T any](t testing.TB, v T) (out T) {
	t.Helper()
	if err := json.Unmarshal(rawjson.MustMarshal(v), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func ticket(d *messages.Decision) { d.Ticket = "OPS-7" }

func input(raw string) func(*messages.Decision) {
	return func(d *messages.Decision) { d.Input = json.RawMessage(raw) }
}

func TestTake(t *testing.T) {
	d := newDesk(t)
	q := question(messages.TierHigh)
	granted := d.take(q, d.says(q, messages.VerdictApprove, "alice"), messages.DecisionGranted)
	if err := d.Holds(granted, q.Expires); err != nil {
		t.Errorf("a granted question does not hold: %v", err)
	}

	critical := question(messages.TierCritical)
	first := d.take(critical, d.says(critical, messages.VerdictApprove, "alice", ticket), messages.DecisionWaiting)
	if err := d.Holds(first, asked); err == nil {
		t.Error("a question that waits for another person holds")
	}
	second := d.take(first, d.says(critical, messages.VerdictApprove, "bob"), messages.DecisionGranted)
	if err := d.Holds(second, asked); err != nil {
		t.Errorf("a question granted by two does not hold: %v", err)
	}
	if got := second.Pending().Agreed; !slices.Equal(got, []string{"alice", "bob"}) {
		t.Errorf("agreed: %v", got)
	}
	if len(first.Decisions) != 1 || len(critical.Decisions) != 0 {
		t.Error("Take changes the question that it was given")
	}

	denied := d.take(first, d.says(first, messages.VerdictDeny, "bob"), messages.DecisionDenied)
	if err := d.Holds(denied, asked); err == nil {
		t.Error("a denied question holds")
	}
	// An approver who has agreed may still deny while there is time.
	d.take(first, d.says(first, messages.VerdictDeny, "alice"), messages.DecisionDenied)
}

func TestTakeAnEdit(t *testing.T) {
	d := newDesk(t)
	q := question(messages.TierHigh)
	edited := d.take(q, d.says(q, messages.VerdictEdit, "alice", input(`{"amount": 100}`)), messages.DecisionGranted)
	if err := d.Holds(edited, asked); err != nil {
		t.Errorf("an edited question does not hold: %v", err)
	}
	want := q
	want.Input, want.Line, want.Original = json.RawMessage(`{"amount":100}`), "issue_refund amount=100", &messages.Arguments{Input: q.Input, ArgsHash: q.ArgsHash}
	want.ArgsHash = messages.Digest(want.Input)
	want.ID, want.Decisions = ID(want), edited.Decisions
	if diff := cmp.Diff(want, edited); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if edited.ID == q.ID {
		t.Error("the edited question has the id of the question before")
	}

	// When two people have to agree, an edit starts the count again. The next approver edits
	// again or agrees to the edit.
	critical := question(messages.TierCritical)
	first := d.take(critical, d.says(critical, messages.VerdictApprove, "alice", ticket), messages.DecisionWaiting)
	second := d.take(first, d.says(first, messages.VerdictEdit, "bob", ticket, input(`{"amount":100}`)), messages.DecisionWaiting)
	third := d.take(second, d.says(second, messages.VerdictEdit, "alice", ticket, input(`{"amount":90}`)), messages.DecisionWaiting)
	if got := string(third.Original.Input); got != `{"amount":149.99}` {
		t.Errorf("after two edits the original is %s", got)
	}
	fourth := d.take(third, d.says(third, messages.VerdictApprove, "bob"), messages.DecisionGranted)
	if err := d.Holds(fourth, asked); err != nil {
		t.Errorf("a question edited twice does not hold: %v", err)
	}
	if got := string(fourth.Input); got != `{"amount":90}` || len(fourth.Decisions) != 2 {
		t.Errorf("what runs is %s after %d decisions", got, len(fourth.Decisions))
	}
}

func TestTakeRefuses(t *testing.T) {
	d := newDesk(t)
	high, critical := question(messages.TierHigh), question(messages.TierCritical)
	yes := d.says(high, messages.VerdictApprove, "alice")
	granted := d.take(high, yes, messages.DecisionGranted)
	denied := d.take(high, d.says(high, messages.VerdictDeny, "bob"), messages.DecisionDenied)
	first := d.says(critical, messages.VerdictApprove, "alice", ticket)
	waiting := d.take(critical, first, messages.DecisionWaiting)
	edit := d.says(critical, messages.VerdictEdit, "bob", ticket, input(`{"amount":1}`))
	edited := d.take(waiting, edit, messages.DecisionWaiting)
	bare := d.take(critical, d.says(critical, messages.VerdictApprove, "alice"), messages.DecisionWaiting)
	bareEdit := d.take(waiting, d.says(waiting, messages.VerdictEdit, "bob", input(`{}`)), messages.DecisionWaiting)
	d.take(bare, d.says(critical, messages.VerdictApprove, "bob", ticket), messages.DecisionGranted)
	stranger, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other := func(change func(*messages.Decision)) messages.Decision {
		return d.says(high, messages.VerdictApprove, "alice", change)
	}
	signedBy := func(k Key, a messages.Decision) messages.Decision {
		a, err := k.Sign(a)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	forged := func(change func(*messages.Decision)) messages.Decision {
		a := yes
		change(&a)
		return a
	}
	by := func(user string) messages.Approval {
		q := high
		q.Requester, q.User = "shop", user
		q.ID = ID(q)
		return q
	}
	in := time.Minute
	for _, tt := range []struct {
		name     string
		question messages.Approval
		decision messages.Decision
		after    time.Duration
		want     messages.Class
	}{
		{"forged signature", high, forged(func(a *messages.Decision) { a.Sig = signatures.EncodeToString(make([]byte, 64)) }), in, messages.ClassBadSignature},
		{"no signature", high, forged(func(a *messages.Decision) { a.Sig = "" }), in, messages.ClassBadSignature},
		{"changed after it was signed", high, forged(func(a *messages.Decision) { a.Reason = "because" }), in, messages.ClassBadSignature},
		{"turned around", high, forged(func(a *messages.Decision) { a.Verdict = messages.VerdictDeny }), in, messages.ClassBadSignature},
		{"another's decision under a name", high, forged(func(a *messages.Decision) { a.By = "bob" }), in, messages.ClassBadSignature},
		{"another key under the name", high, signedBy(stranger, Answer(high, messages.VerdictApprove, "alice")), in, messages.ClassBadSignature},
		{"the key of another approver", high, signedBy(d.keys["bob"], Answer(high, messages.VerdictApprove, "alice")), in, messages.ClassBadSignature},
		{"a stranger who names an approver's key", high, func() messages.Decision {
			a := signedBy(stranger, Answer(high, messages.VerdictApprove, "alice"))
			a.Key = d.keys["alice"].Public()
			return a
		}(), in, messages.ClassBadSignature},
		{"an approver who names another key", high, func() messages.Decision {
			a := Answer(high, messages.VerdictApprove, "alice")
			a.Key, a.Nonce = stranger.Public(), "n"
			signed, _ := a.Signed()
			sig, _ := d.keys["alice"].pair.Sign(signed)
			a.Sig = signatures.EncodeToString(sig)
			return a
		}(), in, messages.ClassBadSignature},
		{"unknown approver", high, signedBy(stranger, Answer(high, messages.VerdictApprove, "mallory")), in, messages.ClassBadSignature},
		{"the name in another case", high, signedBy(d.keys["alice"], Answer(high, messages.VerdictApprove, "Alice")), in, messages.ClassBadSignature},
		{"other question", high, other(func(a *messages.Decision) { a.Approval = critical.ID }), in, messages.ClassApprovalMismatch},
		{"other tenant", high, other(func(a *messages.Decision) { a.Tenant = "x" }), in, messages.ClassApprovalMismatch},
		{"other session", high, other(func(a *messages.Decision) { a.Session = "x" }), in, messages.ClassApprovalMismatch},
		{"other batch", high, other(func(a *messages.Decision) { a.Batch = "x" }), in, messages.ClassApprovalMismatch},
		{"other index", high, other(func(a *messages.Decision) { a.Index = 2 }), in, messages.ClassApprovalMismatch},
		{"other call", high, other(func(a *messages.Decision) { a.CallID = "x" }), in, messages.ClassApprovalMismatch},
		{"other tool", high, other(func(a *messages.Decision) { a.Tool = "x" }), in, messages.ClassApprovalMismatch},
		{"other arguments", high, other(func(a *messages.Decision) { a.ArgsHash = "x" }), in, messages.ClassApprovalMismatch},
		{"other definition of the tool", high, other(func(a *messages.Decision) { a.ToolDigest = "x" }), in, messages.ClassApprovalMismatch},
		{"other policy", high, other(func(a *messages.Decision) { a.Policy = "x" }), in, messages.ClassApprovalMismatch},
		{"other expiry", high, other(func(a *messages.Decision) { a.Expires = a.Expires.Add(time.Hour) }), in, messages.ClassApprovalMismatch},
		{"approved before the edit", edited, d.says(waiting, messages.VerdictApprove, "alice", ticket), in, messages.ClassApprovalMismatch},
		{"the edit again", edited, edit, in, messages.ClassApprovalMismatch},
		{"late", high, yes, 15 * time.Minute, messages.ClassApprovalExpired},
		{"late by a millisecond", high, yes, 15*time.Minute + time.Millisecond, messages.ClassApprovalExpired},
		{"a late no", high, d.says(high, messages.VerdictDeny, "alice"), 15 * time.Minute, messages.ClassApprovalExpired},
		{"the one who asks", high, d.says(high, messages.VerdictApprove, "support"), in, messages.ClassSelfApproval},
		{"the person behind the one who asks", high, d.says(high, messages.VerdictApprove, "carol"), in, messages.ClassSelfApproval},
		{"their edit", high, d.says(high, messages.VerdictEdit, "carol", input(`{}`)), in, messages.ClassSelfApproval},
		{"the user who asks", by("alice"), d.says(by("alice"), messages.VerdictApprove, "alice"), in, messages.ClassSelfApproval},
		{"the person behind the user who asks", by("ops"), d.says(by("ops"), messages.VerdictApprove, "carol"), in, messages.ClassSelfApproval},
		{"the same person twice", waiting, d.says(critical, messages.VerdictApprove, "alice", ticket), in, messages.ClassSameApprover},
		{"the same decision twice", waiting, first, in, messages.ClassSameApprover},
		{"whoever edited agrees too", edited, d.says(edited, messages.VerdictApprove, "bob"), in, messages.ClassSameApprover},
		{"no ticket", bare, d.says(critical, messages.VerdictApprove, "bob"), in, messages.ClassTicketMissing},
		{"an empty ticket", bare, d.says(critical, messages.VerdictApprove, "bob", func(a *messages.Decision) { a.Ticket = " \t" }), in, messages.ClassTicketMissing},
		{"an edit without a ticket, and agreement without one", bareEdit, d.says(bareEdit, messages.VerdictApprove, "alice"), in, messages.ClassTicketMissing},
		{"replayed after the grant", granted, yes, in, messages.ClassNotPending},
		{"another after the grant", granted, d.says(high, messages.VerdictApprove, "bob"), in, messages.ClassNotPending},
		{"a no after the grant", granted, d.says(granted, messages.VerdictDeny, "bob"), in, messages.ClassNotPending},
		{"an edit after the grant", granted, d.says(granted, messages.VerdictEdit, "bob", input(`{}`)), in, messages.ClassNotPending},
		{"a yes after the no", denied, yes, in, messages.ClassNotPending},
		{"no such verdict", high, other(func(a *messages.Decision) { a.Verdict = "maybe" }), in, messages.ClassInvalidDecision},
		{"no such version", high, other(func(a *messages.Decision) { a.V = 2 }), in, messages.ClassInvalidDecision},
		{"new arguments in a yes", high, other(input(`{"amount":1}`)), in, messages.ClassInvalidDecision},
		{"an edit without arguments", high, d.says(high, messages.VerdictEdit, "alice"), in, messages.ClassInvalidDecision},
		{"an edit that is no object", high, d.says(high, messages.VerdictEdit, "alice", input(`[1]`)), in, messages.ClassInvalidDecision},
		{"an edit with a key twice", high, d.says(high, messages.VerdictEdit, "alice", input(`{"a":1,"a":2}`)), in, messages.ClassInvalidDecision},
		{"an edit that changes nothing", high, d.says(high, messages.VerdictEdit, "alice", input(`{ "amount" : 149.99 }`)), in, messages.ClassInvalidDecision},
		{"a reason like a book", high, other(func(a *messages.Decision) { a.Reason = strings.Repeat("x", MaxReason+1) }), in, messages.ClassInvalidDecision},
		{"no nonce", high, forged(func(a *messages.Decision) { a.Nonce = "" }), in, messages.ClassInvalidDecision},
	} {
		got, state, refusal := d.Take(tt.question, tt.decision, asked.Add(tt.after))
		if refusal == nil || refusal.Class != tt.want {
			t.Errorf("%s: got %q, %v; want %s", tt.name, state, refusal, tt.want)
		}
		if diff := cmp.Diff(tt.question, got); state != "" || diff != "" {
			t.Errorf("%s: refused, and yet %q\n%s", tt.name, state, diff)
		}
	}
	if _, _, refusal := d.Take(high, yes, high.Expires.Add(-time.Nanosecond)); refusal != nil {
		t.Errorf("right before the expiry: %v", refusal)
	}
}

// Any part of a signed decision or of its question is changed: the decision is refused when it
// is taken, and again by the check before the call runs.
func TestEveryPartIsBound(t *testing.T) {
	d := newDesk(t)
	q := question(messages.TierCritical)
	first := d.take(q, d.says(q, messages.VerdictApprove, "alice", ticket), messages.DecisionWaiting)
	first = d.take(first, d.says(first, messages.VerdictEdit, "alice", ticket, input(`{"amount":5}`)), messages.DecisionWaiting)
	yes := d.says(first, messages.VerdictApprove, "bob", func(a *messages.Decision) { a.Reason, a.Ticket = "fine", "OPS-8" })
	granted := d.take(first, yes, messages.DecisionGranted)

	for name, changed := range changes(t, yes) {
		if _, state, refusal := d.Take(first, changed, asked); refusal == nil {
			t.Errorf("decision with another %s: %s", name, state)
		}
		again := onWire(t, granted)
		again.Decisions[1] = changed
		if d.Holds(again, asked) == nil {
			t.Errorf("decision with another %s holds", name)
		}
	}
	for name, changed := range changes(t, first.Decisions[0]) {
		again := onWire(t, granted)
		again.Decisions[0] = changed
		if d.Holds(again, asked) == nil {
			t.Errorf("edit with another %s holds", name)
		}
	}
	for name, changed := range changes(t, first) {
		if _, state, refusal := d.Take(changed, yes, asked); refusal == nil && name != "Decisions" {
			t.Errorf("question with another %s: %s", name, state)
		}
		// An attacker may compute the id of the changed question too.
		if changed.ID = ID(changed); name != "Decisions" && name != "ID" {
			if _, state, refusal := d.Take(changed, yes, asked); refusal == nil {
				t.Errorf("question with another %s, and its id: %s", name, state)
			}
		}
	}
	for name, changed := range changes(t, granted) {
		if d.Holds(changed, asked) == nil {
			t.Errorf("granted question with another %s holds", name)
		}
	}
}

// changes returns copies of the value, each with one field changed.
func changes[T any](t *testing.T, v T) map[string]T {
	t.Helper()
	all := map[string]T{}
	var walk func(name string, at func(*T) reflect.Value)
	walk = func(name string, at func(*T) reflect.Value) {
		original := onWire(t, v)
		field := at(&original)
		switch {
		case field.Type() == reflect.TypeFor[json.RawMessage]():
			field.SetBytes([]byte(`{"amount":6}`))
		case field.Type() == reflect.TypeFor[time.Time]():
			field.Set(reflect.ValueOf(field.Interface().(time.Time).Add(time.Millisecond)))
		case field.Kind() == reflect.String:
			field.SetString(field.String() + "x")
		case field.Kind() == reflect.Int:
			field.SetInt(field.Int() + 1)
		case field.Kind() == reflect.Bool:
			field.SetBool(!field.Bool())
		case field.Type() == reflect.TypeFor[map[string]string]():
			field.Set(reflect.ValueOf(map[string]string{"env": "test"}))
		case field.Kind() == reflect.Slice:
			field.Set(reflect.Zero(field.Type()))
		case field.Kind() == reflect.Pointer:
			for i := range field.Elem().NumField() {
				walk(name+"."+field.Elem().Type().Field(i).Name, func(v *T) reflect.Value { return at(v).Elem().Field(i) })
			}
			field.SetZero()
		default:
			t.Fatalf("%s: a %s is not changed", name, field.Kind())
		}
		all[name] = original
	}
	for i := range reflect.TypeFor[T]().NumField() {
		walk(reflect.TypeFor[T]().Field(i).Name, func(v *T) reflect.Value { return reflect.ValueOf(v).Elem().Field(i) })
	}
	return all
}

func TestHolds(t *testing.T) {
	d := newDesk(t)
	q := question(messages.TierHigh)
	granted := d.take(q, d.says(q, messages.VerdictApprove, "alice"), messages.DecisionGranted)
	critical := question(messages.TierCritical)
	both := d.take(critical, d.says(critical, messages.VerdictApprove, "alice", ticket), messages.DecisionWaiting)
	both = d.take(both, d.says(critical, messages.VerdictApprove, "bob"), messages.DecisionGranted)
	change := func(q messages.Approval, decisions ...messages.Decision) messages.Approval {
		q.Decisions = decisions
		return q
	}
	moved := d.take(q, d.says(q, messages.VerdictEdit, "alice", input(`{"amount":1}`)), messages.DecisionGranted)
	moved.CallID = "toolu_03"
	moved.ID = ID(moved)
	lenient := question(messages.TierCritical)
	lenient.Approvers = 1
	lenient.ID = ID(lenient)
	lenient.Decisions = []messages.Decision{d.says(lenient, messages.VerdictApprove, "alice", ticket)}
	for _, tt := range []struct {
		name     string
		question messages.Approval
		after    time.Duration
		want     messages.Class
	}{
		{"in time", granted, 20*time.Minute - time.Nanosecond, ""},
		{"too late to start", granted, 20 * time.Minute, messages.ClassApprovalExpired},
		{"nobody agreed", q, 0, messages.ClassNotPending},
		{"one of two", change(both, both.Decisions[0]), 0, messages.ClassNotPending},
		{"nobody named a ticket", change(both, d.says(critical, messages.VerdictApprove, "alice"), both.Decisions[1]), 0, messages.ClassTicketMissing},
		{"one twice", change(both, both.Decisions[0], d.says(critical, messages.VerdictApprove, "alice")), 0, messages.ClassSameApprover},
		{"the one who asks", change(granted, d.says(q, messages.VerdictApprove, "carol")), 0, messages.ClassSelfApproval},
		{"a no among them", change(both, both.Decisions[0], d.says(critical, messages.VerdictDeny, "bob")), 0, messages.ClassNotPending},
		{"the edit of another call", moved, 0, messages.ClassApprovalMismatch},
		{"critical, whatever it says of people", lenient, 0, messages.ClassNotPending},
		{"of another question", change(granted, both.Decisions[0]), 0, messages.ClassApprovalMismatch},
		{"an edit that is none", change(granted, d.says(q, messages.VerdictEdit, "alice", input(`{"amount":149.99}`))), 0, messages.ClassApprovalMismatch},
	} {
		err := d.Holds(tt.question, asked.Add(tt.after))
		if refusal, _ := err.(*messages.Refusal); (err == nil) != (tt.want == "") || err != nil && refusal.Class != tt.want {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	// An approver who was removed or has another key now does not count.
	others := newDesk(t)
	if err := others.Holds(granted, asked); err == nil {
		t.Error("a decision with a key that was replaced holds")
	}
	if err := (Approvers{}).Holds(granted, asked); err == nil {
		t.Error("a decision holds without any approver")
	}
}

func TestNewApprovers(t *testing.T) {
	d := newDesk(t)
	if d.Len() != 4 || (Approvers{}).Len() != 0 {
		t.Errorf("Len: %d and %d", d.Len(), (Approvers{}).Len())
	}
	key := d.keys["alice"].Public()
	seed, err := d.keys["bob"].pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewApprovers([]messages.Approver{
		{Name: "a", Key: key}, {Name: "A", Key: d.keys["bob"].Public()}, {Name: "b c", Key: key}, {Name: "", Key: key},
		{Name: "d", Key: "UX"}, {Name: "e", Key: key}, {Name: "f", Key: string(seed)},
	})
	got := strings.Split(fmt.Sprint(err), "\n")
	want := []string{
		"approver A is named twice", `approver "b c": want a name`, `approver "": want a name`, "approver d: the key is no public key",
		"approver e has the key of a", "approver f: the key is a seed",
	}
	if len(got) != len(want) {
		t.Fatalf("got %d mistakes, want %d: %v", len(got), len(want), err)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
	if strings.Contains(err.Error(), string(seed)) {
		t.Error("the error quotes a seed")
	}
}

func FuzzDecode(f *testing.F) {
	d := newDesk(f)
	q := question(messages.TierHigh)
	yes := d.says(q, messages.VerdictApprove, "alice")
	f.Add(rawjson.MustMarshal(yes))
	f.Add(rawjson.MustMarshal(Answer(q, messages.VerdictEdit, "alice")))
	f.Add([]byte(`{"v":1,"expires":"9999-12-31T23:59:59-23:59","input":null,"sig":"` + strings.Repeat("A", 86) + `"}`))
	signed, err := yes.Signed()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, refusal := Decode(raw)
		if refusal != nil {
			return
		}
		again, refusal := Decode(rawjson.MustMarshal(a))
		if refusal != nil {
			t.Fatalf("%q: decoded once, and then %v", raw, refusal)
		}
		if diff := cmp.Diff(string(rawjson.MustMarshal(a)), string(rawjson.MustMarshal(again))); diff != "" {
			t.Errorf("%q: %s", raw, diff)
		}
		// Only the decision that alice has signed is taken, however its JSON is written.
		if _, state, refusal := d.Take(q, a, asked); refusal == nil {
			if got, _ := a.Signed(); string(got) != string(signed) {
				t.Errorf("%s by %s on %s", state, a.By, raw)
			}
		}
	})
}
