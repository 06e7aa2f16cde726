package main

import (
	"context"
	"errors"
	"testing"
)

// An answer counts for the question on the screen, not for an earlier one or for none.
func TestAnswersBelongToTheirQuestion(t *testing.T) {
	term := newTerminal(t)
	p := promptAt(term.tool, term.tool)
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
	closed := errors.New("the question is closed")
	ctx, close := context.WithCancelCause(t.Context())
	first := ask(ctx, "first? ")
	term.expect("first? ")
	term.types("y") // no Enter yet
	term.expect("y")
	close(closed)
	if got := <-first; !errors.Is(got.err, closed) {
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
