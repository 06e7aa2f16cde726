package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

var control = regexp.MustCompile(`^\x1b\[\??([0-9;]*)([A-Za-z])`)

// rows returns what a screen of any size shows after all of the text was printed, line by line.
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

// Log lines appear whole above the board while it is drawn, and after the answer if they come
// during a prompt. The board is on the screen once.
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
		term.expect("y\r\n")
	})
	d.take(ended(1, messages.StatusOK, 12, nil))
	d.close()
	fmt.Fprintln(d, "below")
	term.expect("below\r\n")
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

// A watcher is told that the connection is lost and that it is back: above the board if stderr is
// the same screen, and never on stdout otherwise.
func TestWatchTellsOfALostConnection(t *testing.T) {
	for _, where := range []string{"above the board", "beside the lines"} {
		t.Run(where, func(t *testing.T) {
			srv := natstest.Server(t, natstest.Fast, natstest.Listening)
			conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv, Name: "test"})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answer := func(batch messages.BatchID, with any) {
				t.Helper()
				stop, err := conn.Subscribe(conn.Names().Of(wire.VerbGet, wire.KeyOf(messages.OneTenant, "s", batch)), "", func(m bus.Msg) {
					_ = conn.Respond(m, nil, rawjson.MustMarshal(with))
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(stop)
			}
			answer(messages.NoBatch, messages.BatchList{V: 1, Batches: []messages.ListedBatch{{Batch: "turn-7", Status: "running", Accepted: time.Now()}}})
			happened := []messages.Event{start(0, "Grep"), running(0, 1)}
			for i := range happened {
				happened[i].V, happened[i].Session, happened[i].Batch = 1, "s", "turn-7"
			}
			answer("turn-7", messages.Timeline{V: 1, Session: "s", Batch: "turn-7", Status: "running", Events: happened})

			term := newTerminal(t)
			cmd := exec.CommandContext(t.Context(), "toolfleet", "watch", "s")
			cmd.Env = append(os.Environ(), "TOOLFLEET_CONFIG=none", "GORACE=atexit_sleep_ms=0", "NO_COLOR=1", "TERM=xterm", "NATS_URL="+srv.URL())
			var lines strings.Builder
			cmd.Stdout, cmd.Stderr = &lines, term.tool
			first := "watching session s"
			if where == "above the board" {
				cmd.Stdout, first = term.tool, "0  Grep  running"
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			term.expect(first)
			srv.Stop()
			term.expect(`msg="connection to NATS lost"`)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			term.expect(`msg="connected to NATS again"`)
			_ = cmd.Process.Signal(os.Interrupt)
			if err := cmd.Wait(); err != nil {
				t.Errorf("watch ends with %v", err)
			}
			fmt.Fprintln(term.tool, "below")
			term.expect("below\r\n")
			if strings.Contains(lines.String(), "NATS") {
				t.Errorf("stdout has a line of the log:\n%s", &lines)
			}
			if where != "above the board" {
				return
			}
			screen := rows(term.text())
			end := screen[max(0, len(screen)-3):]
			if board := strings.Join(screen, "\n"); strings.Count(board, "0  Grep  running") != 1 || end[0] != "turn-7" || !strings.Contains(end[1], "Grep") {
				t.Errorf("the board is not there once, at the end:\n%s", board)
			}
		})
	}
}

// A board on a screen that became narrower takes more rows than it has lines, and all of them are
// drawn over. Wide letters never make a line longer than the screen.
func TestABoardOnAScreenThatBecomesNarrower(t *testing.T) {
	d := &display{app: &app{}, drawn: []int{79, 10, 0}}
	for _, row := range []struct{ width, height, want int }{{100, 24, 3}, {79, 24, 3}, {78, 24, 4}, {40, 24, 4}, {20, 24, 6}, {20, 5, 4}} {
		if got := d.rows(row.width, row.height); got != row.want {
			t.Errorf("on %d columns it takes %d rows, want %d", row.width, got, row.want)
		}
	}
	if n := visible("\x1b[32m✓\x1b[0m 日本 ok"); n != 7 {
		t.Errorf("%d letters are seen", n)
	}
	d = &display{app: &app{}}
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
		// Two are hidden, since the count takes a row.
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
