// Package programhook runs hooks that are long-lived programs. Such a program speaks MCP on
// stdin and stdout, as the programs of a tools file do. Each run of a hook calls one tool of
// it:
//
//	arguments   the request of package hookjson
//	_meta       traceparent and tracestate, if there is a trace
//	result      the answer as text; no text changes nothing
//
// Package mcptool runs the processes. They start with the worker, are pooled, and are started
// again with backoff when they end. If a process dies during a run, the hook is
// asked once more, in another process. The hook could not run if that process dies too, if
// no process can be started, if the result is an error, or if its text is not an answer. A
// run that takes longer than the budget of the hook is cancelled. If the process then does
// not end the run, it is killed.
package programhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/hookjson"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
)

// Config holds the settings that all programs of a policy file share.
type Config struct {
	Dir     string // the folder of the policy file
	Version string // the version of toolfleet, for the programs
	Logger  *slog.Logger
}

// Programs makes targets for the hooks of one policy. Hooks with the same program and
// environment share its processes.
type Programs struct {
	cfg Config
	all map[string]*mcptool.Program
}

// New returns an empty set of programs.
func New(cfg Config) (*Programs, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Programs{cfg, map[string]*mcptool.Program{}}, nil
}

// Target returns the target of a hook. It starts nothing. env names the worker's variables
// that the program gets.
func (p *Programs) Target(hook string, program schemas.HookProgram, env []string) hookjson.Target {
	key := string(rawjson.MustMarshal([]any{program.Command, program.Processes, program.Shared, env}))
	if p.all[key] == nil {
		p.all[key] = mcptool.NewProgram(mcptool.Config{
			Server: schemas.Server{
				Name: strings.Join(program.Command, " "), Command: program.Command, Env: env, Program: true,
				Processes: program.Processes, Shared: program.Shared,
				Values: []schemas.HTTPValue{{Name: "CLAUDE_PROJECT_DIR", Template: p.cfg.Dir}},
			},
			Dir: p.cfg.Dir, Version: p.cfg.Version, Logger: p.cfg.Logger,
		})
	}
	return &target{p.all[key], program.Command[0], program.Tool, p.cfg.Dir, p.cfg.Logger.With("hook", hook)}
}

// target is one tool of a program.
type target struct {
	program *mcptool.Program
	name    string
	tool    string
	dir     string
	log     *slog.Logger
}

// Start starts the program, so that the first call need not wait for the start.
func (t *target) Start(ctx context.Context) error { return t.program.Warm(ctx) }

// Stop ends the program.
func (t *target) Stop() { t.program.Close() }

// Name returns the program as the operator wrote it.
func (t *target) Name() string { return t.name }

// Ask passes the request of a hook to the tool of the program, and returns the tool's answer.
func (t *target) Ask(ctx context.Context, q hookjson.Request) (hookjson.Answer, error) {
	q.Cwd = t.dir
	arguments, err := rawjson.Marshal(q)
	if err != nil {
		return hookjson.Answer{}, err
	}
	log := q.Logger(ctx, t.log)
	text, err := t.program.Ask(ctx, messages.TenantID(q.Tenant), t.tool, arguments)
	var failed *mcptool.AskError
	switch {
	case errors.As(err, &failed) && !failed.Started:
		return hookjson.Answer{}, &hook.Fault{Cause: hook.NotStarted, Err: err}
	case errors.As(err, &failed):
		if failed.Said != "" {
			log.Debug("a hook answered with an error", "said", failed.Said)
		}
		return hookjson.Answer{}, &hook.Fault{Cause: hook.BadExit, Err: err}
	case err != nil:
		return hookjson.Answer{}, err
	case len(text) > hookjson.MaxAnswer:
		return hookjson.Answer{}, hookjson.Invalid(fmt.Errorf("its answer is longer than %d bytes", hookjson.MaxAnswer))
	}
	a, err := q.Read([]byte(text))
	hookjson.LogQuote(log, err)
	return a, err
}
