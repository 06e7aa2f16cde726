package main

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/messages"
)

// The lines of a call are one story. Another call of its batch has another, and so has another run under the same ids.
func TestRetell(t *testing.T) {
	key, session := messages.KeyOf("_", "s", "b"), messages.KeyOf("_", "other", "b")
	var entries []audit.Entry
	put := func(key messages.BatchKey, index int, kind messages.AuditType, approval string) {
		entries = append(entries, audit.Entry{Seq: uint64(len(entries) + 1), Key: key, Line: messages.AuditRecord{Type: kind, Index: index, Approval: approval}})
	}
	put(key, 0, messages.AuditAsked, "q1")
	put(session, 0, messages.AuditAsked, "q2")
	put(key, 0, messages.AuditDecided, "q1")
	put(key, 0, messages.AuditCall, "q1")
	put(key, 1, messages.AuditCall, "")
	put(key, 0, messages.AuditRefused, "")       // too late
	put(key, 0, messages.AuditGranted, "q1")     // stored late
	put(key, 0, messages.AuditAsked, "q3")       // the id was given again
	put(key, 0, messages.AuditCall, "q3")        //
	put(key, 0, messages.AuditCall, "")          // and again
	put(key, -1, messages.AuditBatchRefused, "") //
	var got []string
	for _, c := range retell(entries, map[line]bool{{9, 0}: true}) {
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
		t.Errorf("stories (-want +got):\n%s", diff)
	}
}
