package approvals

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// An editor is killed because its question was answered elsewhere: the terminal shows typed
// text again.
func TestAnEditorThatIsEnded(t *testing.T) {
	tty := terminaltest.New(t)
	script := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nstty raw -echo\necho raw\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VISUAL", script)
	before, err := term.GetState(int(tty.Tool.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := editArguments(ctx, terminal.PromptAt(tty.Tool, tty.Tool), json.RawMessage("{}"))
		ended <- err
	}()
	tty.Expect("raw")
	end()
	if <-ended == nil {
		t.Error("an editor that was killed has edited something")
	}
	if after, err := term.GetState(int(tty.Tool.Fd())); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}

// The last approver is asked for a ticket until there is one; an earlier approver may leave it
// empty.
func TestTicketsAreAskedFor(t *testing.T) {
	agreed := []messages.Decision{{By: "ann", Verdict: messages.VerdictApprove}}
	named := []messages.Decision{{By: "ann", Verdict: messages.VerdictApprove, Ticket: "T-1"}}
	for _, tc := range []struct {
		name    string
		before  []messages.Decision
		verdict messages.Verdict
		dialog  []string
		want    string
	}{
		{"the first leaves it", nil, messages.VerdictApprove, []string{"Enter to leave it", "\n"}, ""},
		{"the first names it", nil, messages.VerdictApprove, []string{"Enter to leave it", "T-2\n"}, "T-2"},
		{"the last has to", agreed, messages.VerdictApprove, []string{"without which", "\n", "without which", " \n", "without which", "T-2\n"}, "T-2"},
		{"it is named", named, messages.VerdictApprove, nil, ""},
		{"an edit begins anew", named, messages.VerdictEdit, []string{"Enter to leave it", "T-2\n"}, "T-2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			term := terminaltest.New(t)
			q := messages.Approval{Ticket: true, Approvers: 2, Decisions: tc.before}
			got := make(chan string, 1)
			go func() {
				ticket, err := askTicket(t.Context(), terminal.PromptAt(term.Tool, term.Tool), q, decision{verdict: tc.verdict})
				if err != nil {
					ticket = err.Error()
				}
				got <- ticket
			}()
			for i := 0; i < len(tc.dialog); i += 2 {
				term.Expect(tc.dialog[i])
				term.Expect(": ")
				term.Type(tc.dialog[i+1])
			}
			if ticket := <-got; ticket != tc.want {
				t.Errorf("the ticket is %q, want %q", ticket, tc.want)
			}
		})
	}
}
