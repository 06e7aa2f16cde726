package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

var auditHeader = []string{"TIME", "SESSION/BATCH", "CALL", "TOOL", "STATUS", "DECIDED", "TOOK", "ATTEMPT", "WORKER"}

// auditWidths are of the columns where lines are shown as they come: nobody knows how wide the widest will be. The last has no end.
var auditWidths = []int{20, 36, 24, 20, 18, 24, 7, 7, 0}

// auditPage is how many lines are held back: they come out in the order of their times, which is not quite the order in which they
// were stored, and the first of them say how wide the columns are.
const auditPage = 1000

// auditTable prints lines in columns. What is too long for its column is cut where a person looks at it. Elsewhere nothing is: a
// program that is given a part of an id finds nothing by it.
type auditTable struct {
	a      *app
	cuts   bool
	held   []messages.AuditRecord // by time
	widths []int                  // nil until something is printed
}

func (a *app) auditTable() *auditTable { return &auditTable{a: a, cuts: isTerminal(a.stdout)} }

// add takes a line. Whoever has added all calls end.
func (t *auditTable) add(l messages.AuditRecord) error {
	i, _ := slices.BinarySearchFunc(t.held, l, func(held, l messages.AuditRecord) int {
		if held.Time.After(l.Time) {
			return 1
		}
		return -1 // behind those of the same time
	})
	t.held = slices.Insert(t.held, i, l)
	if len(t.held) <= auditPage {
		return nil
	}
	return t.let(1)
}

func (t *auditTable) end() error { return t.let(len(t.held)) }

// let prints the first n lines that are held.
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
				t.widths[i] = max(t.widths[i], min(len([]rune(cell)), 80)) // one that is longer sticks out
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

// now prints a line that has just come.
func (t *auditTable) now(l messages.AuditRecord) error {
	if t.widths == nil {
		t.widths = auditWidths
		if err := t.print(auditHeader); err != nil {
			return err
		}
	}
	return t.print(auditRow(l, t.cuts))
}

// auditLines prints a few lines.
func (a *app) auditLines(lines []messages.AuditRecord) error {
	t := a.auditTable()
	var err error
	for _, l := range lines {
		err = errors.Join(err, t.add(l))
	}
	return errors.Join(err, t.end())
}
