package terminal

import (
	"context"
	"errors"
	"testing"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
)

// An answer counts only for the question on the screen. It does not count for an earlier
// question, nor if it was typed before any question.
func TestAnswersBelongToTheirQuestion(t *testing.T) {
	term := terminaltest.New(t)
	p := PromptAt(term.Tool, term.Tool)
	term.Type("y\n") // before anything was asked
	term.Expect("y")
	type reply struct {
		text string
		err  error
	}
	ask := func(ctx context.Context, prompt string) <-chan reply {
		got := make(chan reply, 1)
		go func() {
			text, err := p.Ask(ctx, prompt)
			got <- reply{text, err}
		}()
		return got
	}
	closed := errors.New("the question is closed")
	ctx, close := context.WithCancelCause(t.Context())
	first := ask(ctx, "first? ")
	term.Expect("first? ")
	term.Type("y") // no Enter yet
	term.Expect("y")
	close(closed)
	if got := <-first; !errors.Is(got.err, closed) {
		t.Fatalf("the first question: got %q, %v; want that it is closed, and what was typed before it forgotten", got.text, got.err)
	}
	second := ask(t.Context(), "second? ")
	term.Expect("(press Enter) ")
	term.Type("\n")
	term.Expect("second? ")
	term.Type("  n \n")
	if got := <-second; got.text != "n" || got.err != nil {
		t.Errorf("the second question: got %q, %v; want n", got.text, got.err)
	}
	third := ask(t.Context(), "third? ")
	term.Expect("third? ")
	term.Type("\x04") // Ctrl-D
	if got := <-third; !errors.Is(got.err, ErrNoAnswer) {
		t.Errorf("Ctrl-D: got %q, %v; want no answer", got.text, got.err)
	}
}
