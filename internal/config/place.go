package config

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
)

// HiddenFiles returns the files and folders of the settings that no command may read: keys, secrets
// and the server's data.
func (c *Config) HiddenFiles() []string {
	return given(c.NATS.Creds, c.NATS.NKey, c.NATS.TLSKey, string(c.Approver.Key), string(c.Server.Data), string(c.Secrets))
}

// FixedFiles returns the files of the settings that no command may change.
func (c *Config) FixedFiles() []string {
	fixed := given(string(c.Tools), string(c.MCP), string(c.Policy), c.File(), string(c.API.Tokens))
	if keys := c.API.JWT.Keys; keys != "" && !strings.Contains(keys, "://") {
		fixed = append(fixed, keys)
	}
	return fixed
}

func given(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// Servers returns the NATS servers that the settings name, as host:port.
func (c *Config) Servers() (all []string) {
	for address := range strings.SplitSeq(c.NATS.URL, ",") {
		if !strings.Contains(address, "://") {
			address = "nats://" + address
		}
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Hostname() == "" {
			continue // no connection is made to it either
		}
		all = append(all, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222")))
	}
	return all
}

// ReadTools reads the tools file of the settings, and the servers of a file .mcp.json if they name
// one. dir is the folder to which programs are relative. Without a tools file it is empty.
func (c *Config) ReadTools() (file schemas.ToolsFile, dir string, err error) {
	if name := string(c.Tools); name != "" {
		body, err := os.ReadFile(name)
		if err != nil {
			return file, "", fmt.Errorf("read the tools file: %w; `toolfleet init` writes one to start from, --tools names another", err)
		}
		if file, err = schemas.ParseToolsFile(name, body); err != nil {
			return file, "", err
		}
		dir = filepath.Dir(name)
	}
	if name := string(c.MCP); name != "" {
		body, err := os.ReadFile(name)
		if err != nil {
			return file, "", fmt.Errorf("read the file of MCP servers: %w; --mcp names another", err)
		}
		servers, err := schemas.ParseMCPJSON(name, body, os.Getenv)
		if err != nil {
			return file, "", err
		}
		file.Servers = append(file.Servers, servers...)
	}
	return file, dir, nil
}

// Place says what the commands of tools and of hooks must not reach, and which folders any of them
// may change. It is the same for both, since a command of one may make a link in a folder of the
// other. Its paths are absolute, or relative to the current folder. dir is the folder of the tools
// file. root is the folder of the file tools, or "".
func (c *Config) Place(p *Policy, file schemas.ToolsFile, dir, root string) worker.Place {
	fixed := append(c.FixedFiles(), worker.LockFiles(file, dir)...)
	if root != "" {
		fixed = append(fixed, programsIn(root, p, file, dir)...)
	}
	return worker.Place{
		Secrets: secrets.Folder(c.Secrets), Hidden: c.HiddenFiles(), Fixed: fixed, Fleet: c.Servers(), Tighten: p.Sandbox,
		States: append(worker.StatesOf(file, dir), worker.StatesOfHooks(p.hooks, p.dir)...),
	}
}

// programsIn returns the programs below a folder that tools, servers and hooks run.
func programsIn(folder string, p *Policy, file schemas.ToolsFile, dir string) []string {
	all := worker.ProgramsOf(file, dir)
	for _, command := range p.hookCommands() {
		all = append(all, worker.Programs(command, p.dir)...)
	}
	return slices.DeleteFunc(all, func(name string) bool {
		real, err := filepath.EvalSymlinks(name)
		return !below(folder, name) && (err != nil || !below(folder, real))
	})
}

func below(folder, name string) bool {
	rel, err := filepath.Rel(folder, name)
	return err == nil && filepath.IsLocal(rel)
}

// hookPlace says where the commands of hooks run, and what they must not reach. roots are the paths
// of the folder of file tools, in which commands may have made links, the canonical path first. It
// reads the tools file if a hook has a sandbox: commands of its tools may have made links too.
func (c *Config) hookPlace(p *Policy, roots []string) (place worker.Place, err error) {
	var file schemas.ToolsFile
	var dir, root string
	if slices.ContainsFunc(p.hooks, func(hook schemas.HookEntry) bool { return hook.Sandbox != nil }) {
		if file, dir, err = c.ReadTools(); err != nil {
			return place, err
		}
	}
	if len(roots) > 0 {
		root = roots[0]
	}
	place = c.Place(p, file, dir, root)
	place.Dir, place.Shared = p.dir, roots
	return place, nil
}
