package terminal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/term"
)

// ErrNoAnswer means that the read of a person's answer failed, for example at Ctrl-D.
var ErrNoAnswer = errors.New("no answer")

// Prompt asks the person at a terminal questions, one after another. Not for concurrent use.
type Prompt struct {
	in  *os.File
	out io.Writer
	// heard receives the line of the read in progress; nil: there is none. A read of a
	// terminal cannot be cancelled, so it may outlive its prompt. The next prompt then takes
	// over the read.
	heard chan heardLine
}

type heardLine struct {
	text string
	err  error
}

// PromptAt returns a prompt that reads from stdin and writes to stderr, or nil if one of them is no
// terminal.
func PromptAt(stdin io.Reader, stderr io.Writer) *Prompt {
	in, ok := stdin.(*os.File)
	if !ok || !IsTerminal(in) || !IsTerminal(stderr) {
		return nil
	}
	return &Prompt{in: in, out: stderr}
}

// Ask prompts and returns the answer without surrounding white space. It drops text that was
// typed before the prompt appeared, because such text is no answer to it.
func (p *Prompt) Ask(ctx context.Context, prompt string) (string, error) {
	if p.heard != nil { // a read of a closed question is still pending
		fmt.Fprint(p.out, "(press Enter) ")
		if _, err := p.line(ctx); err != nil {
			return "", err
		}
	}
	dropTyped(p.in)
	fmt.Fprint(p.out, prompt)
	return p.line(ctx)
}

// Confirm asks a yes-or-no question; only "y" and "yes" count as a yes.
func (p *Prompt) Confirm(ctx context.Context, prompt string) (bool, error) {
	answer, err := p.Ask(ctx, prompt+" [y/N] ")
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// line waits for the read in progress, or starts one. It returns ErrNoAnswer if the read fails.
func (p *Prompt) line(ctx context.Context) (string, error) {
	if p.heard == nil {
		p.heard = make(chan heardLine, 1)
		go func(heard chan<- heardLine) {
			text, err := readLine(p.in)
			heard <- heardLine{text, err}
		}(p.heard)
	}
	select {
	case line := <-p.heard:
		p.heard = nil
		if line.err != nil {
			fmt.Fprintln(p.out)
			return "", ErrNoAnswer
		}
		return strings.TrimSpace(line.text), nil
	case <-ctx.Done():
		fmt.Fprintln(p.out)
		return "", context.Cause(ctx)
	}
}

// readLine reads up to the end of a line and not a byte further, because an editor may read the
// rest. A line is at most 64 KiB long.
func readLine(in io.Reader) (string, error) {
	var line []byte
	next := make([]byte, 1)
	for len(line) < 64<<10 {
		n, err := in.Read(next)
		if n > 0 && next[0] == '\n' {
			return string(line), nil
		}
		line = append(line, next[:n]...)
		if err != nil {
			return "", err
		}
	}
	return "", errors.New("the line is too long")
}

// OpenEditor opens a file in the editor that VISUAL or EDITOR names, else in vi, and returns when
// the editor has ended. If ctx ends, it kills the editor and restores the terminal.
func (p *Prompt) OpenEditor(ctx context.Context, file string) error {
	words := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	if len(words) == 0 {
		words = []string{"vi"}
	}
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], file)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in, p.out, p.out
	// If the question closes, the editor is killed and leaves the terminal in a mode in which typed
	// text is invisible. Restore the earlier mode.
	if before, err := term.GetState(int(p.in.Fd())); err == nil {
		defer func() { _ = term.Restore(int(p.in.Fd()), before) }()
	}
	return cmd.Run()
}
