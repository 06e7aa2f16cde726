package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/messages"
)

// edit lets the person change arguments in their editor, until they can be read.
func (p *person) edit(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
	dir, err := os.MkdirTemp("", "toolfleet-edit-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // arguments may be nobody else's business
	file := filepath.Join(dir, "arguments.json")
	if err := os.WriteFile(file, []byte(jsonText(input)+"\n"), 0o600); err != nil {
		return nil, err
	}
	for {
		if err := p.openEditor(ctx, file); err != nil {
			return nil, fmt.Errorf("the editor: %w; $EDITOR names one, and --input takes the arguments without any", err)
		}
		edited, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		edited = bytes.TrimSpace(edited)
		problem := newArguments(input, edited)
		if problem == nil || errors.Is(problem, errUnchanged) {
			return edited, problem
		}
		if again, err := p.yes(ctx, fmt.Sprintf("%v; edit again?", problem)); err != nil || !again {
			return nil, errors.Join(err, problem)
		}
	}
}

func (p *person) openEditor(ctx context.Context, file string) error {
	words := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	if len(words) == 0 {
		words = []string{"vi"}
	}
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], file)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in, p.out, p.out
	// One that is ended with its question leaves the terminal as it had set it, where nothing that is typed is seen.
	if before, err := term.GetState(int(p.in.Fd())); err == nil {
		defer func() { _ = term.Restore(int(p.in.Fd()), before) }()
	}
	return cmd.Run()
}

var errUnchanged = errors.New("nothing was changed; to let the call run as it is, approve it")

// newArguments reports why a text cannot stand in for the arguments.
func newArguments(before, after json.RawMessage) error {
	if err := messages.Check(after); err != nil {
		return fmt.Errorf("the new arguments cannot be read: %w", err)
	}
	if _, err := messages.Object(after); err != nil {
		return fmt.Errorf("the new arguments: %w", err)
	}
	if bytes.Equal(compact(before), compact(after)) {
		return errUnchanged
	}
	return nil
}

// ticket is the ticket that is given with what is said, or the one that the person names where nobody has yet. The
// first of two people may leave it to the second; who is the last to agree may not.
func (p *person) ticket(ctx context.Context, q messages.Approval, s said) (string, error) {
	before := q.Decisions
	if s.verdict == messages.Edit { // they were about other arguments
		before = nil
	}
	if !q.Ticket || s.ticket != "" || slices.ContainsFunc(before, func(d messages.Decision) bool { return d.Ticket != "" }) {
		return s.ticket, nil
	}
	if len(before)+1 < q.Approvers {
		return p.ask(ctx, "ticket, or Enter to leave it to whoever agrees after you: ")
	}
	for {
		ticket, err := p.ask(ctx, "ticket, without which it is not approved: ")
		if ticket != "" || err != nil {
			return ticket, err
		}
	}
}
