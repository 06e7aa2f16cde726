package progress

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// Log lines appear whole above the board while it is drawn, and after the answer if they come
// during a prompt. The board is on the screen once.
func TestLinesStandAboveTheBoard(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	term := terminaltest.New(t)
	d := NewDisplay(term.Tool, false)
	log := slog.New(slog.NewTextHandler(d, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	d.Take(start(0, "Grep"))
	d.Take(start(1, "issue_refund"))
	term.Expect("issue_refund  queued")
	log.Error("hook broken", "err", errors.New("no such file"))
	d.Take(ended(0, messages.StatusOK, 12, nil))
	log.Error("hook broken again", "err", errors.New("permission denied"))
	d.WithPrompt(func() {
		_, _ = io.WriteString(term.Tool, "approve? ")
		log.Error("meanwhile")
		term.Expect("approve? ")
		if strings.Contains(term.Text(), "meanwhile") {
			t.Error("a line of the log stands between the question and the answer")
		}
		term.Type("y\n")
		term.Expect("y\r\n")
	})
	d.Take(ended(1, messages.StatusOK, 12, nil))
	d.Close()
	fmt.Fprintln(d, "below")
	term.Expect("below\r\n")
	want := []string{
		`level=ERROR msg="hook broken" err="no such file"`,
		`level=ERROR msg="hook broken again" err="permission denied"`,
		`approve? y`,
		`level=ERROR msg=meanwhile`,
		`✓   0  Grep          ok in 12 ms`,
		`✓   1  issue_refund  ok in 12 ms`,
		`below`,
	}
	if diff := cmp.Diff(want, terminaltest.Rows(term.Text())); diff != "" {
		t.Error(diff)
	}
}

// A board on a screen that became narrower takes more rows than it has lines, and all of them are
// drawn over. Wide letters never make a line longer than the screen.
func TestABoardOnAScreenThatBecomesNarrower(t *testing.T) {
	d := &Display{drawn: []int{79, 10, 0}}
	for _, row := range []struct{ width, height, want int }{{100, 24, 3}, {79, 24, 3}, {78, 24, 4}, {40, 24, 4}, {20, 24, 6}, {20, 5, 4}} {
		if got := d.rows(row.width, row.height); got != row.want {
			t.Errorf("on %d columns it takes %d rows, want %d", row.width, got, row.want)
		}
	}
	if n := visible("\x1b[32m✓\x1b[0m 日本 ok"); n != 7 {
		t.Errorf("%d letters are seen", n)
	}
	d = &Display{}
	d.board.apply(start(0, "Grep"), time.Now())
	if text := string(d.drawing()); !strings.HasPrefix(text, noWrap+"\r\x1b[K·") || !strings.HasSuffix(text, "\n"+wrap) {
		t.Errorf("drawn as %q", text)
	}
	if text := string(d.drawing()); !strings.HasPrefix(text, "\x1b[1A"+noWrap) {
		t.Errorf("drawn over as %q", text)
	}
}

// If there are more calls than rows, the running calls stay visible.
func TestABoardHigherThanTheScreen(t *testing.T) {
	b := &board{colour: true}
	for i := range 8 {
		b.apply(start(i, "Grep"), time.Time{})
	}
	for _, e := range []messages.Event{ended(0, messages.StatusOK, 0, nil), ended(1, messages.StatusOK, 0, nil), ended(2, messages.StatusError, 0, &messages.Error{Code: messages.CodeToolError}), running(3, 1), asked(4)} {
		b.apply(e, time.Time{})
	}
	all := append([]boardLine{{title: "turn-7"}}, b.lines()...)
	lines := []string{"turn-7", "✓ 0", "✓ 1", "✗ 2", "▸ 3", "? 4", "· 5", "· 6", "· 7"}
	for most, want := range map[int][]string{
		9: lines,
		// Nine lines do not fit on eight rows. Two of them are hidden, because the count of the
		// hidden ones takes a row.
		8: {"turn-7", "✗ 2", "▸ 3", "? 4", "· 5", "· 6", "· 7", "  … and 2 ok"},
		6: {"turn-7", "✗ 2", "▸ 3", "? 4", "· 5", "  … and 2 ok, 2 queued"},
		4: {"turn-7", "▸ 3", "? 4", "  … and 2 ok, 3 queued, 1 not ok"},
		2: {"? 4", "  … and 2 ok, 3 queued, 1 not ok, 1 running"},
	} {
		got := inRoom(all, most, time.Time{}, 80)
		for i, line := range got {
			if words := strings.Fields(uncoloured(line)); strings.HasPrefix(line, "\x1b") {
				got[i] = words[0] + " " + words[1]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d lines: %s", most, diff)
		}
	}
}

// Only the part of a board that fits on the screen is rendered, ten times a second, however many
// calls wait.
func TestABoardOfManyCallsCostsLittle(t *testing.T) {
	b := &board{}
	for i := range messages.MaxCalls {
		b.apply(start(i, "Grep"), time.Time{})
	}
	most := 24 * 100
	if n := int(testing.AllocsPerRun(3, func() { inRoom(b.lines(), 24, time.Time{}, 80) })); n > most {
		t.Errorf("a frame of %d calls takes %d allocations, want at most %d", messages.MaxCalls, n, most)
	}
}
