package audit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The audit lines of one run of a call form one group. Another call of the batch, and another
// run with the same ids, have their own groups.
func TestSplitRuns(t *testing.T) {
	key, session := wire.KeyOf("_", "s", "b"), wire.KeyOf("_", "other", "b")
	var entries []audit.Entry
	put := func(key wire.BatchKey, index int, kind messages.AuditType, approval string) {
		entries = append(entries, audit.Entry{Seq: uint64(len(entries) + 1), Key: key, Line: messages.AuditRecord{Type: kind, Index: index, Approval: approval}})
	}
	put(key, 0, messages.AuditAsked, "q1")
	put(session, 0, messages.AuditAsked, "q2")
	put(key, 0, messages.AuditDecided, "q1")
	put(key, 0, messages.AuditCall, "q1")
	put(key, 1, messages.AuditCall, "")
	put(key, 0, messages.AuditRefused, "")   // too late
	put(key, 0, messages.AuditGranted, "q1") // stored late
	put(key, 0, messages.AuditAsked, "q3")   // another run: the ids are used again
	put(key, 0, messages.AuditCall, "q3")
	put(key, 0, messages.AuditCall, "") // a third run
	put(key, -1, messages.AuditBatchRefused, "")
	var got []string
	for _, c := range splitRuns(entries, map[line]bool{{9, 0}: true}) {
		said := fmt.Sprint(c.ended, c.asks)
		for _, l := range c.lines {
			said += fmt.Sprintf(" %s/%s", l.Type, l.Approval)
		}
		got = append(got, said)
	}
	want := []string{
		"true false approval_asked/q1 approval_decided/q1 call/q1 decision_refused/ approval_executed/q1",
		"false false approval_asked/q2",
		"true false call/",
		"true true approval_asked/q3 call/q3",
		"true false call/",
		"false false batch_refused/",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// The history of a call says what was decided and what ran, and no more than the lines show.
func TestCallHistory(t *testing.T) {
	began := time.Date(2026, 11, 22, 2, 3, 27, 0, time.UTC)
	line := func(kind messages.AuditType, more func(*messages.AuditRecord)) messages.AuditRecord {
		l := messages.AuditRecord{
			Type: kind, Time: began, Tenant: "_", Session: "s", Batch: "b", CallID: "c", Tool: "issue_refund", ToolDigest: "0123456789abcdef", ArgsHash: "aaaa",
			Permission: &messages.Permission{Effect: "ask", Source: "person", Rule: "a large refund", Tier: messages.TierHigh},
		}
		if more != nil {
			more(&l)
		}
		return l
	}
	says := func(by string, verdict messages.Verdict) *messages.Decision {
		return &messages.Decision{By: by, Verdict: verdict}
	}
	asked := line(messages.AuditAsked, func(l *messages.AuditRecord) { l.Approval = "b384b384b384b384" })
	forged := messages.AuditRecord{
		Type: messages.AuditRefused, Time: began.Add(time.Second), Tenant: "_", Session: "s", Batch: "b", ArgsHash: "ffff",
		Decision: says("mallory", messages.VerdictApprove), Refusal: &messages.Refusal{Class: messages.ClassBadSignature},
	}
	agreed := line(messages.AuditDecided, func(l *messages.AuditRecord) {
		l.Decision, l.Permission.By = says("ann", messages.VerdictApprove), []string{"ann"}
	})
	denied := line(messages.AuditDecided, func(l *messages.AuditRecord) {
		l.Decision, l.Permission.Effect, l.Permission.By = says("bob", messages.VerdictDeny), "deny", []string{"ann", "bob"}
	})
	granted := line(messages.AuditGranted, func(l *messages.AuditRecord) { l.Permission.By, l.TraceID = []string{"ann"}, "79678d4c" })
	void := line(messages.AuditVoid, func(l *messages.AuditRecord) {
		l.Permission.Effect, l.Permission.Source, l.Refusal = "deny", "rule", &messages.Refusal{Class: messages.ClassApprovalMismatch}
	})
	ended := func(status messages.Status, code messages.Code, attempt int, more func(*messages.AuditRecord)) messages.AuditRecord {
		return line(messages.AuditCall, func(l *messages.AuditRecord) {
			l.Status, l.Code, l.Attempt, l.Worker, l.Started, l.DurationMS = status, code, attempt, "w1", began, 0.142
			if more != nil {
				more(l)
			}
		})
	}
	by := func(effect string, names ...string) func(*messages.AuditRecord) {
		return func(l *messages.AuditRecord) { l.Permission.Effect, l.Permission.By = effect, names }
	}
	nowhere := func(l *messages.AuditRecord) { l.Permission, l.Worker = nil, "" }
	var out strings.Builder
	for _, tt := range []struct {
		name  string
		lines []messages.AuditRecord
	}{
		{"waits, and a forged decision was refused", []messages.AuditRecord{asked, forged}},
		{"somebody agreed", []messages.AuditRecord{asked, agreed}},
		{"denied, and its batch is open", []messages.AuditRecord{asked, agreed, denied, forged}},
		{"runs", []messages.AuditRecord{asked, agreed, granted, forged}},
		{"void", []messages.AuditRecord{asked, agreed, void}},
		{"ended, and a decision came late", []messages.AuditRecord{asked, agreed, granted, ended(messages.StatusOK, "", 1, by("ask", "ann")), forged}},
		{"nobody can be asked", []messages.AuditRecord{ended(messages.StatusDenied, messages.CodeApprovalRequired, 0, nil)}},
		{"denied by the policy, of a read", []messages.AuditRecord{ended(messages.StatusDenied, messages.CodePolicyDenied, 1, func(l *messages.AuditRecord) {
			l.Permission = &messages.Permission{Effect: "deny", Source: "rule", Rule: "too large a refund"}
		})}},
		{"nobody answered", []messages.AuditRecord{asked, ended(messages.StatusExpired, messages.CodeApprovalExpired, 0, nil)}},
		{"one of two answered", []messages.AuditRecord{asked, agreed, ended(messages.StatusExpired, messages.CodeApprovalExpired, 0, by("ask", "ann"))}},
		{"allowed, and lost", []messages.AuditRecord{ended(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, 1, func(l *messages.AuditRecord) {
			l.Permission, l.DurationMS = &messages.Permission{Effect: "allow", Source: "default"}, 0
		})}},
		{"no such tool", []messages.AuditRecord{ended(messages.StatusUnknownTool, messages.CodeUnknownTool, 0, nowhere)}},
		{"lost, and not much is known", []messages.AuditRecord{ended(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, 1, nowhere)}},
	} {
		fmt.Fprintf(&out, "== %s\n", tt.name)
		if err := (&command.App{Stdout: &out}).Table(callHistory(&config.Config{}, tt.lines)); err != nil {
			t.Fatal(err)
		}
	}
	terminaltest.Golden(t, "history.txt", out.String())
}
