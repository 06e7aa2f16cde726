package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

var control = regexp.MustCompile(`^\x1b\[([0-9;]*)([A-Za-z])`)

// rows is what stands on a screen of any size after all of the text was put out, line by line.
func rows(text string) (lines []string) {
	screen, row, column := [][]rune{nil}, 0, 0
	for len(text) > 0 {
		if m := control.FindStringSubmatch(text); m != nil {
			text = text[len(m[0]):]
			switch n, _ := strconv.Atoi(m[1]); m[2] {
			case "A":
				row = max(0, row-n)
			case "J":
				screen = screen[:row+1]
				fallthrough
			case "K":
				screen[row] = screen[row][:min(column, len(screen[row]))]
			}
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch r {
		case '\r':
			column = 0
		case '\n':
			if row++; row == len(screen) {
				screen = append(screen, nil)
			}
		default:
			for len(screen[row]) <= column {
				screen[row] = append(screen[row], ' ')
			}
			screen[row][column] = r
			column++
		}
	}
	for _, line := range screen {
		if text := strings.TrimRight(string(line), " "); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}

// What is logged while the board is drawn stands above it, whole, and what is logged while a person is asked comes
// when they have answered. The board is there once.
func TestLinesStandAboveTheBoard(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	term := newTerminal(t)
	d := newDisplay(&app{stderr: term.tool}, false)
	log := slog.New(slog.NewTextHandler(d, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	d.take(start(0, "Grep"))
	d.take(start(1, "issue_refund"))
	term.expect("issue_refund  queued")
	log.Error("hook broken", "err", errors.New("no such file"))
	d.take(ended(0, messages.StatusOK, 12, nil))
	log.Error("hook broken again", "err", errors.New("permission denied"))
	d.ask(func() {
		_, _ = io.WriteString(term.tool, "approve? ")
		log.Error("meanwhile")
		term.expect("approve? ")
		if strings.Contains(term.text(), "meanwhile") {
			t.Error("a line of the log stands between the question and the answer")
		}
		term.types("y\n")
		term.expect("y")
	})
	d.take(ended(1, messages.StatusOK, 12, nil))
	d.close()
	fmt.Fprintln(d, "below")
	term.expect("below")
	want := []string{
		`level=ERROR msg="hook broken" err="no such file"`,
		`level=ERROR msg="hook broken again" err="permission denied"`,
		`approve? y`,
		`level=ERROR msg=meanwhile`,
		`✓   0  Grep          ok in 12 ms`,
		`✓   1  issue_refund  ok in 12 ms`,
		`below`,
	}
	if diff := cmp.Diff(want, rows(term.text())); diff != "" {
		t.Error(diff)
	}
}
