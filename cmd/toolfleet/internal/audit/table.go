package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/messages"
)

var header = []string{"TIME", "SESSION/BATCH", "CALL", "TOOL", "STATUS", "DECIDED", "TOOK", "ATTEMPT", "WORKER"}

// followWidths are the fixed column widths, in characters, for lines that are printed as they
// arrive. The widest cell is not known at that time. 0: the last column is unbounded.
var followWidths = []int{20, 36, 24, 20, 18, 24, 7, 7, 0}

// pageSize is how many lines the table holds before it prints. It needs them to print lines by
// time, because they were stored in a slightly different order. The lines of the first page
// also set the column widths.
const pageSize = 1000

// table prints audit lines in columns. It cuts cells that are too long only on a terminal, because
// a program could not look up a shortened id.
type table struct {
	a      *command.App
	cuts   bool
	held   []messages.AuditRecord // by time
	widths []int                  // nil until the first line is printed
}

func newTable(a *command.App) *table { return &table{a: a, cuts: terminal.IsTerminal(a.Stdout)} }

// add adds a line, and prints the oldest line if the table holds more than pageSize lines.
// After the last line the caller calls end.
func (t *table) add(l messages.AuditRecord) error {
	i, _ := slices.BinarySearchFunc(t.held, l, func(held, l messages.AuditRecord) int {
		if held.Time.After(l.Time) {
			return 1
		}
		return -1 // after lines of the same time
	})
	t.held = slices.Insert(t.held, i, l)
	if len(t.held) <= pageSize {
		return nil
	}
	return t.let(1)
}

func (t *table) end() error { return t.let(len(t.held)) }

// let prints the first n held lines, and the header before the first of all.
func (t *table) let(n int) error {
	if n == 0 {
		return nil
	}
	if t.widths == nil {
		t.widths = make([]int, len(header))
		for i, name := range header {
			t.widths[i] = len(name)
		}
		for _, l := range t.held {
			for i, cell := range cells(l, t.cuts) {
				// A wider cell is cut on a terminal, and overflows elsewhere.
				t.widths[i] = max(t.widths[i], min(len([]rune(cell)), 80))
			}
		}
		t.widths[len(t.widths)-1] = 0
		if err := t.print(header); err != nil {
			return err
		}
	}
	for _, l := range t.held[:n] {
		if err := t.print(cells(l, t.cuts)); err != nil {
			return err
		}
	}
	t.held = slices.Delete(t.held, 0, n)
	return nil
}

func (t *table) print(row []string) error {
	var out strings.Builder
	for i, cell := range row {
		if t.cuts && t.widths[i] > 0 {
			cell = terminal.Clip(cell, t.widths[i])
		}
		fmt.Fprintf(&out, "%-*s  ", t.widths[i], cell)
	}
	_, err := fmt.Fprintln(t.a.Stdout, strings.TrimRight(out.String(), " "))
	return err
}

// now prints a line at once, without holding it back.
func (t *table) now(l messages.AuditRecord) error {
	if t.widths == nil {
		t.widths = followWidths
		if err := t.print(header); err != nil {
			return err
		}
	}
	return t.print(cells(l, t.cuts))
}

// printRecords prints a few lines as a table.
func printRecords(a *command.App, lines []messages.AuditRecord) error {
	t := newTable(a)
	var err error
	for _, l := range lines {
		err = errors.Join(err, t.add(l))
	}
	return errors.Join(err, t.end())
}
