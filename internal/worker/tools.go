package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
	"github.com/toolfleet/toolfleet/worker/tool/exectool"
	"github.com/toolfleet/toolfleet/worker/tool/httptool"
)

// OpenTools registers the tools of a tools file, whose programs are relative to dir, and, if there
// is a root, the file tools (Read, Glob, Grep, Write, Edit, Bash). A tool of the file replaces a
// builtin of the same name. The error joins all mistakes, with the lines of the file.
func OpenTools(reg *tool.Registry, file schemas.ToolsFile, dir string, root *builtin.Root) error {
	var errs []error
	for _, entry := range entries(file, root != nil) {
		if err := open(reg, entry, dir, root); err != nil {
			if entry.Line > 0 {
				err = fmt.Errorf("line %d: %w", entry.Line, err)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Promises returns the definitions of the tools that OpenTools would register. It starts nothing
// and does not look for the programs. Plans and lists use it.
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

// entries returns the tools of the file and, with a root, the file tools that the file does not
// name.
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

func open(reg *tool.Registry, entry schemas.Entry, dir string, root *builtin.Root) error {
	var runner tool.Runner
	var err error
	if entry.Exec != nil {
		runner, err = exectool.New(exectool.Config{Command: entry.Exec.Command, Dir: dir, Env: entry.Env})
	} else {
		runner, err = builtin.New(entry.Builtin, root)
	}
	if err != nil {
		return fmt.Errorf("tool %s: %w", entry.Name, err)
	}
	if entry.Check != nil {
		probe, err := openCheck(entry, dir)
		if err != nil {
			return fmt.Errorf("tool %s: check: %w", entry.Name, err)
		}
		runner = tool.NewProber(runner.Run, probe)
	}
	return reg.Add(promiseOf(entry), runner)
}

// openCheck returns the probe of an entry that has a check.
func openCheck(entry schemas.Entry, dir string) (func(context.Context, tool.Call) (tool.Probed, error), error) {
	if request := entry.Check.HTTP; request != nil {
		probe, err := httptool.NewProbe(*request, entry.Check.Timeout)
		if err != nil {
			return nil, err
		}
		return probe.Probe, nil
	}
	probe, err := exectool.NewProbe(exectool.Config{Command: entry.Check.Command, Dir: dir, Env: entry.Env},
		entry.Check.Timeout)
	if err != nil {
		return nil, err
	}
	return probe.Probe, nil
}

// promiseOf returns the definition of an entry's tool. A file tool keeps its own value for each
// field that the entry does not set.
func promiseOf(entry schemas.Entry) schemas.Tool {
	if !slices.Contains(schemas.FileBuiltins, entry.Builtin) {
		return entry.Tool
	}
	given := entry.Tool
	own, _ := builtin.Promise(entry.Builtin)
	own.Name = cmp.Or(given.Name, own.Name)
	own.Description = cmp.Or(given.Description, own.Description)
	own.Kind = cmp.Or(given.Kind, own.Kind)
	own.TimeoutMS = cmp.Or(given.TimeoutMS, own.TimeoutMS)
	own.OnCrash = cmp.Or(given.OnCrash, own.OnCrash)
	own.Retry = cmp.Or(given.Retry, own.Retry)
	own.Pool = cmp.Or(given.Pool, own.Pool)
	own.MaxOutput = cmp.Or(given.MaxOutput, own.MaxOutput)
	own.Truncate = cmp.Or(given.Truncate, own.Truncate)
	// A tools file cannot let a builtin overlap others that must run alone.
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
