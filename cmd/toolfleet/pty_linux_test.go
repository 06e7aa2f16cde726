package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// atTerminal runs a command at the terminal with stdout captured, and returns stdout and the exit
// status.
func atTerminal(term *terminaltest.Terminal, args ...string) (out *bytes.Buffer, ended <-chan int) {
	out = &bytes.Buffer{}
	status := make(chan int, 1)
	go func() { status <- run(args, term.Tool, out, term.Tool) }()
	return out, status
}

func TestRunAsksAtTheTerminal(t *testing.T) {
	for _, tc := range []struct {
		name   string
		dialog []string // what appears, what is typed
		status messages.Status
		ledger string
	}{
		{"approve", []string{"[a]pprove, [d]eny, [e]dit? ", "a\n"}, messages.StatusOK, `"amount":149.99`},
		{"deny", []string{"[e]dit? ", "x\n", "[e]dit? ", "abort\n", "[e]dit? ", "\n", "[e]dit? ", "d\n", "why not?", "\n", "needs a reason", "", "[e]dit? ", "d\n", "why not?", "Too much.\n"}, messages.StatusDenied, ""},
		{"Ctrl-D", []string{"[e]dit? ", "\x04", "expires, in ", "", "asked again", "\n", "[e]dit? ", "d\n", "why not?", "\x04", "[e]dit? ", "a\n"}, messages.StatusOK, `"amount":149.99`},
		{"edit", []string{"[e]dit? ", "e\n", "+   \"amount\": 99.5", "", "these arguments? [y/N]", "y\n", "checked once more before it runs: issue_refund amount=99.5", ""}, messages.StatusOK, `"amount":99.5`},
		{"edit, no after all", []string{"[e]dit? ", "e\n", "these arguments? [y/N]", "n\n", "[e]dit? ", "d\n", "why not?", "No.\n"}, messages.StatusDenied, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, args := refund(t)
			t.Setenv("TOOLFLEET_CONFIG", "none")
			t.Setenv("EDITOR", "sed -i s/149.99/99.5/")
			t.Setenv("NO_COLOR", "1")
			term := terminaltest.New(t)
			out, ended := atTerminal(term, args...)
			term.Expect("149.99\r\n")
			term.Expect("More than 100 leaves the house")
			for i := 0; i < len(tc.dialog); i += 2 {
				term.Expect(tc.dialog[i])
				term.Type(tc.dialog[i+1])
			}
			if status := <-ended; status != command.Done {
				t.Fatalf("the command ends with %d", status)
			}
			fmt.Fprintln(term.Tool, "below")
			term.Expect("below\r\n") // the end of the output
			var reply messages.Reply
			if err := json.Unmarshal(out.Bytes(), &reply); err != nil || len(reply.Results) != 3 || reply.Results[1].Status != tc.status {
				t.Errorf("the reply: %v, want the refund %s\n%s", err, tc.status, out)
			}
			if board := strings.Join(terminaltest.Rows(term.Text()), "\n"); strings.Count(board, "   1  issue_refund  ") != 1 {
				t.Errorf("the board is not there once:\n%s", board)
			}
			ledger, _ := os.ReadFile(filepath.Join(dir, "ledger", "refunds")) // no file: nothing was refunded
			if tc.ledger == "" && len(ledger) > 0 || !strings.Contains(string(ledger), tc.ledger) || strings.Count(string(ledger), "\n") > 1 {
				t.Errorf("the ledger holds %q, want one line with %q", ledger, tc.ledger)
			}
		})
	}
}
