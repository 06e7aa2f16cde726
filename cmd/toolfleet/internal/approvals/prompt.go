package approvals

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/messages"
)

// errClosed cancels a prompt, because the question was answered elsewhere or has expired. Only the
// fleet decides that a question has expired, because this machine's clock may be wrong.
var errClosed = errors.New("the question is closed")

// prompt is the approval prompt: it shows a question, asks the person for a choice and sends
// the decision. alone says that the person is the fleet's only approver. Then an empty answer
// does not leave the question open but asks again, and a question that needs two people can
// only be denied.
func (d *approvalClient) prompt(ctx context.Context, prompt *terminal.Prompt, q messages.Approval, alone bool) error {
	d.app.Say("\n%s", shown(d.app.Stderr, q))
	choices := "[a]pprove, [d]eny, [e]dit, or Enter to leave it open? "
	if alone {
		choices = "[a]pprove, [d]eny, [e]dit? "
	}
	if alone && q.Approvers > 1 {
		d.app.Say("%d people have to agree, and here is only you.", q.Approvers)
		choices = "[d]eny? "
	}
	for {
		answer, err := prompt.Ask(ctx, choices)
		if errors.Is(err, terminal.ErrNoAnswer) && alone {
			d.app.Say("no answer: the call waits until its question expires, in %s", terminal.Span(time.Until(q.Expires)))
			_, err = prompt.Ask(ctx, "Enter to be asked again, Ctrl-C to give up: ")
			answer = ""
		}
		if err != nil {
			return err
		}
		choice := chosen(choices, answer)
		if choice == 0 {
			if answer == "" && !alone {
				return nil
			}
			continue
		}
		s, err := d.complete(ctx, prompt, q, choice)
		if err == nil {
			// Use a context that does not end when the question closes, because this decision
			// may close the question.
			_, err = d.decide(d.app.Ctx, q, s)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, terminal.ErrNoAnswer): // no answer to a follow-up question: ask for the choice again
			continue
		}
		d.app.Say("%v", err)
	}
}

// chosen returns the first letter of the choice that an answer names: with its whole word or a
// prefix of the word. 0: no choice. For example, "abort" does not approve, although it begins
// with a.
func chosen(choices, answer string) byte {
	for _, word := range []string{"approve", "deny", "edit"} {
		if answer != "" && strings.HasPrefix(word, strings.ToLower(answer)) && strings.Contains(choices, "["+word[:1]+"]") {
			return word[0]
		}
	}
	return 0
}

// complete asks the person for the rest of a decision: the reason of a denial, the arguments
// of an edit, a ticket.
func (d *approvalClient) complete(ctx context.Context, prompt *terminal.Prompt, q messages.Approval, choice byte) (s decision, err error) {
	switch choice {
	case 'a':
		s.verdict = messages.VerdictApprove
		s.ticket, err = askTicket(ctx, prompt, q, s)
	case 'd':
		s.verdict = messages.VerdictDeny
		s.reason, err = prompt.Ask(ctx, "why not? The model reads it: ")
	case 'e':
		s.verdict = messages.VerdictEdit
		if s.input, err = editArguments(ctx, prompt, q.Input); err != nil {
			return s, err
		}
		d.app.Say("%s", terminal.Wrap(terminal.Diff(terminal.JSONText(q.Input), terminal.JSONText(s.input), terminal.Colours(d.app.Stderr)), terminal.Columns(d.app.Stderr)))
		if err = agreesTo(prompt.Confirm(ctx, "approve these arguments?")); err == nil {
			s.ticket, err = askTicket(ctx, prompt, q, s)
		}
	}
	if err == nil && s.verdict == messages.VerdictDeny && s.reason == "" {
		err = fmt.Errorf("a denial needs a reason: the model reads it")
	}
	return s, err
}
