// Package localtools reads the tools file and the policy that the settings name, and opens the
// tools that a worker in this process serves. All of its errors about files are usage errors.
package localtools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
	"github.com/toolfleet/toolfleet/worker/tool/resultread"
)

// Here is the default root for commands that offer the file tools without --root: the current
// folder.
const Here = "."

// File reads the tools file of the settings. dir is the folder to which its programs are
// relative. Without a tools file both are empty.
func File(cfg *config.Config) (file schemas.ToolsFile, dir string, err error) {
	if file, dir, err = cfg.ReadTools(); err != nil {
		return file, "", command.Usage(err)
	}
	return file, dir, nil
}

// ServerPrograms returns the program files that the commands of servers and long-lived
// programs name. It returns none if the tools file cannot be read.
func ServerPrograms(cfg *config.Config) (all []string) {
	file, dir, err := File(cfg)
	if err != nil {
		return nil
	}
	for _, server := range file.Servers {
		all = append(all, worker.Programs(server.Command, dir)...)
	}
	return all
}

// Serving holds the tools that a worker in this process serves.
type Serving struct {
	Registry *tool.Registry      // empty only if servers could not be started
	Roots    []string            // paths of the root folder, the canonical one first, for path rules
	Gaps     map[string][]string // what the sandboxes of tools lack, by tool
	root     *sharedRoot
	own      *tool.Registry // without the tools of servers
	servers  *toolservers.Servers
	rules    schemas.Rules // of the tools file
	ownRules schemas.Rules // without those about servers
	closing  *sync.Once
}

// sharedRoot is a root folder that several [Serving] use.
type sharedRoot struct {
	*builtin.Root
	users atomic.Int32
}

// close closes the folder for one user.
func (r *sharedRoot) close() {
	if r != nil && r.users.Add(-1) == 0 {
		_ = r.Root.Close() // closing a folder loses no data
	}
}

// States returns the states of the programs and services that bring tools.
func (s *Serving) States() []wire.ToolServer { return s.servers.States() }

// SayWhatIsDown names the programs and services that do not run.
func (s *Serving) SayWhatIsDown(a *command.App) {
	for _, server := range s.States() {
		if server.Down != "" {
			a.Say("server %s", whatIsDown(server))
		}
	}
}

// Whole returns an error if some tools are unknown because their servers could not be started.
// A batch that ran without this check could tell the model that a tool does not exist.
func (s *Serving) Whole() error {
	var errs []error
	for _, server := range s.servers.Lost() {
		errs = append(errs, errors.New("server "+whatIsDown(server)))
	}
	return errors.Join(errs...)
}

// whatIsDown describes a server that does not run.
func whatIsDown(s wire.ToolServer) string {
	text := fmt.Sprintf("%s does not run, so its tools are missing: %s", terminal.Clean(s.Name, 80), terminal.Clean(s.Down, 600))
	if s.Printed != "" {
		text += "\nIt printed:"
		for line := range strings.Lines(s.Printed) {
			text += "\n  " + terminal.Clean(strings.TrimSpace(line), 300)
		}
	}
	if s.Advice != "" {
		text += "\n" + terminal.Clean(s.Advice, 1000)
	}
	return text
}

// Policy reads the policy of the settings, including the rules of the tools file.
func (s *Serving) Policy(cfg *config.Config) (*config.Policy, error) { return Policy(cfg, s.rules) }

// Policy reads the policy of the settings, and adds the given rules of a tools file.
func Policy(cfg *config.Config, tools schemas.Rules) (*config.Policy, error) {
	p, err := cfg.ReadPolicy(string(cfg.Tools), tools)
	if err != nil {
		return nil, command.Usage(err)
	}
	return p, nil
}

// Open opens the tools of the tools file, and the file tools on the root of the settings. standard
// is the root if the settings name none; if standard is "" too, there are no file tools. It starts
// the servers of the file.
func Open(ctx context.Context, cfg *config.Config, standard string, log *slog.Logger) (*Serving, error) {
	file, dir, err := File(cfg)
	if err != nil {
		return nil, err
	}
	s := &Serving{own: &tool.Registry{}, servers: &toolservers.Servers{}, ownRules: file.Rules, closing: &sync.Once{}}
	var folder *builtin.Root
	if root := rootOf(cfg, standard); root != "" {
		if folder, err = builtin.OpenRoot(root); err != nil {
			return nil, command.Usagef("%w; --root names a folder that is there", err)
		}
		s.root = &sharedRoot{Root: folder}
		s.root.users.Store(1)
		s.Roots = []string{s.root.Dir()}
		if given, err := filepath.Abs(root); err == nil && given != s.root.Dir() {
			s.Roots = append(s.Roots, given)
		}
	}
	place := placeOf(cfg, file, dir, folder)
	if err := worker.OpenTools(s.own, file, place); err != nil {
		s.Close()
		return nil, command.Usage(fmt.Errorf("tools: %w", inFile(cfg, err)))
	}
	beside := PlaceOf(cfg, file, dir, standard)
	beside.Logger = log
	s.Registry = s.own.Clone()
	servers, err := toolservers.Open(ctx, s.Registry, file.Servers, beside)
	if err != nil {
		s.Close()
		return nil, command.Usage(fmt.Errorf("tools: %w", inFile(cfg, err)))
	}
	s.use(servers)
	s.Gaps = place.Gaps(file)
	if len(s.Registry.Definitions()) == 0 && len(servers.Lost()) == 0 {
		s.Close()
		return nil, command.Usage(errors.New("there is no tool to serve: name a tools file with --tools (`toolfleet init` writes one), or a folder for the builtin tools with --root"))
	}
	return s, nil
}

