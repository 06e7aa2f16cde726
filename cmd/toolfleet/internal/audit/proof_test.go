package audit

import (
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// A line about a question or decision is doubtful where a worker may have made it up: without a
// signature that holds, copied from another call, or on a subject that workers may write.
func TestDoubt(t *testing.T) {
	alice, err := approval.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	mallory, err := approval.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	approvers, err := approval.NewApprovers([]messages.Approver{{Name: "alice", Key: alice.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	question := messages.Approval{Tenant: "acme", Session: "s", Batch: "b", Index: 1, CallID: "c", Tool: "refund", ArgsHash: "h"}
	signed := func(key approval.Key, v messages.Verdict) *messages.Decision {
		d, err := key.Sign(approval.Answer(question, v, "alice"))
		if err != nil {
			t.Fatal(err)
		}
		return &d
	}
	line := func(kind messages.AuditType, d *messages.Decision, byWorker bool) audit.Entry {
		return audit.Entry{Key: wire.KeyOf("acme", "s", "b"), ByWorker: byWorker, Line: messages.AuditRecord{
			Type: kind, Tenant: "acme", Session: "s", Batch: "b", Index: 1, CallID: "c", Tool: "refund", Decision: d,
		}}
	}
	late, err := approval.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	bounded, err := approval.NewApprovers([]messages.Approver{
		{Name: "alice", Key: alice.Public(), Scopes: []messages.Scope{{Group: "g", Tools: []string{"other"}}}}, {Name: "late", Key: late.Public(), Expires: time.Unix(100, 0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if doubt := (proof{bounded, true}).doubt(line(messages.AuditDecided, signed(alice, messages.VerdictApprove), false)); !strings.Contains(doubt, "alice may not decide about refund") {
		t.Errorf("a decision out of scope: %q", doubt)
	}
	by, err := late.Sign(approval.Answer(question, messages.VerdictApprove, "late"))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int64]string{99: "", 100: "The key of late counted until"} {
		e := line(messages.AuditDecided, &by, false)
		e.Stored = time.Unix(at, 0)
		if doubt := (proof{bounded, true}).doubt(e); (want == "") != (doubt == "") || !strings.Contains(doubt, want) {
			t.Errorf("a decision at %d: %q", at, doubt)
		}
	}
	edit := signed(alice, messages.VerdictEdit)
	edit.Input = nil
	elsewhere := line(messages.AuditDecided, signed(alice, messages.VerdictApprove), true)
	elsewhere.Key = wire.KeyOf("acme", "s", "other")
	copied := line(messages.AuditDecided, signed(alice, messages.VerdictApprove), true)
	copied.Line.CallID = "other"
	for name, tc := range map[string]struct {
		entry       audit.Entry
		with, blind string // the doubt with and without a policy; "": none
	}{
		"signed, of a coordinator":    {line(messages.AuditDecided, signed(alice, messages.VerdictApprove), false), "", ""},
		"signed, of an old build":     {line(messages.AuditDecided, signed(alice, messages.VerdictDeny), true), "", "--policy"},
		"signed by another":           {line(messages.AuditDecided, signed(mallory, messages.VerdictApprove), true), "no approver", "--policy"},
		"unsigned, of a coordinator":  {line(messages.AuditDecided, &messages.Decision{V: 1, Tenant: "acme", Session: "s", Batch: "b", Index: 1, CallID: "c", Tool: "refund", By: "alice", Key: alice.Public()}, false), "no approver", ""},
		"without a decision":          {line(messages.AuditDecided, nil, false), "no decision", "no decision"},
		"a true one of another call":  {copied, "another call", "another call"},
		"a true one at another batch": {elsewhere, "another call", "another call"},
		"an edit, of a coordinator":   {line(messages.AuditDecided, edit, false), "", ""},
		"an edit, of a worker":        {line(messages.AuditDecided, edit, true), "cannot be checked", "cannot be checked"},
		"asked by a coordinator":      {line(messages.AuditAsked, nil, false), "", ""},
		"asked by a worker":           {line(messages.AuditAsked, nil, true), "any worker", "any worker"},
		"refused by a worker":         {line(messages.AuditRefused, nil, true), "any worker", "any worker"},
		"expired by a worker":         {line(messages.AuditExpired, nil, true), "any worker", "any worker"},
		"a worker's own":              {line(messages.AuditGranted, nil, true), "", ""},
	} {
		for _, check := range []struct {
			proof proof
			want  string
		}{{proof{approvers, true}, tc.with}, {proof{}, tc.blind}} {
			if doubt := check.proof.doubt(tc.entry); (check.want == "") != (doubt == "") || !strings.Contains(doubt, check.want) {
				t.Errorf("%s, with a policy %v: %q, want %q", name, check.proof.known, doubt, check.want)
			}
		}
	}
}

// The people in the line of an ended call come from its worker: each needs a decision that holds.
func TestAgreementNeedsDecisions(t *testing.T) {
	ended := messages.AuditRecord{Type: messages.AuditCall, Permission: &messages.Permission{Effect: "ask", By: []string{"alice", "bob"}}}
	decided := func(by, doubt string, v messages.Verdict) messages.AuditRecord {
		return messages.AuditRecord{Type: messages.AuditDecided, Doubt: doubt, Decision: &messages.Decision{By: by, Verdict: v}}
	}
	alice, bob := decided("alice", "", messages.VerdictApprove), decided("bob", "", messages.VerdictEdit)
	for name, tc := range map[string]struct {
		lines []messages.AuditRecord
		want  string
	}{
		"both":              {[]messages.AuditRecord{alice, bob, ended}, ""},
		"one is missing":    {[]messages.AuditRecord{alice, ended}, "bob"},
		"one is doubtful":   {[]messages.AuditRecord{alice, decided("bob", "forged", messages.VerdictApprove), ended}, "bob"},
		"one has denied it": {[]messages.AuditRecord{decided("alice", "", messages.VerdictDeny), bob, ended}, "alice"},
	} {
		if got := agreed(ended, tc.lines); (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
