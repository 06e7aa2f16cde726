package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/messages"
)

// terminal is a pseudo-terminal; the test plays the person.
type terminal struct {
	t            *testing.T
	person, tool *os.File // the two ends

	mu     sync.Mutex
	screen bytes.Buffer  // guarded by mu
	seen   int           // length of the part that expect has matched; guarded by mu
	more   chan struct{} // a signal to look at the screen again
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	var unlock, number int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &number} {
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(arg))); e != 0 {
			t.Fatal(e)
		}
	}
	tool, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, person: person, tool: tool, more: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		term.read()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("on the screen:\n%s", term.text())
		}
		_, _ = person.WriteString("\n") // ends a read that a failed test left behind
		_ = tool.Close()
		<-ended
		_ = person.Close()
	})
	return term
}

func (s *terminal) read() {
	part := make([]byte, 4096)
	for {
		n, err := s.person.Read(part)
		s.mu.Lock()
		s.screen.Write(part[:n])
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil { // the other end is closed
			return
		}
	}
}

func (s *terminal) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String()
}

// expect waits until a text is on the screen, below everything that was expected before.
func (s *terminal) expect(text string) {
	s.t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		at := bytes.Index(s.screen.Bytes()[s.seen:], []byte(text))
		if at >= 0 {
			s.seen += at + len(text)
		}
		s.mu.Unlock()
		if at >= 0 {
			return
		}
		select {
		case <-s.more:
		case <-deadline.C:
			s.t.Fatalf("%q does not appear", text)
		}
	}
}

func (s *terminal) types(text string) {
	s.t.Helper()
	if _, err := s.person.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// toolfleet runs a command at the terminal with stdout captured, and returns stdout and the exit
// status.
func (s *terminal) toolfleet(args ...string) (out *bytes.Buffer, ended <-chan int) {
	out = &bytes.Buffer{}
	status := make(chan int, 1)
	go func() { status <- run(args, s.tool, out, s.tool) }()
	return out, status
}

// An answer counts for the question on the screen, not for an earlier one or for none.
func TestAnswersBelongToTheirQuestion(t *testing.T) {
	term := newTerminal(t)
	p := &person{in: term.tool, out: term.tool}
	term.types("y\n") // before anything was asked
	term.expect("y")
	type reply struct {
		text string
		err  error
	}
	ask := func(ctx context.Context, prompt string) <-chan reply {
		got := make(chan reply, 1)
		go func() {
			text, err := p.ask(ctx, prompt)
			got <- reply{text, err}
		}()
		return got
	}
	ctx, close := context.WithCancelCause(t.Context())
	first := ask(ctx, "first? ")
	term.expect("first? ")
	term.types("y") // no Enter yet
	term.expect("y")
	close(errClosed)
	if got := <-first; !errors.Is(got.err, errClosed) {
		t.Fatalf("the first question: got %q, %v; want that it is closed, and what was typed before it forgotten", got.text, got.err)
	}
	second := ask(t.Context(), "second? ")
	term.expect("(press Enter) ")
	term.types("\n")
	term.expect("second? ")
	term.types("  n \n")
	if got := <-second; got.text != "n" || got.err != nil {
		t.Errorf("the second question: got %q, %v; want n", got.text, got.err)
	}
	third := ask(t.Context(), "third? ")
	term.expect("third? ")
	term.types("\x04") // Ctrl-D
	if got := <-third; !errors.Is(got.err, errNoAnswer) {
		t.Errorf("Ctrl-D: got %q, %v; want no answer", got.text, got.err)
	}
}

// An editor that is killed because its question was answered elsewhere leaves a terminal that shows
// what is typed.
func TestAnEditorThatIsEnded(t *testing.T) {
	tty := newTerminal(t)
	script := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nstty raw -echo\necho raw\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VISUAL", script)
	before, err := term.GetState(int(tty.tool.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := (&person{in: tty.tool, out: tty.tool}).edit(ctx, json.RawMessage("{}"))
		ended <- err
	}()
	tty.expect("raw")
	end()
	if <-ended == nil {
		t.Error("an editor that was killed has edited something")
	}
	if after, err := term.GetState(int(tty.tool.Fd())); err != nil || !reflect.DeepEqual(after, before) {
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
			term := newTerminal(t)
			q := messages.Approval{Ticket: true, Approvers: 2, Decisions: tc.before}
			got := make(chan string, 1)
			go func() {
				ticket, err := (&person{in: term.tool, out: term.tool}).ticket(t.Context(), q, said{verdict: tc.verdict})
				if err != nil {
					ticket = err.Error()
				}
				got <- ticket
			}()
			for i := 0; i < len(tc.dialog); i += 2 {
				term.expect(tc.dialog[i])
				term.expect(": ")
				term.types(tc.dialog[i+1])
			}
			if ticket := <-got; ticket != tc.want {
				t.Errorf("the ticket is %q, want %q", ticket, tc.want)
			}
		})
	}
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
			t.Setenv("EDITOR", "sed -i s/149.99/99.5/")
			t.Setenv("NO_COLOR", "1")
			term := newTerminal(t)
			out, ended := term.toolfleet(args...)
			term.expect("149.99\r\n")
			term.expect("More than 100 leaves the house")
			for i := 0; i < len(tc.dialog); i += 2 {
				term.expect(tc.dialog[i])
				term.types(tc.dialog[i+1])
			}
			if status := <-ended; status != done {
				t.Fatalf("the command ends with %d", status)
			}
			fmt.Fprintln(term.tool, "below")
			term.expect("below\r\n") // the end of the output
			var reply messages.Reply
			if err := json.Unmarshal(out.Bytes(), &reply); err != nil || len(reply.Results) != 3 || reply.Results[1].Status != tc.status {
				t.Errorf("the reply: %v, want the refund %s\n%s", err, tc.status, out)
			}
			if board := strings.Join(rows(term.text()), "\n"); strings.Count(board, "   1  issue_refund  ") != 1 {
				t.Errorf("the board is not there once:\n%s", board)
			}
			ledger, _ := os.ReadFile(filepath.Join(dir, "ledger")) // no file: nothing was refunded
			if tc.ledger == "" && len(ledger) > 0 || !strings.Contains(string(ledger), tc.ledger) || strings.Count(string(ledger), "\n") > 1 {
				t.Errorf("the ledger holds %q, want one line with %q", ledger, tc.ledger)
			}
		})
	}
}
