package approvals

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// editArguments opens the arguments in the person's editor until the result is valid or the person
// gives up.
func editArguments(ctx context.Context, p *terminal.Prompt, input json.RawMessage) (json.RawMessage, error) {
	dir, err := os.MkdirTemp("", "toolfleet-edit-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // arguments may be confidential
	file := filepath.Join(dir, "arguments.json")
	if err := os.WriteFile(file, []byte(terminal.JSONText(input)+"\n"), 0o600); err != nil {
		return nil, err
	}
	for {
		if err := p.OpenEditor(ctx, file); err != nil {
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
		if again, err := p.Confirm(ctx, fmt.Sprintf("%v; edit again?", problem)); err != nil || !again {
			return nil, errors.Join(err, problem)
		}
	}
}

var errUnchanged = errors.New("nothing was changed; to let the call run as it is, approve it")

// newArguments reports why a text cannot replace the arguments: it is not valid JSON, not an
// object, or equal to them (errUnchanged).
func newArguments(before, after json.RawMessage) error {
	if err := rawjson.Check(after); err != nil {
		return fmt.Errorf("the new arguments cannot be read: %w", err)
	}
	if _, err := rawjson.Object(after); err != nil {
		return fmt.Errorf("the new arguments: %w", err)
	}
	if bytes.Equal(compact(before), compact(after)) {
		return errUnchanged
	}
	return nil
}

// askTicket returns the ticket of a decision, or asks the person for a ticket if the question
// needs one and no decision names one yet. The last approver is asked until the answer is not
// empty; earlier approvers may leave the ticket empty.
func askTicket(ctx context.Context, p *terminal.Prompt, q messages.Approval, s decision) (string, error) {
	before := q.Decisions
	if s.verdict == messages.VerdictEdit { // earlier decisions were about other arguments
		before = nil
	}
	if !q.Ticket || s.ticket != "" || slices.ContainsFunc(before, func(d messages.Decision) bool { return d.Ticket != "" }) {
		return s.ticket, nil
	}
	if len(before)+1 < q.Approvers {
		return p.Ask(ctx, "ticket, or Enter to leave it to whoever agrees after you: ")
	}
	for {
		ticket, err := p.Ask(ctx, "ticket, without which it is not approved: ")
		if ticket != "" || err != nil {
			return ticket, err
		}
	}
}

// compact returns a JSON value on one line with sorted keys, or the input itself if it is not
// valid.
func compact(raw json.RawMessage) []byte {
	canonical, err := rawjson.Canonical(raw)
	if err != nil {
		return raw
	}
	return canonical
}
