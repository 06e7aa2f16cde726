package config

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/exechook"
	"github.com/toolfleet/toolfleet/worker/hook/hookjson"
	"github.com/toolfleet/toolfleet/worker/hook/httphook"
	"github.com/toolfleet/toolfleet/worker/hook/programhook"
)

// Hooks builds the hooks of the policy file and adds GoHooks. Programs of hooks are relative
// to the file's folder. version is the version of toolfleet, which long-lived programs get. place
// says what the commands of hooks must not reach.
func (p *Policy) Hooks(version string, place worker.Place, log *slog.Logger) (hook.Set, error) {
	programs, err := programhook.New(programhook.Config{Dir: p.dir, Version: version, Logger: log})
	if err != nil {
		return hook.Set{}, err
	}
	hooks := slices.Clone(p.GoHooks)
	var errs []error
	for _, entry := range p.hooks {
		h, err := p.hook(entry, programs, place, log)
		errs = append(errs, err)
		hooks = append(hooks, h)
	}
	if err := errors.Join(errs...); err != nil {
		return hook.Set{}, err
	}
	return hook.NewSet(hooks...)
}

func (p *Policy) hook(entry schemas.HookEntry, programs *programhook.Programs, place worker.Place, log *slog.Logger) (hook.Hook, error) {
	var targets [2]hookjson.Target
	box, err := place.HookBox(entry)
	if err != nil {
		return hook.Hook{}, fmt.Errorf("hook %s: %w", entry.Name, err)
	}
	var errs []error
	for i, asked := range []*schemas.HookTarget{entry.Before, entry.After} {
		var err error
		switch {
		case asked == nil:
		case asked.HTTP != nil:
			targets[i], err = httphook.New(httphook.Config{Name: entry.Name, Request: *asked.HTTP, Secrets: p.secrets, Logger: log})
		case asked.Program != nil:
			targets[i] = programs.Target(entry.Name, *asked.Program, entry.Env)
		default:
			own := exechook.Config{Name: entry.Name, Class: hook.Class(entry.Class), Dir: p.dir, Env: entry.Env, Sandbox: box, Logger: log}
			targets[i], err = exechook.Program(own, asked.Command)
		}
		errs = append(errs, err)
	}
	h := hook.Hook{Name: entry.Name, Match: entry.Match, Priority: entry.Priority, Class: hook.Class(entry.Class), Budget: entry.Budget}
	return hookjson.New(h, targets[0], targets[1]), errors.Join(errs...)
}

// hookCommands returns the commands of the hooks of the policy file.
func (p *Policy) hookCommands() (all [][]string) {
	for _, entry := range p.hooks {
		for _, asked := range []*schemas.HookTarget{entry.Before, entry.After} {
			switch {
			case asked == nil || asked.HTTP != nil:
			case asked.Program != nil:
				all = append(all, asked.Program.Command)
			default:
				all = append(all, asked.Command)
			}
		}
	}
	return all
}
