package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

var auditHeader = []string{"TIME", "SESSION/BATCH", "CALL", "TOOL", "STATUS", "DECIDED", "TOOK", "ATTEMPT", "WORKER"}

// auditWidths are the column widths, in characters, for lines that are printed as they arrive: the
// widest cell is not known then. The last column is unbounded.
var auditWidths = []int{20, 36, 24, 20, 18, 24, 7, 7, 0}

// auditPage is how many lines the table holds back. Lines are printed by time, which differs
// slightly from the order in which they were stored, and the first page sets the column widths.
const auditPage = 1000

// auditTable prints audit lines in columns. On a terminal it cuts cells that are too long.
// Elsewhere it cuts nothing: a program could not look up a shortened id.
type auditTable struct {
	a      *app
	cuts   bool
	held   []messages.AuditRecord // by time
	widths []int                  // nil until the first line is printed
}

func newAuditTable(a *app) *auditTable { return &auditTable{a: a, cuts: isTerminal(a.stdout)} }

// add takes a line and prints the oldest one if more than auditPage are held. The caller calls end
// after the last.
func (t *auditTable) add(l messages.AuditRecord) error {
	i, _ := slices.BinarySearchFunc(t.held, l, func(held, l messages.AuditRecord) int {
		if held.Time.After(l.Time) {
			return 1
		}
		return -1 // after lines of the same time
	})
	t.held = slices.Insert(t.held, i, l)
	if len(t.held) <= auditPage {
		return nil
	}
	return t.let(1)
}

func (t *auditTable) end() error { return t.let(len(t.held)) }

// let prints the first n held lines, and the header before the first of all.
func (t *auditTable) let(n int) error {
	if n == 0 {
		return nil
	}
	if t.widths == nil {
		t.widths = make([]int, len(auditHeader))
		for i, name := range auditHeader {
			t.widths[i] = len(name)
		}
		for _, l := range t.held {
			for i, cell := range auditRow(l, t.cuts) {
				// On a terminal the rest of a wider cell is cut; elsewhere it sticks out.
				t.widths[i] = max(t.widths[i], min(len([]rune(cell)), 80))
			}
		}
		t.widths[len(t.widths)-1] = 0
		if err := t.print(auditHeader); err != nil {
			return err
		}
	}
	for _, l := range t.held[:n] {
		if err := t.print(auditRow(l, t.cuts)); err != nil {
			return err
		}
	}
	t.held = slices.Delete(t.held, 0, n)
	return nil
}

func (t *auditTable) print(row []string) error {
	var out strings.Builder
	for i, cell := range row {
		if t.cuts && t.widths[i] > 0 {
			cell = clip(cell, t.widths[i])
		}
		fmt.Fprintf(&out, "%-*s  ", t.widths[i], cell)
	}
	_, err := fmt.Fprintln(t.a.stdout, strings.TrimRight(out.String(), " "))
	return err
}

// now prints a line at once, without holding it back.
func (t *auditTable) now(l messages.AuditRecord) error {
	if t.widths == nil {
		t.widths = auditWidths
		if err := t.print(auditHeader); err != nil {
			return err
		}
	}
	return t.print(auditRow(l, t.cuts))
}

// printRecords prints a few lines as a table.
func printRecords(a *app, lines []messages.AuditRecord) error {
	t := newAuditTable(a)
	var err error
	for _, l := range lines {
		err = errors.Join(err, t.add(l))
	}
	return errors.Join(err, t.end())
}
