// Package exectool runs a program as a tool. This is the contract for every language:
//
//	stdin    the input, one JSON object
//	stdout   the output: JSON if the whole is one JSON value without duplicate keys, else text,
//	         byte for byte; bytes that are not UTF-8 become U+FFFD, since the wire is JSON.
//	         An empty stdout is empty text. If there are more than 24 MiB, the two ends are
//	         kept, as text
//	stderr   words for people: its lines are the call's progress, a few reports a second at
//	         most, and its tail is the text of an error
//	exit     0 is success; anything else is an error of the tool, and 75 (EX_TEMPFAIL of
//	         sysexits.h) says that another try may help. A program that a signal ended has lost
//	         its call: a *tool.LostError
//
// The program is started from its argument list, without a shell, in the folder of the
// tools file. Its environment has PATH, HOME and LANG, the call as TOOLFLEET_* variables,
// the trace of the call (see process.Environ), and the variables that the tools file lists.
// When the program ends or its time is up, everything that it has started is killed: see
// package process.
//
// A [Probe] is started in the same way. It finds out whether an earlier run was applied.
package exectool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// Config says what to run.
type Config struct {
	// Command is the program and its arguments. A program with a slash is relative to Dir.
	// Any other program is looked up in PATH.
	Command []string
	// Dir is the working directory: the folder of the tools file. Default: the process's own.
	Dir string
	// Env names the variables of the worker that are passed on.
	Env []string
	// Sandbox confines the program. Nil: it may do what the worker may.
	Sandbox *sandbox.Box
}

// exitTryAgain is the exit status of a program that failed for now: EX_TEMPFAIL of sysexits.h.
const exitTryAgain = 75

const (
	// maxOutput is how many bytes of stdout are kept. A longer output becomes text: its
	// head, a line that says how much is missing, and its tail.
	maxOutput = 24 << 20
	maxStderr = 64 << 10 // bytes kept of stderr
	// maxMessage is how many bytes of stderr, or of stdout, an error quotes.
	maxMessage = 4000
)

// Tool runs one program. It is safe for concurrent use.
type Tool struct {
	cfg  Config
	args []string // the command, with the program's full path
}

var _ tool.Runner = (*Tool)(nil)

// New returns a tool for a program. If the program is missing or may not be executed, the error
// names it.
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

// find returns the full path of the program.
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

// reason returns what is wrong with a program, without its name.
func reason(err error) error {
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		err = lookup.Err
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("no such file")
	case errors.Is(err, os.ErrPermission):
		return errors.New("is not executable: chmod +x makes it so")
	}
	return err
}

// Run runs the program once for a call.
func (t *Tool) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	emit := call.Progress
	if emit == nil {
		emit = func(messages.Progress) {}
	}
	lines := process.NewLines(func(text string) { emit(messages.Progress{Text: text}) })
	reports := newReports(emit)
	result, err := t.start(ctx, call, lines.Add, reports.Add)
	lines.Flush()
	reports.Flush()
	if err != nil {
		return tool.Output{}, err
	}
	if result.ExitCode != 0 {
		if own := ownError(result.Stdout); own != nil {
			own.Retryable = own.Retryable || result.ExitCode == exitTryAgain
			return tool.Output{}, own
		}
		text, refused := t.errorText(result)
		if refused {
			tracing.MarkRefused(ctx)
		}
		if result.Signal != "" && result.Over == "" {
			return tool.Output{}, &tool.LostError{Err: errors.New(text)}
		}
		return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: text, Retryable: result.ExitCode == exitTryAgain}
	}
	// The output must be the program's, byte for byte. Therefore the hint goes only to people
	// and into the trace.
	if hint := t.cfg.Sandbox.Hint(string(result.Stderr.Bytes()), result.Refused...); hint != "" {
		tracing.MarkRefused(ctx)
		emit(messages.Progress{Text: hint})
	}
	return tool.Printed(result.Stdout.Bytes()), nil
}

// start runs the program for the call and waits for its end. If onProgress is nil, the
// program has no progress descriptor.
func (t *Tool) start(ctx context.Context, call tool.Call, onStderr, onProgress func([]byte)) (process.Result, error) {
	env, err := process.Environ(ctx, call, t.cfg.Env)
	if err != nil {
		return process.Result{}, err
	}
	box, err := t.cfg.Sandbox.For(string(call.Tenant))
	if err != nil {
		return process.Result{}, err
	}
	call.ReportSandboxGaps(box.Lacking())
	return process.Run(ctx, process.Command{
		Args: t.args, Dir: t.cfg.Dir, Env: env, Stdin: call.Input,
		Limit: maxOutput, LimitStderr: maxStderr, OnStderr: onStderr, OnProgress: onProgress,
		Sandbox: box,
	})
}

// ownError returns an error that the program printed: a JSON object {"error": code,
// "message": text}, which may also have retryable and details. For any other output it
// returns nil.
func ownError(stdout process.Output) *messages.Error {
	raw := bytes.TrimSpace(stdout.Bytes())
	if len(raw) > maxStderr || rawjson.Check(raw) != nil {
		return nil
	}
	var said struct {
		Error, Message *string
		Retryable      bool
		Details        json.RawMessage
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&said) != nil || said.Error == nil || said.Message == nil || !errorCode.MatchString(*said.Error) {
		return nil
	}
	own := &messages.Error{Code: messages.Code(*said.Error), Message: *said.Message, Retryable: said.Retryable}
	if len(said.Details) > 0 {
		own.Details = said.Details
	}
	return own
}

var errorCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// errorText returns the end of what the program printed, or how it ended if it printed
// nothing. If the sandbox may be the reason, the text says so.
func (t *Tool) errorText(r process.Result) (_ string, refused bool) {
	text := lastOutput(r.Stderr, r.Stdout)
	switch note := t.cfg.Sandbox.Note(text, r.Refused...); {
	case r.Over != "":
		return strings.TrimSpace(text + "\nThe program was " + r.Status() + "."), false
	case note != "":
		return text + "\n" + note, true
	case text != "":
		return text, false
	}
	return "The program ended without any output: " + r.Status() + ".", false
}

// lastOutput returns the end of the first stream that is not empty.
func lastOutput(streams ...process.Output) string {
	for _, stream := range streams {
		if text := bytes.TrimSpace(stream.Bytes()); len(text) > 0 {
			return strings.ToValidUTF8(string(text[max(0, len(text)-maxMessage):]), "\uFFFD")
		}
	}
	return ""
}
