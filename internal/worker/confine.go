package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
	"github.com/toolfleet/toolfleet/worker/tool/egress"
)

// Place says where the tools of a tools file are, and which files their commands must not reach.
type Place struct {
	Dir  string        // the folder of the tools file; its programs are relative to it
	Root *builtin.Root // the root of the file tools; nil: there are no file tools
	// Secrets is the folder of the secrets that the file names, or "".
	Secrets secrets.Folder
	// Hidden are files that no command may read: the worker's keys.
	Hidden []string
	// Fixed are files that no command may change: settings, policy, tools file, and the
	// lock files of servers.
	Fixed []string
	// States are the folders that tools, servers and hooks name with the key state: see
	// [StatesOf] and [StatesOfHooks]. Each may have made links in its own.
	States []string
	// Shared are further folders that commands of tools may change. In them a command may have
	// made a link.
	Shared []string
	// Fleet lists the NATS servers as host:port. The proxy of a sandbox never connects to
	// them.
	Fleet []string
	// Tighten is the limit that the platform's policy puts on every sandbox, or nil.
	Tighten *schemas.Sandbox
}

// The standard limits of a command.
const (
	standardProcesses = 1000
	standardFileSize  = 4 << 30
	standardDisk      = 16 << 30
)

// Commands describes the commands that one entry of a tools file runs on this machine.
type Commands struct {
	Name    string // the entry's name, for people
	Sandbox schemas.Sandbox
	// shell says that the model writes the commands, with Bash. If it is false, the programs
	// may also read their own folder and use the network.
	shell bool
	stays bool   // the commands serve many calls
	label string // a name of a folder
	// identity holds the values that determine the folder for temporary files.
	identity []any
}

// CommandsOf returns the commands of a tool. ok is false if the tool runs no commands.
func CommandsOf(entry schemas.Entry) (c Commands, ok bool) {
	var command []string
	switch {
	case entry.Exec != nil:
		command = entry.Exec.Command
	case entry.Check != nil:
		command = entry.Check.Command
	}
	return Commands{
		Name: entry.Name, Sandbox: entry.Sandbox, shell: entry.Builtin == "Bash", label: entry.Name,
		identity: []any{entry.Name, entry.Digest, command},
	}, entry.RunsCommands()
}

// CommandsOfServer returns the program of a server. ok is false if the server is a service.
func CommandsOfServer(server schemas.Server) (c Commands, ok bool) {
	label := "server"
	if !server.Program {
		label = server.Name // servers of programs have names of their own
	}
	return Commands{
		Name: "server " + server.Name, Sandbox: server.Sandbox, stays: true, label: label,
		identity: []any{"server", server.Name, server.Command},
	}, len(server.Command) > 0
}

// CommandsOfHook returns the commands of a hook. ok is false if they have no sandbox.
func CommandsOfHook(hook schemas.HookEntry) (c Commands, ok bool) {
	if hook.Sandbox == nil {
		return c, false
	}
	return Commands{
		Name: "hook " + hook.Name, Sandbox: *hook.Sandbox, label: "hook-" + hook.Name,
		// As text, since the targets have pointers, and addresses change.
		identity: []any{"hook", hook.Name, rawjson.MustMarshal([]*schemas.HookTarget{hook.Before, hook.After})},
	}, true
}

// Confinement returns what the commands may reach. ok is false if their sandbox is off.
func (p Place) Confinement(c Commands) (policy sandbox.Policy, ok bool, err error) {
	s := p.tightened(c)
	if s.Off {
		return policy, false, nil
	}
	dir, err := filepath.Abs(p.Dir)
	if err != nil {
		return policy, false, err
	}
	policy = sandbox.Policy{
		Read:    sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")),
		Network: sandbox.Reach(s.Network), Hosts: s.Hosts,
		Limit: sandbox.Bounds{
			Memory: s.Limits.Memory, Processes: s.Limits.Processes, FileSize: s.Limits.FileSize, CPU: int(s.Limits.CPU.Seconds()), Disk: s.Limits.Disk,
		},
	}
	if !c.shell {
		policy.Read = append(policy.Read, dir)
	}
	policy.Loose = p.loose(dir, s.State)
	for _, list := range []struct {
		names []string
		to    *[]string
	}{{s.Read, &policy.Read}, {s.State, &policy.Write}} {
		for _, name := range list.names {
			real, err := sandbox.Settle(below(dir, name), policy.Loose)
			if err != nil {
				return policy, false, fmt.Errorf("sandbox: %w", err)
			}
			*list.to = append(*list.to, real)
		}
	}
	policy.Measured = slices.Clone(policy.Write)
	if p.Root != nil {
		policy.Write = append(policy.Write, p.Root.Dir())
	}
	policy.Protect, policy.Replaceable = p.protected(), p.replaceable()
	policy.Hide = p.hidden()
	for _, name := range s.Required {
		policy.Required = append(policy.Required, sandbox.Property(name))
	}
	slices.Sort(policy.Read)
	policy.Read = slices.Compact(policy.Read)
	policy.Temp, err = tempFolder(dir, c, policy.Loose)
	return policy, true, err
}

