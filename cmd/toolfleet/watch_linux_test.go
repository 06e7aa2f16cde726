package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The connection of a watcher is lost and comes back: the watcher is told both. The lines
// stand above the board if stderr is the same screen, otherwise on stderr, and never on
// stdout.
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
			happened := []messages.Event{{Type: messages.EventStart, Tool: "Grep"}, {Type: messages.EventRunning, Attempt: 1}}
			for i := range happened {
				happened[i].V, happened[i].Session, happened[i].Batch = 1, "s", "turn-7"
			}
			answer("turn-7", messages.Timeline{V: 1, Session: "s", Batch: "turn-7", Status: "running", Events: happened})

			term := terminaltest.New(t)
			cmd := exec.CommandContext(t.Context(), "toolfleet", "watch", "s")
			cmd.Env = append(os.Environ(), "TOOLFLEET_CONFIG=none", "GORACE=atexit_sleep_ms=0", "NO_COLOR=1", "TERM=xterm", "NATS_URL="+srv.URL())
			var lines strings.Builder
			cmd.Stdout, cmd.Stderr = &lines, term.Tool
			first := "watching session s"
			if where == "above the board" {
				cmd.Stdout, first = term.Tool, "0  Grep  running"
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			term.Expect(first)
			srv.Stop()
			term.Expect(`msg="connection to NATS lost"`)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			term.Expect(`msg="connected to NATS again"`)
			_ = cmd.Process.Signal(os.Interrupt)
			if err := cmd.Wait(); err != nil {
				t.Errorf("watch ends with %v", err)
			}
			fmt.Fprintln(term.Tool, "below")
			term.Expect("below\r\n")
			if strings.Contains(lines.String(), "NATS") {
				t.Errorf("stdout has a line of the log:\n%s", &lines)
			}
			if where != "above the board" {
				return
			}
			screen := terminaltest.Rows(term.Text())
			end := screen[max(0, len(screen)-3):]
			if board := strings.Join(screen, "\n"); strings.Count(board, "0  Grep  running") != 1 || end[0] != "turn-7" || !strings.Contains(end[1], "Grep") {
				t.Errorf("the board is not there once, at the end:\n%s", board)
			}
		})
	}
}
