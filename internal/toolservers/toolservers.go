// Package toolservers opens the MCP servers and programs of a tools file. internal/worker
// opens the other tools of the file. The two packages are separate because workers written in
// Go read no tools file.
package toolservers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
)

// Place holds the things that servers need from the worker.
type Place struct {
	Dir     string // the folder of the tools file
	Secrets secrets.Folder
	Version string       // the version of toolfleet
	Logger  *slog.Logger // nil: silent
	// Box makes the sandbox of a server's program. Nil: programs run without a sandbox.
	Box func(schemas.Server) (*sandbox.Box, error)
}

// config returns how to run a server. It returns an error if the server's sandbox cannot be
// made.
func (p Place) config(server schemas.Server) (mcptool.Config, error) {
	cfg := mcptool.Config{Server: server, Dir: p.Dir, Secrets: p.Secrets, Version: p.Version, Logger: p.Logger}
	if p.Box == nil {
		return cfg, nil
	}
	var err error
	cfg.Sandbox, err = p.Box(server)
	return cfg, err
}

// lockPath returns the path of a server's lock file, or "".
func (p Place) lockPath(server schemas.Server) string {
	return mcptool.Config{Server: server, Dir: p.Dir}.LockPath()
}

// Servers holds the servers of a tools file.
type Servers struct {
	log     *slog.Logger
	configs []mcptool.Config
	opened  []*mcptool.Server // one server for each config; nil: it could not be opened
	failed  []error           // for each config: why its server could not be opened

	mu    sync.Mutex
	found map[int]*mcptool.Server // servers that were opened later, by index; guarded by mu
}

// Open registers the tools of the servers. If a server has a lock file, Open starts the server
// in the background. Otherwise the server must run, because only the server knows its tools.
// If it does not run, its tools are missing, and [Servers.States] says so. Open returns an
// error for a mistake in the tools file, and for a required sandbox that this machine cannot
// make.
func Open(ctx context.Context, reg *tool.Registry, servers []schemas.Server, place Place) (*Servers, error) {
	log := place.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	configs, err := place.configs(servers)
	if err != nil {
		return nil, err
	}
	all := newServers(configs, log)
	var wg sync.WaitGroup
	for i, cfg := range configs {
		wg.Go(func() { all.opened[i], all.failed[i] = mcptool.Open(ctx, cfg) })
	}
	wg.Wait()
	if err := all.register(reg); err != nil {
		all.Close()
		return nil, err
	}
	for i, server := range servers {
		if server.Lock != "" {
			go func() { _ = all.opened[i].Warm(context.WithoutCancel(ctx)) }() // Warm logs its error itself
		}
	}
	return all, nil
}

func newServers(configs []mcptool.Config, log *slog.Logger) *Servers {
	return &Servers{
		log: log, configs: configs, opened: make([]*mcptool.Server, len(configs)), failed: make([]error, len(configs)), found: map[int]*mcptool.Server{},
	}
}

// register registers the tools of all servers.
func (s *Servers) register(reg *tool.Registry) error {
	var errs []error
	for i, cfg := range s.configs {
		server, err := cfg.Server, s.failed[i]
		switch {
		case err != nil && server.Lock != "":
			errs = append(errs, at(server, err))
		case err != nil:
			s.log.Warn("a server of tools could not be started, so its tools are not served until it can be; a lock file would keep them",
				"server", server.Name, "err", err, "printed", mcptool.ProblemOf(err).Printed)
		default:
			errs = append(errs, register(reg, server, s.opened[i], s.log)...)
		}
	}
	return errors.Join(errs...)
}

// running returns the servers that could be opened.
func (s *Servers) running() (all []*mcptool.Server) {
	for _, server := range s.opened {
		if server != nil {
			all = append(all, server)
		}
	}
	return all
}