// hidden returns the paths that no tool may read, with links resolved.
func (p Place) hidden() (all []string) {
	for _, name := range p.Hidden {
		all = append(all, canonical(name))
	}
	return all
}

// protected returns the paths that no tool may change. For a link it also returns the
// target.
func (p Place) protected() (all []string) {
	for _, name := range p.named() {
		all = append(all, name)
		if real := canonical(name); real != name {
			all = append(all, real)
		}
	}
	return all
}

// replaceable returns the protected paths that a command can still replace. They are links,
// which a mount cannot cover, or lie behind a link.
func (p Place) replaceable() (all []string) {
	if p.Root == nil {
		return nil
	}
	for _, name := range p.named() {
		if _, err := sandbox.Settle(name, []string{p.Root.Dir()}); err != nil {
			all = append(all, name)
		}
	}
	return all
}

// named returns the paths that no tool may change, including links.
func (p Place) named() (all []string) {
	if p.Root != nil {
		all = sandbox.ProtectedIn(p.Root.Dir())
	}
	for _, name := range p.Fixed {
		if abs, err := filepath.Abs(name); err == nil {
			all = append(all, abs)
		}
	}
	return all
}

// loose returns the folders that commands of any tool may change. A command may have made a
// link in such a folder.
func (p Place) loose(dir string, own []string) (all []string) {
	if p.Root != nil {
		all = append(all, p.Root.Dir())
	}
	names := slices.Clone(p.Shared)
	for _, name := range slices.Concat(p.States, own) {
		names = append(names, below(dir, name))
	}
	slices.Sort(names) // so that a folder comes before those below it
	for _, name := range slices.Compact(names) {
		if real, err := sandbox.Settle(name, all); err == nil { // another check reports this error
			all = append(all, real)
		}
	}
	return all
}

// Gaps returns, by tool or server, what the sandboxes of a file cannot prevent.
func (p Place) Gaps(file schemas.ToolsFile) map[string][]string {
	gaps := map[string][]string{}
	for _, c := range allCommands(file, p.Root != nil) {
		if lacks := p.gaps(c); len(lacks) > 0 {
			gaps[c.Name] = lacks
		}
	}
	return gaps
}

// gaps returns what the sandbox of commands cannot prevent.
func (p Place) gaps(c Commands) (gaps []string) {
	if p.tightened(c).Off {
		return []string{"off: commands may do what the worker may"}
	}
	policy, ok, err := p.Confinement(c)
	if err != nil || !ok {
		return nil
	}
	if policy.Network == sandbox.HostNetwork {
		gaps = append(gaps, "network: host, so commands reach whatever the worker reaches, NATS and sockets of this machine included")
	}
	for _, m := range sandbox.Resolve(policy, sandbox.Local()).Missing {
		gaps = append(gaps, m.String())
	}
	return gaps
}

// HookGaps returns, by hook, what the sandboxes of its commands cannot prevent.
func (p Place) HookGaps(hooks []schemas.HookEntry) map[string][]string {
	gaps := map[string][]string{}
	for _, hook := range hooks {
		c, confined := CommandsOfHook(hook)
		lacks := []string{"no sandbox: hooks may do what the worker may"}
		if confined {
			lacks = p.gaps(c)
		}
		if (confined || hook.Runs()) && len(lacks) > 0 {
			gaps["hook "+hook.Name] = lacks
		}
	}
	return gaps
}

// allCommands returns the commands of all tools and servers of a file.
func allCommands(file schemas.ToolsFile, root bool) (all []Commands) {
	for _, entry := range entries(file, root) {
		if c, ok := CommandsOf(entry); ok {
			all = append(all, c)
		}
	}
	for _, server := range file.Servers {
		if c, ok := CommandsOfServer(server); ok {
			all = append(all, c)
		}
	}
	return all
}

