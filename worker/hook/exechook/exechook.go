// Package exechook runs a program as a hook. The same program can run as a hook of Claude Code.
//
//	stdin    the call, one JSON object: see request.go
//	stdout   the answer, one JSON object or nothing: see answer.go
//	stderr   the reason, if the program ends with 2; otherwise only for the log, at level debug
//	exit     0: the answer counts; nothing on stdout is no opinion
//	         2, with words on stderr, of a gate: before the tool the call is denied, after it the
//	         model is told
//
// In every other case the hook "could not run": any other exit status; exit status 2 without words
// on stderr, or from an observer; a signal; a program that is missing or may not be executed; one
// that takes longer than its budget; an answer that is not a JSON object, that has a key twice or
// an unknown key or value, or that is about another call.
//
// Shells and interpreters also end with 2 and an error text if a script is missing or broken. If
// the hook is a gate, the call is then refused, which is right. An observer has to answer in JSON,
// so that a broken one stops no call.
//
// The program is looked up at each run. If it is missing, the worker still starts, and a gate
// refuses calls until it is there. The program is started by its argument list, without a shell.
// Its environment is PATH, HOME, LANG, CLAUDE_PROJECT_DIR (its folder), TRACEPARENT and TRACESTATE
// if there is a trace, and the variables that Config.Env names, except those that begin with
// TOOLFLEET_. When the program ends or its budget is spent, everything that it started is killed:
// see package process.
package exechook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// Config says what to run, and for which calls. Name is required, and one of Before and After.
type Config struct {
	Name, Match string
	Priority    int
	Class       hook.Class
	Budget      time.Duration // Name to Budget are as in [hook.Hook]
	// Before and After are programs and their arguments. A program with a slash in it is relative
	// to Dir, any other is looked up in PATH.
	Before, After []string
	// Dir is the working directory: the folder of the file that names the hook. Default: the
	// process's own.
	Dir string
	// Env names the variables of the worker that are passed on.
	Env    []string
	Logger *slog.Logger // nil: silent
}

const (
	maxAnswer = 4 << 20  // bytes of stdout; a longer answer is an error
	maxStderr = 64 << 10 // bytes kept of stderr
	exitBlock = 2
)

// New returns the hook. A missing program is logged and is no error: at each call the hook's class
// decides whether the call may go on without it.
func New(cfg Config) (hook.Hook, error) {
	h := hook.Hook{Name: cfg.Name, Match: cfg.Match, Priority: cfg.Priority, Class: cfg.Class, Budget: cfg.Budget}
	var errs []error
	if cfg.Before != nil {
		p, err := newProgram(cfg, cfg.Before)
		errs = append(errs, err)
		h.BeforeProgram = p.name
		h.Before = func(ctx context.Context, call hook.Call) (hook.Verdict, error) {
			a, err := p.run(ctx, before(call))
			return hook.Verdict{
				Opinion: a.opinion, Reason: a.reason, Input: a.input, Stop: a.stop, StopReason: a.stopReason, Context: a.context,
			}, err
		}
	}
	if cfg.After != nil {
		p, err := newProgram(cfg, cfg.After)
		errs = append(errs, err)
		h.AfterProgram = p.name
		h.After = func(ctx context.Context, call hook.Call, done hook.Done) (hook.Change, error) {
			a, err := p.run(ctx, after(call, done))
			return hook.Change{Output: a.output, Content: a.content, Stop: a.stop, StopReason: a.stopReason, Context: a.context}, err
		}
	}
	return h, errors.Join(errs...)
}

// program is one of the two commands of a hook.
type program struct {
	gate bool
	name string // as the operator wrote it
	args []string
	dir  string // absolute
	env  []string
	log  *slog.Logger
}

func newProgram(cfg Config, command []string) (program, error) {
	if len(command) == 0 || command[0] == "" {
		return program{}, fmt.Errorf("hook %.80q: command is empty", cfg.Name)
	}
	if slices.ContainsFunc(command, func(word string) bool { return strings.IndexByte(word, 0) >= 0 }) {
		return program{}, fmt.Errorf("hook %.80q: command %q holds a NUL byte", cfg.Name, command)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return program{}, fmt.Errorf("hook %.80q: %w", cfg.Name, err)
	}
	p := program{gate: cfg.Class != hook.Observe, name: command[0], args: slices.Clone(command), dir: dir, env: cfg.Env, log: cfg.Logger}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.log = p.log.With("hook", cfg.Name)
	if strings.ContainsRune(command[0], '/') && !filepath.IsAbs(command[0]) {
		p.args[0] = filepath.Join(dir, command[0])
	}
	if _, err := exec.LookPath(p.args[0]); err != nil {
		p.logMissing(cfg.Class, startError(err))
	}
	return p, nil
}

