package audit

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// Lines come in the order in which they were stored and are printed by time, in aligned columns.
func TestAuditTable(t *testing.T) {
	began := time.Date(2026, 11, 22, 2, 3, 27, 0, time.UTC)
	called := func(second int, session string) messages.AuditRecord {
		return messages.AuditRecord{
			Type: messages.AuditCall, Time: began.Add(time.Duration(second) * time.Second), Session: messages.SessionID(session), Batch: "turn-7",
			CallID: "toolu_01A", Tool: "issue_refund", Status: messages.StatusOutcomeUnknown, Worker: "a-worker-with-a-rather-long-name",
			Attempt: 1, Started: began, // its worker was lost: no duration
		}
	}
	lines := []messages.AuditRecord{called(2, "s"), called(1, "a-session-"+strings.Repeat("long-", 8)), called(3, "s"), called(2, "second")}
	var out bytes.Buffer
	a := &command.App{Stdout: &out}
	fmt.Fprintln(&out, "== a page")
	if err := printRecords(a, lines); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&out, "== followed")
	followed := &table{a: a, cuts: true}
	for _, l := range lines {
		if err := followed.now(l); err != nil {
			t.Fatal(err)
		}
	}
	terminaltest.Golden(t, "table.txt", out.String())
}

// The output is no terminal: no cell of the table is cut, however long it is, because a
// program may look up an id from it.
func TestAuditTableIsWholeElsewhere(t *testing.T) {
	long := func(what string) string { return what + strings.Repeat("-", 200) + "end" }
	l := messages.AuditRecord{
		Type: messages.AuditCall, Session: messages.SessionID(long("session")), Batch: messages.BatchID(long("batch")), CallID: messages.CallID(long("call")),
		Tool: long("tool"), Status: "ok", Worker: long("worker"), Permission: &messages.Permission{Effect: "allow", By: []string{long("person")}},
	}
	short := messages.AuditRecord{Type: messages.AuditCall, Time: l.Time.Add(-time.Second)}
	for how, put := range map[string]func(t *table, l messages.AuditRecord) error{
		"a page":       (*table).add,
		"after a page": func(t *table, l messages.AuditRecord) error { return errors.Join(t.add(short), t.end(), t.add(l)) },
		"followed":     (*table).now,
	} {
		var out bytes.Buffer
		table := newTable(&command.App{Stdout: &out})
		if err := errors.Join(put(table, l), table.end()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{long("session") + "/" + long("batch"), long("call"), long("tool"), long("person"), long("worker")} {
			if !strings.Contains(out.String(), want+" ") && !strings.Contains(out.String(), want+"\n") {
				t.Errorf("%s: %.10s is cut:\n%s", how, want, out.String())
			}
		}
	}
}

// The table holds one page of lines, however many come, and a later, wider line does not move the
// columns.
func TestAuditTableIsBounded(t *testing.T) {
	var out bytes.Buffer
	table := &table{a: &command.App{Stdout: &out}, cuts: true}
	began := time.Date(2026, 11, 22, 2, 3, 27, 0, time.UTC)
	const all = 3 * pageSize
	for i := range all {
		l := messages.AuditRecord{Type: messages.AuditCall, Time: began.Add(time.Duration(i^1) * time.Second), Session: "s", Batch: "b", CallID: "c", Tool: "t", Status: "ok"}
		if i == all-1 {
			l.Tool = "a_tool_with_a_long_name"
		}
		if err := table.add(l); err != nil {
			t.Fatal(err)
		}
		if len(table.held) > pageSize {
			t.Fatalf("%d lines are held", len(table.held))
		}
	}
	if err := table.end(); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(rows) != all+1 {
		t.Fatalf("%d rows, want %d", len(rows), all+1)
	}
	for i, row := range rows[1:] {
		if want := terminal.Timestamp(began.Add(time.Duration(i) * time.Second)); !strings.HasPrefix(row, want) {
			t.Fatalf("row %d is of another time than %s: %s", i, want, row)
		}
		if []rune(row)[strings.Index(rows[0], "STATUS")] != 'o' {
			t.Fatalf("the status stands elsewhere: %s", row)
		}
	}
}
