package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
	"github.com/toolfleet/toolfleet/worker/tool/exectool"
	"github.com/toolfleet/toolfleet/worker/tool/httptool"
)

// OpenTools registers the tools of a tools file and, if the place has a root, the file tools (Read,
// Glob, Grep, Write, Edit, Bash). A tool of the file replaces a builtin of the same name. Commands
// run in a sandbox. The error joins all mistakes, with the lines of the file.
func OpenTools(reg *tool.Registry, file schemas.ToolsFile, place Place) error {
	if place.Root != nil {
		place.Root.Protect(place.protected())
		place.Root.Hide(place.hidden())
	}
	var errs []error
	for _, entry := range entries(file, place.Root != nil) {
		if err := open(reg, entry, place); err != nil {
			if entry.Line > 0 {
				err = fmt.Errorf("line %d: %w", entry.Line, err)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Promises returns the definitions of the tools that [OpenTools] would register. It starts
// nothing and does not look for programs. Plans and lists use it.
func Promises(file schemas.ToolsFile, root bool) ([]schemas.Tool, error) {
	var tools []schemas.Tool
	for _, entry := range entries(file, root) {
		promise, err := promiseOf(entry).WithDefaults()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", entry.Line, err)
		}
		tools = append(tools, promise)
	}
	return tools, nil
}

// entries returns the tools of the file. If root is set, it also returns the file tools that
// the file does not name.
func entries(file schemas.ToolsFile, root bool) []schemas.Entry {
	all := slices.Clone(file.Tools)
	if !root {
		return all
	}
	for _, name := range builtin.Names() {
		if !slices.ContainsFunc(file.Tools, func(e schemas.Entry) bool { return e.Name == name }) {
			all = append(all, schemas.Entry{Tool: schemas.Tool{Name: name}, Builtin: name})
		}
	}
	return all
}

func open(reg *tool.Registry, entry schemas.Entry, place Place) error {
	var box *sandbox.Box
	if c, ok := CommandsOf(entry); ok {
		var err error
		if box, err = place.box(c); err != nil {
			return fmt.Errorf("tool %s: %w", entry.Name, err)
		}
	}
	runner, err := openRunner(entry, place, box)
	if err != nil {
		return fmt.Errorf("tool %s: %w", entry.Name, err)
	}
	var ask probe
	if entry.Check != nil {
		if ask, err = openCheck(entry, place, box); err != nil {
			return fmt.Errorf("tool %s: check: %w", entry.Name, err)
		}
	}
	if entry.Exec != nil {
		runner = tool.Recovering(entry.Tool, runner, ask)
	}
	if ask != nil {
		runner = withProbe(runner, ask)
	}
	return reg.Add(promiseOf(entry), runner)
}

func openRunner(entry schemas.Entry, place Place, box *sandbox.Box) (tool.Runner, error) {
	switch {
	case entry.Exec != nil:
		return exectool.New(exectool.Config{Command: entry.Exec.Command, Dir: place.Dir, Env: entry.Env, Sandbox: box})
	case entry.HTTP != nil:
		harmless := entry.Kind != messages.KindWrite
		return httptool.New(httptool.Config{
			Request: *entry.HTTP, Secrets: place.Secrets, Timeout: entry.Timeout(),
			Harmless: harmless, Repeatable: harmless || entry.OnCrash == messages.OnCrashIdempotent,
		})
	}
	return builtin.New(entry.Builtin, place.Root, box)
}

// probe asks whether a run of a call was applied.
type probe = func(context.Context, tool.Call) (tool.Probed, error)

// withProbe adds a probe to a runner. The new runner still checks its input.
func withProbe(runner tool.Runner, ask probe) tool.Runner {
	prober := tool.NewProber(runner.Run, ask)
	if checker, ok := runner.(tool.Checker); ok {
		return struct {
			tool.Runner
			tool.Prober
			tool.Checker
		}{runner, prober.(tool.Prober), checker}
	}
	return prober
}

// openCheck returns the probe of an entry that has a check.
func openCheck(entry schemas.Entry, place Place, box *sandbox.Box) (probe, error) {
	if request := entry.Check.HTTP; request != nil {
		probe, err := httptool.NewProbe(*request, place.Secrets, entry.Check.Timeout)
		if err != nil {
			return nil, err
		}
		return probe.Probe, nil
	}
	probe, err := exectool.NewProbe(exectool.Config{Command: entry.Check.Command, Dir: place.Dir, Env: entry.Env, Sandbox: box},
		entry.Check.Timeout)
	if err != nil {
		return nil, err
	}
	return probe.Probe, nil
}

// promiseOf returns the definition of an entry's tool. If the entry of a file tool does not
// set a field, the field keeps the value of the file tool.
func promiseOf(entry schemas.Entry) schemas.Tool {
	if !slices.Contains(schemas.FileBuiltins, entry.Builtin) {
		return entry.Tool
	}
	given := entry.Tool
	own, _ := builtin.Promise(entry.Builtin)
	own.Name, own.Version = cmp.Or(given.Name, own.Name), given.Version
	own.Description = cmp.Or(given.Description, own.Description)
	own.Kind = cmp.Or(given.Kind, own.Kind)
	own.TimeoutMS = cmp.Or(given.TimeoutMS, own.TimeoutMS)
	own.OnCrash = cmp.Or(given.OnCrash, own.OnCrash)
	own.Retry = cmp.Or(given.Retry, own.Retry)
	own.Pool = cmp.Or(given.Pool, own.Pool)
	own.MaxOutput = cmp.Or(given.MaxOutput, own.MaxOutput)
	own.Truncate = cmp.Or(given.Truncate, own.Truncate)
	own.Results = cmp.Or(given.Results, own.Results)
	// A tools file must not let a builtin run beside others if the builtin has to run
	// alone.
	if own.ConcurrencySafe == nil || *own.ConcurrencySafe {
		own.ConcurrencySafe = cmp.Or(given.ConcurrencySafe, own.ConcurrencySafe)
		if given.SafeWhen != "" {
			own.SafeWhen, own.ConcurrencySafe = given.SafeWhen, nil
		}
	}
	own.Risk = cmp.Or(given.Risk, own.Risk)
	own.Semantic = append(own.Semantic, given.Semantic...)
	if given.InputSchema != nil {
		own.InputSchema = given.InputSchema
	}
	return own
}