func (p Place) configs(servers []schemas.Server) (all []mcptool.Config, err error) {
	var errs []error
	for _, server := range servers {
		cfg, err := p.config(server)
		if err != nil {
			errs = append(errs, at(server, err))
		}
		all = append(all, cfg)
	}
	return all, errors.Join(errs...)
}

// register registers the tools of a server. A tool whose name is taken is a mistake in the
// tools file, if the tool comes from the lock file. If it comes from the server's present
// list, register only leaves that tool out.
func register(reg *tool.Registry, server schemas.Server, opened *mcptool.Server, log *slog.Logger) (errs []error) {
	for _, t := range slices.Clone(opened.Tools()) {
		err := add(reg, t)
		switch {
		case err != nil && server.Lock == "":
			opened.Refuse(t, err.Error())
		case err != nil:
			errs = append(errs, at(server, err))
		}
	}
	for _, r := range opened.Refused() {
		log.Warn("a tool of a server is not served", "server", server.Name, "tool", r.Name, "why", r.Why)
	}
	return errs
}

// add registers a tool of a server. It refuses a name that another tool has with a version,
// because the tool must not become another version of that one.
func add(reg *tool.Registry, t mcptool.Served) error {
	if other, taken := reg.Lookup(t.Name); taken && other.Version != "" {
		return fmt.Errorf("tool %s is registered in version %s by another; give the server a prefix", t.Name, other.Version)
	}
	return reg.Add(t.Tool, t.Runner)
}

func at(server schemas.Server, err error) error {
	if server.Line > 0 {
		return fmt.Errorf("line %d: server %s: %w", server.Line, server.Name, err)
	}
	return fmt.Errorf("server %s: %w", server.Name, err)
}

// Rules returns a rule for each tool whose calls need a person's permission.
func (s *Servers) Rules() (rules []schemas.RuleEntry) {
	for _, server := range s.running() {
		for _, t := range server.Tools() {
			if t.Ask {
				rules = append(rules, askFirst(t.Name, server.Entry()))
			}
		}
	}
	return rules
}

// askFirst returns the rule for a tool whose calls need a person's permission. The rule has
// the reason, and names the key of the tools file that would prevent the question.
func askFirst(tool string, server schemas.Server) schemas.RuleEntry {
	own := strings.TrimPrefix(tool, server.Prefix)
	override := fmt.Sprintf("`override: {%s: {ask: false}}` in the entry of the server lets it run without asking", own)
	var reason string
	if server.Trusted {
		reason = fmt.Sprintf("The server %s does not say that its tool %s destroys nothing. If somebody knows that, %s.", server.Name, own, override)
	} else {
		reason = fmt.Sprintf("Nobody has said to trust the server %s. For somebody who does: `trust: annotations` in its entry believes what it says about its tools, and %s.",
			server.Name, override)
	}
	return schemas.RuleEntry{Name: "mcp " + tool, Tool: tool, Reason: reason}
}

// States returns the present state of each server.
func (s *Servers) States() []wire.ToolServer {
	states := s.Lost()
	for _, server := range s.running() {
		state := wire.ToolServer{Name: server.Name(), Tools: len(server.Tools())}
		if err := server.Down(); err != nil {
			state = down(state, err)
		}
		for _, r := range server.Refused() {
			if len(state.Refused) < maxRefused {
				state.Refused = append(state.Refused, r.String())
			}
		}
		states = append(states, state)
	}
	slices.SortFunc(states, func(a, b wire.ToolServer) int { return cmp.Compare(a.Name, b.Name) })
	return states
}

// Lost returns the servers that could not be opened. Their tools are not known.
func (s *Servers) Lost() (lost []wire.ToolServer) {
	for i, err := range s.failed {
		if err != nil {
			lost = append(lost, down(wire.ToolServer{Name: s.configs[i].Server.Name}, err))
		}
	}
	return lost
}

// down adds to a server's state the reason why it does not run.
func down(state wire.ToolServer, err error) wire.ToolServer {
	problem := mcptool.ProblemOf(err)
	state.Down, state.Printed, state.Advice = err.Error(), problem.Printed, problem.Advice
	return state
}

