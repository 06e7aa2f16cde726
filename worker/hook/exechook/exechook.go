// Package exechook is a hook that is a program: the same one that runs as a hook of Claude Code.
//
//	stdin    the call, one JSON object: see request.go
//	stdout   the answer, one JSON object or nothing: see answer.go
//	stderr   the reason, where the program ends with 2; else for nobody, and in the log at the level debug
//	exit     0: the answer counts; nothing on stdout is no opinion
//	         2, with words on stderr, of a gate: before the tool the call is denied, after it the model is told
//
// Everything else means that the hook could not run: any other exit status, 2 without a word or of an observer, a
// signal, a program that is missing or may not be executed, one that takes longer than its budget, an answer that is no
// JSON object, that holds a key twice or a key or value that is not known here, or that is about another call.
//
// Shells and interpreters end with 2 and a complaint too, for a script that is gone or broken. A gate refuses the call
// then as well; an observer has to say in JSON what it wants, so that its being broken stops nobody.
//
// The program is looked for at each run: where it is missing, a gate refuses calls until it is there, and the worker
// still starts. It is started by its argument list, without a shell, with an environment of PATH, HOME, LANG,
// CLAUDE_PROJECT_DIR (its folder), TRACEPARENT and TRACESTATE where there is a trace, and the variables that are named. When it ends, or its budget does, everything it
// started is killed: see process.
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

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// Config says what to run, and for which calls. Name and one of Before and After are required.
type Config struct {
	Name, Match string
	Priority    int
	Class       hook.Class
	Budget      time.Duration // these are as in [hook.Hook]
	// Before and After are programs and their arguments. A program with a slash in it is taken relative to Dir, any
	// other is looked up in PATH.
	Before, After []string
	// Dir is the working directory: the folder of the file that names the hook. Default: the process's own.
	Dir string
	// Env names the variables of the worker that are passed through.
	Env    []string
	Logger *slog.Logger // nil: silent
}

const (
	maxAnswer = 4 << 20  // bytes of stdout; more is no answer
	maxStderr = 64 << 10 // bytes kept of stderr
	exitBlock = 2
)

// New makes the hook. A program that is not there is a line in the log and no error: whether calls may go on without it
// is for the class to say, call by call.
func New(cfg Config) (hook.Hook, error) {
	h := hook.Hook{Name: cfg.Name, Match: cfg.Match, Priority: cfg.Priority, Class: cfg.Class, Budget: cfg.Budget}
	var errs []error
	if cfg.Before != nil {
		p, err := newProgram(cfg, cfg.Before)
		errs = append(errs, err)
		h.BeforeProgram = p.name
		h.Before = func(ctx context.Context, call hook.Call) (hook.Verdict, error) {
			a, err := p.ask(ctx, before(call))
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
			a, err := p.ask(ctx, after(call, done))
			return hook.Change{Output: a.output, Content: a.content, Stop: a.stop, StopReason: a.stopReason, Context: a.context}, err
		}
	}
	return h, errors.Join(errs...)
}

// program is one command of a hook.
type program struct {
	gate bool
	name string // as it is configured
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
		p.warn(cfg.Class, startError(err))
	}
	return p, nil
}

// warn says that a program is not there. Calls are refused for a gate's until it is, which nobody wants to learn from the
// first of them: it is an error also for those who hear of no warnings.
func (p program) warn(class hook.Class, err error) {
	level, means := slog.LevelError, "calls that it is asked about are refused"
	if !p.gate {
		level, means = slog.LevelWarn, "calls go on without it"
	}
	p.log.Log(context.Background(), level, "the program of a hook cannot be run; until it can, "+means,
		"class", cmp.Or(class, hook.Gate), "program", p.name, "folder", p.dir, "err", err)
}

// ask runs the program once. An error means that it could not run.
func (p program) ask(ctx context.Context, q request) (answer, error) {
	q.Cwd = p.dir
	stdin, err := messages.Marshal(q)
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
		a, err = q.answered(result, p.gate)
	case ctx.Err() == nil:
		err = notStarted(p.whyNot(err))
	}
	log := p.log.With("session", q.Session, "batch", q.Batch, "call", q.CallID, "trace_id", tracing.ID(ctx), "event", q.Event)
	if said := result.Stderr.Bytes(); len(said) > 0 && (err != nil || result.ExitCode != exitBlock) {
		log.Debug("a hook wrote to stderr", "stderr", string(said))
	}
	if wrong := new(misfit); errors.As(err, &wrong) {
		log.Debug("what a hook answered is not known", "wrong", wrong.what, "said", fmt.Sprintf("%.80s", wrong.said))
	}
	return a, err
}

func notStarted(err error) error {
	return &hook.Fault{Cause: hook.NotStarted, Err: fmt.Errorf("it did not start: %w", err)}
}

// whyNot is why the program could not be started, without its path, which is named anyway.
func (p program) whyNot(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	if _, missing := os.Stat(p.args[0]); missing != nil || !strings.Contains(p.args[0], "/") {
		return err
	}
	switch { // the file is there, and what its first line says is not
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w; a script needs a first line such as #!/bin/sh", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: what the first line of the script names", err)
	}
	return err
}

// startError is an error of looking for a program without its path.
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

// environ is the worker's environment as far as the program may know it. The call itself is on stdin.
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

// answered is what the program said by how it ended.
func (q request) answered(r process.Result, gate bool) (answer, error) {
	said := strings.TrimSpace(string(r.Stderr.Bytes()))
	switch {
	case r.ExitCode == exitBlock && !gate:
		return answer{}, ended("exit status 2, and it is no gate")
	case r.ExitCode == exitBlock && said == "":
		return answer{}, ended("exit status 2 and no reason on stderr")
	case r.ExitCode == exitBlock && q.Event == preToolUse:
		return answer{opinion: hook.Deny, reason: said}, nil
	case r.ExitCode == exitBlock: // what is done is done: the model is told
		return answer{context: said}, nil
	case r.ExitCode != 0:
		return answer{}, ended(r.Status())
	case r.Stdout.Dropped > 0:
		return answer{}, unusable(fmt.Errorf("its answer has more than %d bytes", maxAnswer))
	}
	stdout := bytes.TrimSpace(r.Stdout.Bytes())
	if len(stdout) == 0 {
		return answer{}, nil
	}
	if _, err := messages.Object(stdout); err != nil {
		return answer{}, unusable(fmt.Errorf("it answered with something that is no JSON object: %w", cmp.Or(check(stdout), err)))
	}
	a, err := q.read(stdout)
	if err != nil {
		return answer{}, unusable(fmt.Errorf("its answer cannot be used: %w", err))
	}
	return a, nil
}

func ended(how string) error {
	return &hook.Fault{Cause: hook.BadExit, Err: fmt.Errorf("it ended with %s", how)}
}

func unusable(err error) error { return &hook.Fault{Cause: hook.BadAnswer, Err: err} }
