package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// errNoAnswer: a person was asked and went away.
var errNoAnswer = errors.New("no answer")

// person is somebody at the terminal, who is asked one thing after another.
type person struct {
	in  *os.File
	out io.Writer
	// heard is the line of the read in hand, if there is one: a read of a terminal cannot be called off.
	heard chan heardLine
}

type heardLine struct {
	text string
	err  error
}

// person is nil when nobody is there to be asked: stdin and stderr have to be terminals.
func (a *app) person() *person {
	in, ok := a.stdin.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(a.stderr) {
		return nil
	}
	return &person{in: in, out: a.stderr}
}

// ask is the person's answer, without white space around it. What was typed before the prompt stood there is no
// answer to it: nobody agrees to what they have not seen.
func (p *person) ask(ctx context.Context, prompt string) (string, error) {
	if p.heard != nil { // of a question that ended by itself
		fmt.Fprint(p.out, "(press Enter) ")
		if _, err := p.line(ctx); err != nil {
			return "", err
		}
	}
	dropTyped(p.in)
	fmt.Fprint(p.out, prompt)
	return p.line(ctx)
}

// yes asks whether to do something; only a clear yes is one.
func (p *person) yes(ctx context.Context, prompt string) (bool, error) {
	answer, err := p.ask(ctx, prompt+" [y/N] ")
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// line waits for the read in hand, or begins one.
func (p *person) line(ctx context.Context) (string, error) {
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
			return "", errNoAnswer
		}
		return strings.TrimSpace(line.text), nil
	case <-ctx.Done():
		fmt.Fprintln(p.out)
		return "", context.Cause(ctx)
	}
}

// readLine reads up to the end of a line and not a byte further: an editor may want the rest.
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