// Names returns the names that [Find] accepts.
func Names(file schemas.ToolsFile) (names []string) {
	for _, entry := range entries(file, true) {
		if entry.RunsCommands() {
			names = append(names, entry.Name)
		}
	}
	for _, server := range file.Servers {
		if len(server.Command) > 0 {
			names = append(names, server.Name)
		}
	}
	return names
}

// Find returns the commands of a tool or server. The name of a server, or of one of its tools,
// finds the server. ok is false if the entry has no commands.
func Find(file schemas.ToolsFile, name string) (c Commands, ok bool, err error) {
	for _, entry := range entries(file, true) {
		if entry.Name == name {
			c, ok = CommandsOf(entry)
			return c, ok, nil
		}
	}
	for _, server := range file.Servers {
		if server.Name == name || server.Prefix != "" && strings.HasPrefix(name, server.Prefix) {
			c, ok = CommandsOfServer(server)
			return c, ok, nil
		}
	}
	return c, false, fmt.Errorf("there is no tool %.80q here, and no server; `toolfleet tools ls` lists the tools", name)
}

// ServerBox makes the sandbox of a server, or returns nil if it has none.
func (p Place) ServerBox(server schemas.Server) (*sandbox.Box, error) {
	c, ok := CommandsOfServer(server)
	if !ok {
		return nil, nil
	}
	return p.box(c)
}

// HookBox makes the sandbox of a hook's commands, or returns nil if they have none.
func (p Place) HookBox(hook schemas.HookEntry) (*sandbox.Box, error) {
	c, ok := CommandsOfHook(hook)
	if !ok {
		return nil, nil
	}
	return p.box(c)
}

// box makes the sandbox of the commands, or returns nil if it is off.
func (p Place) box(c Commands) (*sandbox.Box, error) {
	policy, ok, err := p.Confinement(c)
	if err != nil || !ok {
		return nil, err
	}
	for _, name := range policy.Write {
		if err := makeFolder(name, policy.Loose); err != nil {
			return nil, fmt.Errorf("state folder: %w", err)
		}
	}
	if err := ownFolder(filepath.Dir(policy.Temp)); err != nil {
		return nil, err
	}
	if err := holdTemp(policy.Temp, time.Now()); err != nil {
		return nil, err
	}
	box, err := sandbox.New(policy)
	if err != nil {
		return nil, err
	}
	if s := p.tightened(c); box.Plan.Way != sandbox.NoWay {
		box.Proxy = egress.New(egress.Config{Any: policy.Network == sandbox.AnyHost, Hosts: s.Hosts, Loopback: s.Loopback, Fleet: p.Fleet})
	}
	return box, nil
}

// makeFolder makes a folder. It does not follow links out of the loose folders.
func makeFolder(name string, loose []string) error {
	for _, folder := range loose {
		rel, err := filepath.Rel(folder, name)
		if err != nil || rel == "." || !filepath.IsLocal(rel) {
			continue
		}
		root, err := os.OpenRoot(folder)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		defer root.Close()
		return root.MkdirAll(rel, 0o777)
	}
	return os.MkdirAll(name, 0o777)
}

// tempFolder returns a tool's folder for temporary files. All workers of this user on this
// machine share the folder while the tool's configuration stays the same. A probe must see
// what the run of a lost worker wrote there.
func tempFolder(dir string, c Commands, loose []string) (string, error) {
	base, err := filepath.Abs(os.TempDir())
	if err == nil {
		base, err = sandbox.Settle(base, loose)
	}
	if err != nil {
		return "", fmt.Errorf("folder for temporary files: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", dir, c.identity))
	return filepath.Join(base, "toolfleet-"+strconv.Itoa(os.Getuid()), c.label+"-"+hex.EncodeToString(sum[:6])), nil
}

// ownFolder makes a folder that only this user can enter. Its name can be guessed. If the
// folder exists and other users can enter or own it, ownFolder returns an error.
func ownFolder(name string) error {
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("folder for temporary files: %w", err)
	}
	info, err := os.Lstat(name)
	if err == nil && (!info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ownedByUs(info)) {
		err = fmt.Errorf("%s belongs to somebody else, or others may enter it: remove it, or set TMPDIR to another folder", name)
	}
	if err != nil {
		return fmt.Errorf("folder for temporary files: %w", err)
	}
	return nil
}

// below returns the absolute form of a path. The path is relative to dir, or begins with ~/
// for the home folder.
func below(dir, name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			dir, name = home, rest
		}
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	return filepath.Clean(name)
}

// canonical resolves the links in a path, as far as the path exists.
func canonical(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	for dir, rest := abs, ""; ; {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return abs
		}
		dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
	}
}