// logMissing logs that a program is missing. For a gate the level is error, because calls are
// refused until the program is there, and the operator should know that before the first call.
func (p program) logMissing(class hook.Class, err error) {
	level, means := slog.LevelError, "calls that it is asked about are refused"
	if !p.gate {
		level, means = slog.LevelWarn, "calls go on without it"
	}
	p.log.Log(context.Background(), level, "the program of a hook cannot be run; until it can, "+means,
		"class", cmp.Or(class, hook.Gate), "program", p.name, "folder", p.dir, "err", err)
}

// run runs the program once. An error means that it could not run.
func (p program) run(ctx context.Context, q request) (answer, error) {
	q.Cwd = p.dir
	stdin, err := rawjson.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	env, err := p.environ(ctx)
	if err != nil {
		return answer{}, notStarted(err)
	}
	result, err := process.Run(ctx, process.Command{
		Args: p.args, Dir: p.dir, Env: env, Stdin: stdin, Limit: maxAnswer, LimitStderr: maxStderr,
	})
	var a answer
	switch {
	case err == nil:
		a, err = q.parseResult(result, p.gate)
	case ctx.Err() == nil:
		err = notStarted(p.explainStart(err))
	}
	log := p.log.With("session", q.Session, "batch", q.Batch, "call", q.CallID, "trace_id", tracing.ID(ctx),
		"event", q.Event)
	if stderr := result.Stderr.Bytes(); len(stderr) > 0 && (err != nil || result.ExitCode != exitBlock) {
		log.Debug("a hook wrote to stderr", "stderr", string(stderr))
	}
	if invalid := new(invalidAnswer); errors.As(err, &invalid) {
		log.Debug("the answer of a hook holds an unknown field or value", "wrong", invalid.problem,
			"said", fmt.Sprintf("%.80s", invalid.quote))
	}
	return a, err
}

func notStarted(err error) error {
	return &hook.Fault{Cause: hook.NotStarted, Err: fmt.Errorf("it did not start: %w", err)}
}

// explainStart returns why the program could not be started. It leaves out the path, which the
// caller names.
func (p program) explainStart(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	if _, missing := os.Stat(p.args[0]); missing != nil || !strings.Contains(p.args[0], "/") {
		return err
	}
	switch { // the file exists: its first line is missing, or names a missing program
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w; a script needs a first line such as #!/bin/sh", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: what the first line of the script names", err)
	}
	return err
}

// startError returns an error of looking up the program, without the path.
func startError(err error) error {
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		err = lookup.Err
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return err
}

// environ returns the variables of the worker's environment that the program may see. The call
// itself is on stdin.
func (p program) environ(ctx context.Context) ([]string, error) {
	env, err := process.Environ(ctx, tool.Call{}, p.env)
	if err != nil {
		return nil, err
	}
	env = slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "TOOLFLEET_") })
	if !slices.Contains(p.env, "CLAUDE_PROJECT_DIR") || os.Getenv("CLAUDE_PROJECT_DIR") == "" {
		env = append(env, "CLAUDE_PROJECT_DIR="+p.dir)
	}
	return env, nil
}

// parseResult turns the program's exit status and output into an answer.
func (q request) parseResult(r process.Result, gate bool) (answer, error) {
	stderr := strings.TrimSpace(string(r.Stderr.Bytes()))
	switch {
	case r.ExitCode == exitBlock && !gate:
		return answer{}, ended("exit status 2, and it is no gate")
	case r.ExitCode == exitBlock && stderr == "":
		return answer{}, ended("exit status 2 and no reason on stderr")
	case r.ExitCode == exitBlock && q.Event == preToolUse:
		return answer{opinion: hook.Deny, reason: stderr}, nil
	case r.ExitCode == exitBlock: // the tool has run, so the text goes to the model
		return answer{context: stderr}, nil
	case r.ExitCode != 0:
		return answer{}, ended(r.Status())
	case r.Stdout.Dropped > 0:
		return answer{}, invalidFault(fmt.Errorf("its answer has more than %d bytes", maxAnswer))
	}
	stdout := bytes.TrimSpace(r.Stdout.Bytes())
	if len(stdout) == 0 {
		return answer{}, nil
	}
	if _, err := rawjson.Object(stdout); err != nil {
		return answer{}, invalidFault(fmt.Errorf("it answered with something that is no JSON object: %w",
			cmp.Or(check(stdout), err)))
	}
	a, err := q.read(stdout)
	if err != nil {
		return answer{}, invalidFault(fmt.Errorf("its answer cannot be used: %w", err))
	}
	return a, nil
}

func ended(how string) error {
	return &hook.Fault{Cause: hook.BadExit, Err: fmt.Errorf("it ended with %s", how)}
}

func invalidFault(err error) error { return &hook.Fault{Cause: hook.BadAnswer, Err: err} }
