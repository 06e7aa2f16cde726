// Package exechook runs a program as a hook. The same program can run as a hook of Claude Code.
//
//	stdin    the call, one JSON object: see hookjson.Request
//	stdout   the answer, one JSON object or nothing: see hookjson.Request.Read
//	stderr   the reason, if the program ends with 2; otherwise only for the log, at level debug
//	exit     0: the answer counts; nothing on stdout is no opinion
//	         2, with words on stderr, of a gate: before the tool the call is denied, after it the
//	         model is told
//
// In all other cases the hook "could not run": any other exit status; exit status 2 without
// text on stderr, or from an observer; a signal; a program that is missing or not
// executable; a program that takes longer than its budget; an answer that is not a JSON
// object, has a key twice, an unknown key or value, or is about another call.
//
// Shells and interpreters also end with 2 and an error text if a script is missing or broken.
// If the hook is a gate, the call is then refused, which is right. An observer must answer in
// JSON, so that a broken observer stops no call.
//
// The program is looked up at each run. If it is missing, the worker starts anyway, and a
// gate refuses calls until the program is there. It is started from its argument
// list, without a shell. Its environment is PATH, HOME, LANG, CLAUDE_PROJECT_DIR (its
// folder), TRACEPARENT and TRACESTATE if there is a trace, and the variables that
// Config.Env names, except those that begin with TOOLFLEET_. When the program ends or its
// budget is used up, everything that it has started is killed: see package process.
package exechook

import (
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
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/hookjson"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// Config says what to run, and for which calls. Name is required. Before or After is required,
// or both.
type Config struct {
	Name, Match string
	Priority    int
	Class       hook.Class
	Budget      time.Duration // Name to Budget are as in [hook.Hook]
	// Before and After are programs with their arguments. A program with a slash is
	// relative to Dir. Any other program is looked up in PATH.
	Before, After []string
	// Dir is the working directory: the folder of the file that names the hook. Default: the
	// process's own.
	Dir string
	// Env names the variables of the worker that are passed on.
	Env []string
	// Sandbox confines the programs. Nil: they may do what this process may.
	Sandbox *sandbox.Box
	Logger  *slog.Logger // nil: silent
}

const (
	maxStderr = 64 << 10 // bytes kept of stderr
	exitBlock = 2
)

// New returns the hook. A missing program is logged and is no error. The hook's class decides
// at each call whether the call may go on without it.
func New(cfg Config) (hook.Hook, error) {
	var targets [2]hookjson.Target
	var errs []error
	for i, command := range [][]string{cfg.Before, cfg.After} {
		if command != nil {
			target, err := Program(cfg, command)
			targets[i] = target
			errs = append(errs, err)
		}
	}
	h := hook.Hook{Name: cfg.Name, Match: cfg.Match, Priority: cfg.Priority, Class: cfg.Class, Budget: cfg.Budget}
	return hookjson.New(h, targets[0], targets[1]), errors.Join(errs...)
}

// program is one of the two commands of a hook.
type program struct {
	gate bool
	name string // the program as the operator wrote it
	args []string
	dir  string // absolute
	env  []string
	box  *sandbox.Box
	log  *slog.Logger
}

// Program returns command as a target for a hook. The hook has the name, class, folder and
// environment of cfg; Before and After of cfg are not used. As in [New], the program may be
// missing.
func Program(cfg Config, command []string) (hookjson.Target, error) {
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
	p := program{gate: cfg.Class != hook.Observe, name: command[0], args: slices.Clone(command), dir: dir, env: cfg.Env, box: cfg.Sandbox, log: cfg.Logger}
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

// Name returns the program as the operator wrote it.
func (p program) Name() string { return p.name }

// Ask runs the program once. An error means that it could not run.
func (p program) Ask(ctx context.Context, q hookjson.Request) (hookjson.Answer, error) {
	q.Cwd = p.dir
	stdin, err := rawjson.Marshal(q)
	if err != nil {
		return hookjson.Answer{}, err
	}
	env, err := p.environ(ctx)
	if err != nil {
		return hookjson.Answer{}, notStarted(err)
	}
	result, err := process.Run(ctx, process.Command{
		Args: p.args, Dir: p.dir, Env: env, Stdin: stdin, Limit: hookjson.MaxAnswer, LimitStderr: maxStderr, Sandbox: p.box,
	})
	var a hookjson.Answer
	switch {
	case err == nil:
		a, err = p.read(q, result)
	case ctx.Err() == nil:
		err = notStarted(p.explainStart(err))
	}
	log := q.Logger(ctx, p.log)
	if stderr := result.Stderr.Bytes(); len(stderr) > 0 && (err != nil || result.ExitCode != exitBlock) {
		log.Debug("a hook wrote to stderr", "stderr", string(stderr))
	}
	hookjson.LogQuote(log, err)
	return a, err
}

func notStarted(err error) error {
	return &hook.Fault{Cause: hook.NotStarted, Err: fmt.Errorf("it did not start: %w", err)}
}

// explainStart returns why the program could not be started. It leaves out the path,
// because the caller names the program.
func (p program) explainStart(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	if _, missing := os.Stat(p.args[0]); missing != nil || !strings.Contains(p.args[0], "/") {
		return err
	}
	switch { // the file exists, so its first line is missing or names a missing program
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w; a script needs a first line such as #!/bin/sh", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: what the first line of the script names", err)
	}
	return err
}

// startError returns an error from looking up the program, without the path.
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

// environ returns the variables of the worker's environment that the program may see. The
// call itself comes on stdin.
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

// read turns the program's exit status and output into an answer.
func (p program) read(q hookjson.Request, r process.Result) (hookjson.Answer, error) {
	stderr := strings.TrimSpace(string(r.Stderr.Bytes()))
	switch {
	case r.ExitCode == exitBlock && !p.gate:
		return hookjson.Answer{}, ended("exit status 2, and it is no gate")
	case r.ExitCode == exitBlock && stderr == "":
		return hookjson.Answer{}, ended("exit status 2 and no reason on stderr")
	case r.ExitCode == exitBlock:
		return q.Words(stderr), nil
	case r.ExitCode != 0:
		return hookjson.Answer{}, ended(r.Status())
	case r.Stdout.Dropped > 0:
		return hookjson.Answer{}, hookjson.Invalid(fmt.Errorf("its answer has more than %d bytes", hookjson.MaxAnswer))
	}
	return q.Read(r.Stdout.Bytes())
}

func ended(how string) error {
	return &hook.Fault{Cause: hook.BadExit, Err: fmt.Errorf("it ended with %s", how)}
}