// maxRefused limits how many refused tools of a server are announced.
const maxRefused = 20

// Close ends the servers. No call may be running.
func (s *Servers) Close() {
	var wg sync.WaitGroup
	for _, server := range s.running() {
		wg.Go(server.Close)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, server := range s.found {
		wg.Go(server.Close)
		delete(s.found, i)
	}
	wg.Wait()
}

// Promises returns the tools and rules that [Open] would register. It starts only servers
// without a lock file.
func Promises(ctx context.Context, servers []schemas.Server, place Place) (tools []schemas.Tool, rules []schemas.RuleEntry, err error) {
	listed := make([]mcptool.List, len(servers))
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers { // all at once, because a silent server takes long
		wg.Go(func() { listed[i], errs[i] = Accepted(ctx, server, place) })
	}
	wg.Wait()
	for i, server := range servers {
		if errs[i] != nil {
			return nil, nil, at(server, errs[i])
		}
		for _, d := range listed[i].Tools {
			if len(server.Tools) > 0 && !slices.Contains(server.Tools, d.Name) {
				continue
			}
			promise, ask, err := mcptool.Promise(server, d)
			taken := slices.ContainsFunc(tools, func(t schemas.Tool) bool { return t.Name == promise.Name })
			if err != nil || taken && server.Lock == "" {
				continue // the tool is not served
			}
			tools = append(tools, promise)
			if ask {
				rules = append(rules, askFirst(promise.Name, server))
			}
		}
	}
	return tools, rules, nil
}

// Accepted returns the definitions in force: those in the lock file or, without one, those
// that the server lists.
func Accepted(ctx context.Context, server schemas.Server, place Place) (mcptool.List, error) {
	if path := place.lockPath(server); path != "" {
		lock, err := mcptool.ReadLock(path)
		return mcptool.List{Tools: lock.Definitions()}, err
	}
	return place.look(ctx, server)
}

// look starts a server and lists its tools.
func (p Place) look(ctx context.Context, server schemas.Server) (mcptool.List, error) {
	cfg, err := p.config(server)
	if err != nil {
		return mcptool.List{}, err
	}
	return mcptool.Look(ctx, cfg)
}

// Difference compares a definition that a server lists with its lock file.
type Difference struct {
	Tool  string `json:"tool"`
	State string `json:"state"` // same, new, changed, gone
}

// The states of a Difference.
const (
	Same    = "same"
	New     = "new"
	Changed = "changed"
	Gone    = "gone"
)

// Compare starts a server and compares its list with its lock file. If there is no lock file,
// every tool is new.
func Compare(ctx context.Context, server schemas.Server, place Place) (mcptool.List, []Difference, error) {
	listed, err := place.look(ctx, server)
	if err != nil {
		return listed, nil, at(server, err)
	}
	accepted := map[string]string{}
	if path := place.lockPath(server); path != "" {
		lock, err := mcptool.ReadLock(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return listed, nil, at(server, err)
		}
		for _, t := range lock.Tools {
			accepted[t.Name] = t.Digest
		}
	}
	var all []Difference
	for _, d := range listed.Tools {
		state := New
		if digest, known := accepted[d.Name]; known {
			state = Changed
			if digest == d.Digest() {
				state = Same
			}
		}
		delete(accepted, d.Name)
		all = append(all, Difference{d.Name, state})
	}
	for name := range accepted {
		all = append(all, Difference{name, Gone})
	}
	slices.SortFunc(all, func(a, b Difference) int { return cmp.Compare(a.Tool, b.Tool) })
	return listed, all, nil
}

// Accept writes these definitions into the lock file of a server.
func Accept(server schemas.Server, place Place, listed mcptool.List) error {
	return mcptool.WriteLock(place.lockPath(server), mcptool.NewLock(listed.Tools))
}
