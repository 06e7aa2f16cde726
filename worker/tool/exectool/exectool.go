// Package exectool runs a tool that is a program: the contract for every language.
//
//	stdin    the input, one JSON object
//	stdout   the output: JSON when the whole is one JSON value without duplicate keys, else text, byte for
//	         byte; bytes that are no UTF-8 become U+FFFD, since the wire is JSON. Nothing is empty text.
//	         Of more than 4 MiB the two ends are kept, as text
//	stderr   words for people: its lines are the call's progress, a few reports a second at most, and its
//	         tail is the error's text
//	exit     0 is success; anything else is an error of the tool
//
// The program is started by its argument list, without a shell, in the folder of the tools file. Its
// environment is PATH, HOME and LANG, the call as TOOLFLEET_* variables (see process.Environ), and what
// the tools file lists. When it ends, or its time does, everything it started is killed: see process.
package exectool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// Config says what to run.
type Config struct {
	// Command is the program and its arguments. A program with a slash in it is taken relative to Dir,
	// any other is looked up in PATH.
	Command []string
	// Dir is the working directory: the folder of the tools file. Default: the process's own.
	Dir string
	// Env names the variables of the worker that are passed through.
	Env []string
}

const (
	// maxOutput is how many bytes of stdout are kept. A longer output is text: its head and its tail, and
	// between them a line that says how much is missing.
	maxOutput = 4 << 20
	maxStderr = 64 << 10 // kept of stderr
	// maxMessage is how much of stderr, or of stdout, an error quotes.
	maxMessage = 4000
)

// Tool runs one program. It is safe for concurrent use.
type Tool struct {
	cfg  Config
	args []string // with the program's path
}

var _ tool.Runner = (*Tool)(nil)

// New finds the program. One that is missing or may not be executed is an error that names it.
func New(cfg Config) (*Tool, error) {
	if len(cfg.Command) == 0 || cfg.Command[0] == "" {
		return nil, errors.New("exec: command is empty")
	}
	for _, word := range cfg.Command {
		if strings.IndexByte(word, 0) >= 0 {
			return nil, fmt.Errorf("exec: command %q holds a NUL byte", word)
		}
	}
	program, err := find(cfg.Command[0], cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("exec: program %s: %w", cfg.Command[0], err)
	}
	return &Tool{cfg: cfg, args: append([]string{program}, cfg.Command[1:]...)}, nil
}

// find is the path of the program.
func find(name, dir string) (string, error) {
	if !strings.ContainsRune(name, '/') && !strings.ContainsRune(name, filepath.Separator) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", reason(err)
		}
		return filepath.Abs(path)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath(path); err != nil {
		return "", reason(err)
	}
	return path, nil
}

// reason is what is wrong with a program, without its name.
func reason(err error) error {
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		err = lookup.Err
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("no such file")
	case errors.Is(err, os.ErrPermission):
		return errors.New("is not executable")
	}
	return err
}

// Run runs the program once.
func (t *Tool) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	env, err := process.Environ(call, t.cfg.Env)
	if err != nil {
		return tool.Output{}, err
	}
	lines := process.NewLines(func(text string) {
		if call.Progress != nil {
			call.Progress(messages.Progress{Text: text})
		}
	})
	result, err := process.Run(ctx, process.Command{
		Args: t.args, Dir: t.cfg.Dir, Env: env, Stdin: call.Input,
		Limit: maxOutput, LimitStderr: maxStderr, OnStderr: lines.Add,
	})
	lines.Flush()
	if err != nil {
		return tool.Output{}, err
	}
	if result.ExitCode != 0 {
		return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: complaint(result)}
	}
	return output(result.Stdout), nil
}

// complaint is the program's own last words, or how it ended when it had none.
func complaint(r process.Result) string {
	for _, stream := range []process.Output{r.Stderr, r.Stdout} {
		if said := bytes.TrimSpace(stream.Bytes()); len(said) > 0 {
			return strings.ToValidUTF8(string(said[max(0, len(said)-maxMessage):]), "\uFFFD")
		}
	}
	return "The program ended without a word: " + r.Status() + "."
}

// output is what the program printed, as JSON where it is JSON.
func output(stdout process.Output) tool.Output {
	raw := stdout.Bytes()
	if stdout.Dropped == 0 && messages.Check(raw) == nil {
		return tool.Output{Value: bytes.TrimSpace(raw)}
	}
	return tool.Text(strings.ToValidUTF8(string(raw), "\uFFFD"))
}