// use sets the servers and adds their rules. Their tools are registered already.
func (s *Serving) use(servers *toolservers.Servers) {
	s.servers, s.rules = servers, s.ownRules
	s.rules.Ask = append(slices.Clone(s.ownRules.Ask), servers.Rules()...)
}

// Changes returns a channel that gets a value when [Serving.Again] would return other tools.
// Call wait after ctx has ended and before Close.
func (s *Serving) Changes(ctx context.Context) (changes <-chan struct{}, wait func()) {
	return s.servers.Changes(ctx)
}

// Again returns a new Serving of the same files, with the tools that the servers list now. It
// shares all processes and the root folder with s. The caller has to close both.
func (s *Serving) Again(ctx context.Context) (*Serving, error) {
	next := *s
	next.Registry, next.closing = s.own.Clone(), &sync.Once{}
	servers, err := s.servers.Again(ctx, next.Registry)
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	next.use(servers)
	if next.root != nil {
		next.root.users.Add(1)
	}
	return &next, nil
}

// Check returns the error with which Open would fail at the tools of the settings, for example
// because a program is missing. It starts no servers.
func Check(cfg *config.Config, standard string) error {
	file, dir, err := File(cfg)
	if err != nil {
		return err
	}
	root, err := builtin.OpenRoot(rootOf(cfg, standard))
	if err != nil {
		return err
	}
	defer root.Close()
	return inFile(cfg, worker.OpenTools(&tool.Registry{}, file, placeOf(cfg, file, dir, root)))
}

// PlaceOf returns what the servers of a tools file in dir need. standard is the root if the
// settings name none; it may be "".
func PlaceOf(cfg *config.Config, file schemas.ToolsFile, dir, standard string) toolservers.Place {
	box := func(server schemas.Server) (*sandbox.Box, error) {
		name := rootOf(cfg, standard)
		if name == "" {
			return placeOf(cfg, file, dir, nil).ServerBox(server)
		}
		root, err := builtin.OpenRoot(name)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return placeOf(cfg, file, dir, root).ServerBox(server)
	}
	return toolservers.Place{Dir: dir, Secrets: secrets.Folder(cfg.Secrets), Version: daemon.ThisBuild().Release(), Box: box}
}

// Confined returns the names of the tools and servers that run commands, for [Confinement].
func Confined(cfg *config.Config) ([]string, error) {
	file, _, err := File(cfg)
	return worker.Names(file), err
}

// Confinement returns the sandbox policy for the commands of a tool or server. ok is false if
// the tool runs no commands, or has no sandbox.
func Confinement(cfg *config.Config, standard, name string) (policy sandbox.Policy, ok bool, err error) {
	file, dir, err := File(cfg)
	if err != nil {
		return policy, false, err
	}
	root, err := builtin.OpenRoot(rootOf(cfg, standard))
	if err != nil {
		return policy, false, command.Usagef("%w; --root names a folder that is there", err)
	}
	defer root.Close()
	commands, ok, err := worker.Find(file, name)
	if err != nil {
		return policy, false, command.Usage(err)
	}
	if !ok {
		return policy, false, nil
	}
	return placeOf(cfg, file, dir, root).Confinement(commands)
}

// placeOf returns the folders of the tools, and the files that their commands must not touch.
func placeOf(cfg *config.Config, file schemas.ToolsFile, dir string, root *builtin.Root) worker.Place {
	policy, err := cfg.ReadPolicy(string(cfg.Tools), file.Rules)
	if err != nil {
		policy = &config.Policy{} // nothing starts
	}
	folder := ""
	if root != nil {
		folder = root.Dir()
	}
	place := cfg.Place(policy, file, dir, folder)
	place.Dir, place.Root = dir, root
	return place
}

// Close ends the servers and closes the root folder. The tools must not run any more. A second call
// does nothing.
func (s *Serving) Close() {
	s.closing.Do(func() {
		s.servers.Close()
		s.root.close()
	})
}

// Promises returns the definitions of the tools of the settings, and the rules of the tools
// file. It does not open the tools, but it starts each server without a lock file to ask for
// its tools.
func Promises(ctx context.Context, cfg *config.Config, standard string) ([]schemas.Tool, schemas.Rules, error) {
	file, dir, err := File(cfg)
	if err != nil {
		return nil, file.Rules, err
	}
	tools, err := worker.Promises(file, rootOf(cfg, standard) != "")
	if err != nil {
		return nil, file.Rules, command.Usage(inFile(cfg, err))
	}
	more, ask, err := toolservers.Promises(ctx, file.Servers, PlaceOf(cfg, file, dir, standard))
	if err != nil {
		return nil, file.Rules, inFile(cfg, err)
	}
	file.Rules.Ask = append(file.Rules.Ask, ask...)
	if tools = append(tools, more...); resultread.Wanted(tools) {
		readable, err := resultread.Promise().WithDefaults()
		if err != nil {
			return nil, file.Rules, err
		}
		tools = append(tools, readable)
	}
	return tools, file.Rules, nil
}

func rootOf(cfg *config.Config, standard string) string {
	if cfg.Root != "" {
		return string(cfg.Root)
	}
	return standard
}

func inFile(cfg *config.Config, err error) error {
	if err == nil || cfg.Tools == "" {
		return err
	}
	return fmt.Errorf("%s: %w", cfg.Tools, err)
}
