package terminal

import (
	"strings"
	"testing"
)

func TestTablesFitTheScreen(t *testing.T) {
	table := func() [][]string {
		return [][]string{{"ID", "AGE", "ASKED BY", "CALL"}, {"0123456789", "1m20s", "_/refund", strings.Repeat("x", 100)}}
	}
	for _, tc := range []struct {
		width   int
		columns string
		last    string
	}{
		{200, "ID AGE ASKED BY CALL", strings.Repeat("x", 100)},
		{60, "ID AGE ASKED BY CALL", strings.Repeat("x", 30) + "…"},
		{44, "ID ASKED BY CALL", strings.Repeat("x", 21) + "…"},
		{30, "ID CALL", strings.Repeat("x", 17) + "…"},
		{18, "ID CALL", strings.Repeat("x", 5) + "…"},
	} {
		rows := Fit(table(), tc.width, "AGE", "ASKED BY", "AGREED")
		last := len(rows[0]) - 1
		if got := strings.Join(rows[0], " "); got != tc.columns || rows[1][last] != tc.last {
			t.Errorf("%d characters: columns %s, and the last is %q; want %s and %q", tc.width, got, rows[1][last], tc.columns, tc.last)
		}
		var out strings.Builder
		if err := WriteTable(&out, rows); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > tc.width {
				t.Errorf("%d characters: a line of %d: %s", tc.width, n, line)
			}
		}
	}
}
