package terminal

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/daemon"
)

// Wrap breaks lines that are longer than the screen, and marks each continuation. If the
// terminal broke the lines, an agent could choose arguments so that the rest of a line looks
// like a row of the approval view. A width of 0 breaks nothing.
func Wrap(text string, width int) string {
	const more = "  > "
	var out strings.Builder
	column, colour := 0, false
	for _, r := range text {
		wide := 1
		switch colour = colour || r == '\x1b'; {
		case colour:
			wide, colour = 0, r != 'm'
		case r >= 0x1100: // some of these are two columns wide; breaking early does no harm
			wide = 2
		}
		switch {
		case r == '\n':
			column = -wide
		case width > 0 && column+wide > width:
			out.WriteString("\n" + more)
			column = len(more)
		}
		out.WriteRune(r)
		column += wide
	}
	return out.String()
}

// Columns returns the width of a terminal in characters; 0: it is not known.
func Columns(w any) int {
	width := 0
	if f, ok := w.(*os.File); ok {
		width, _, _ = term.GetSize(int(f.Fd()))
	}
	return width
}

// IsTerminal reports whether w is an open file of a terminal.
func IsTerminal(w any) bool { return daemon.IsTerminal(w) }

// Colours reports whether output to w may have colours: w is a terminal, NO_COLOR is empty and TERM
// is not dumb.
func Colours(w any) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// leastLast is the least useful width of the last column, in characters.
const leastLast = 16

// Fit makes a table no wider than the screen, so that a row stays on one line. It cuts the last
// column. If that would leave fewer than leastLast characters, it first drops the columns named in
// spare, in that order.
func Fit(rows [][]string, width int, spare ...string) [][]string {
	last, left := len(rows[0])-1, width
	for column := range last {
		widest := 0
		for _, row := range rows {
			widest = max(widest, len([]rune(row[column])))
		}
		left -= widest + 2
	}
	if left < leastLast && len(spare) > 0 {
		if column := slices.Index(rows[0], spare[0]); column >= 0 {
			for i, row := range rows {
				rows[i] = slices.Delete(slices.Clone(row), column, column+1)
			}
		}
		return Fit(rows, width, spare[1:]...)
	}
	for _, row := range rows {
		row[last] = Clip(row[last], max(left, 1))
	}
	return rows
}

// WriteTable writes rows in columns to out.
func WriteTable(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return w.Flush()
}
