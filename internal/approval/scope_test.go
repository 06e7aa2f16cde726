package approval

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

// scoped returns a desk of three approvers: alice has the scopes, the key of bob expires at
// until, and carol has neither limit.
func scoped(t *testing.T, scopes []messages.Scope, until time.Time) desk {
	t.Helper()
	d := desk{t: t, keys: map[string]Key{}}
	var list []messages.Approver
	for _, name := range []string{"alice", "bob", "carol"} {
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		d.keys[name] = key
		list = append(list, messages.Approver{Name: name, Key: key.Public()})
	}
	list[0].Scopes, list[1].Expires = scopes, until
	var err error
	if d.Approvers, err = NewApprovers(list); err != nil {
		t.Fatal(err)
	}
	return d
}

// An approver with scopes decides only about their tenants and tools. This is checked when a
// decision is taken, and again when the call starts.
func TestScopes(t *testing.T) {
	q := question(messages.TierHigh) // about the tool issue_refund of tenant acme
	for name, tc := range map[string]struct {
		scopes []messages.Scope
		in     bool
	}{
		"everything":           {nil, true},
		"its tool":             {[]messages.Scope{{Group: "g", Tools: []string{"issue_refund"}}}, true},
		"a pattern":            {[]messages.Scope{{Group: "g", Tools: []string{"other", "issue_*"}}}, true},
		"its tenant":           {[]messages.Scope{{Group: "g", Tenants: []string{"globex", "acme"}}}, true},
		"both":                 {[]messages.Scope{{Group: "g", Tenants: []string{"acme"}, Tools: []string{"issue_refund"}}}, true},
		"the second group":     {[]messages.Scope{{Group: "g", Tools: []string{"x"}}, {Group: "h", Tenants: []string{"acme"}}}, true},
		"another tool":         {[]messages.Scope{{Group: "g", Tools: []string{"refund", "issue"}}}, false},
		"another tenant":       {[]messages.Scope{{Group: "g", Tenants: []string{"ACME", "globex"}}}, false},
		"one half each":        {[]messages.Scope{{Group: "g", Tenants: []string{"acme"}, Tools: []string{"x"}}, {Group: "h", Tenants: []string{"x"}, Tools: []string{"issue_refund"}}}, false},
		"a tenant's own group": {[]messages.Scope{{Group: "g", Tenants: []string{"acme"}, Tools: []string{"refund"}}}, false},
	} {
		d := scoped(t, tc.scopes, time.Time{})
		for _, verdict := range []messages.Verdict{messages.VerdictApprove, messages.VerdictDeny} {
			yes := d.says(q, verdict, "alice")
			taken, _, refused := d.Take(q, yes, asked.Add(time.Minute))
			if (refused == nil) != tc.in || refused != nil && refused.Class != messages.ClassOutOfScope {
				t.Errorf("%s: %s is refused with %v", name, verdict, refused)
			}
			if verdict == messages.VerdictDeny {
				continue
			}
			if taken.Decisions = []messages.Decision{yes}; (d.Holds(taken, asked.Add(time.Minute)) == nil) != tc.in {
				t.Errorf("%s: a grant with the decision: %v", name, d.Holds(taken, asked.Add(time.Minute)))
			}
			if r := d.Check(yes, asked); (r == nil) != tc.in {
				t.Errorf("%s: the decision in a record: %v", name, r)
			}
		}
		want := []string{"bob", "carol"}
		if tc.in {
			want = []string{"alice", "bob", "carol"}
		}
		if diff := cmp.Diff(want, d.May(q.Pending(), asked)); diff != "" {
			t.Errorf("%s: who may answer: %s", name, diff)
		}
		if d.Count(q.Tenant, q.Tool, asked) != len(want) {
			t.Errorf("%s: %d people may decide, want %d", name, d.Count(q.Tenant, q.Tool, asked), len(want))
		}
	}
}

// A key expires: from then on no decision with it is taken and no call starts on one, whatever
// time the decision names. A call that started before stays valid.
func TestAKeyExpires(t *testing.T) {
	until := asked.Add(5 * time.Minute)
	d, q := scoped(t, nil, until), question(messages.TierHigh)
	yes := d.says(q, messages.VerdictApprove, "bob")
	before, after := until.Add(-time.Nanosecond), until
	granted, _, refused := d.Take(q, yes, before)
	if refused != nil || d.Holds(granted, before) != nil || d.Check(yes, before) != nil {
		t.Errorf("before: %v, %v, %v", refused, d.Holds(granted, before), d.Check(yes, before))
	}
	if _, _, refused := d.Take(q, yes, after); refused == nil || refused.Class != messages.ClassKeyExpired {
		t.Errorf("a decision after it: %v", refused)
	}
	if err := d.Holds(granted, after); err == nil {
		t.Error("a call starts on the word of a key that has expired")
	}
	if diff := cmp.Diff([]string{"alice", "carol"}, d.May(q.Pending(), after)); diff != "" {
		t.Error(diff)
	}
}

// The requester of a call, and people who have agreed already, may not answer.
func TestWhoMayAnswer(t *testing.T) {
	d := newDesk(t)
	p := question(messages.TierCritical).Pending() // its requester is support, and carol acts as support
	p.Agreed = []string{"alice"}
	if diff := cmp.Diff([]string{"bob"}, d.May(p, asked)); diff != "" {
		t.Error(diff)
	}
	if p.User = "BOB"; len(d.May(p, asked)) != 0 {
		t.Errorf("%v may answer what bob asks", d.May(p, asked))
	}
}
