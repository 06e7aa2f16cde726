package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
)

type toolsMCPCmd struct {
	Add    mcpAddCmd    `cmd:"" help:"Write a server into the tools file, with a lock file of its tools."`
	Accept mcpAcceptCmd `cmd:"" help:"Accept the tools of a server as it lists them now."`
	Ls     mcpLsCmd     `cmd:"" help:"List the tools of the servers of the tools file, and what has changed since they were accepted."`
}

type mcpLsCmd struct {
	command.ToolFlags
	command.OutputFlags
}

// listedServer is a server as `tools mcp ls -o json` prints it.
type listedServer struct {
	Server string                   `json:"server"`
	Tools  []toolservers.Difference `json:"tools"`
	Error  string                   `json:"error,omitempty"`
}

func (c mcpLsCmd) Run(a *command.App) error {
	_, file, place, err := serversOf(a)
	if err != nil {
		return err
	}
	var all []listedServer
	rows := [][]string{{"SERVER", "TOOL", "STATE"}}
	for _, server := range file.Servers {
		_, tools, err := toolservers.Compare(a.Ctx, server, place)
		listed := listedServer{Server: server.Name, Tools: tools}
		if err != nil {
			listed.Error = err.Error()
			rows = append(rows, []string{terminal.Clean(server.Name, 40), "", terminal.Clean("does not run: "+err.Error(), 600)})
		}
		for _, d := range tools {
			rows = append(rows, []string{terminal.Clean(server.Name, 40), terminal.Clean(d.Tool, 64), d.State})
		}
		all = append(all, listed)
	}
	if c.JSON() {
		return a.Print(map[string]any{"servers": all})
	}
	return a.Table(rows)
}

type mcpAcceptCmd struct {
	command.ToolFlags
	Name string `arg:"" placeholder:"SERVER" help:"Name of the server in the tools file."`
}

// Help returns the text that --help shows below the command's usage.
func (mcpAcceptCmd) Help() string {
	return `Starts the server and writes the definitions that it lists into its lock file. Workers serve them when they start the next
time. Look at what has changed first: "toolfleet tools mcp ls" says it.`
}

func (c mcpAcceptCmd) Run(a *command.App) error {
	_, file, place, err := serversOf(a)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(file.Servers, func(s schemas.Server) bool { return s.Name == c.Name })
	switch {
	case i < 0:
		return command.Usagef("the tools file has no server %q", c.Name)
	case file.Servers[i].Lock == "":
		return command.Usagef("server %s has no lock file; write lock: %s.lock.json into its entry", c.Name, c.Name)
	}
	listed, differences, err := toolservers.Compare(a.Ctx, file.Servers[i], place)
	if err != nil {
		return err
	}
	if err := toolservers.Accept(file.Servers[i], place, listed); err != nil {
		return err
	}
	rows := [][]string{{"TOOL", "WAS"}}
	for _, d := range differences {
		rows = append(rows, []string{terminal.Clean(d.Tool, 64), d.State})
	}
	return a.Table(rows)
}

type mcpAddCmd struct {
	command.ToolFlags
	Trust   bool     `help:"Let the server's annotations count: what it calls read-only is a read, and only what may destroy something asks."`
	URL     string   `placeholder:"URL" help:"A server that is a service."`
	Name    string   `arg:"" placeholder:"SERVER" help:"Its tools are called SERVER__TOOL."`
	Command []string `arg:"" optional:"" passthrough:"" placeholder:"COMMAND" help:"A server that is a program, after --."`
}

// Help returns the text that --help shows below the command's usage.
func (mcpAddCmd) Help() string {
	return `Example: toolfleet tools mcp add --tools tools.yaml files -- npx -y @modelcontextprotocol/server-filesystem /workspace`
}

func (c mcpAddCmd) Run(a *command.App) error {
	cfg, file, place, err := serversOf(a)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(file.Servers, func(s schemas.Server) bool { return s.Name == c.Name }) {
		return command.Usagef("the tools file has a server %s already", c.Name)
	}
	entry := c.entry()
	parsed, err := schemas.ParseToolsFile("the new entry", []byte("mcp:\n"+entry))
	if err != nil {
		return command.Usage(err)
	}
	server := parsed.Servers[0]
	server.Line = 0
	listed, _, err := toolservers.Compare(a.Ctx, server, place)
	if err != nil {
		return err
	}
	path := string(cfg.Tools)
	if err := insertServer(path, entry); err != nil {
		return err
	}
	if err := toolservers.Accept(server, place, listed); err != nil {
		return err
	}
	return a.Table(tableOf(server, listed))
}

// entry returns the server's entry as YAML. It writes each value as JSON, because JSON is
// valid YAML.
func (c mcpAddCmd) entry() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  - name: %s\n", rawjson.Quote(c.Name))
	if c.URL != "" {
		fmt.Fprintf(&b, "    url: %s\n", rawjson.Quote(c.URL))
	}
	words := c.Command
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) > 0 {
		fmt.Fprintf(&b, "    command: %s\n", rawjson.MustMarshal(words))
	}
	if c.Trust {
		b.WriteString("    trust: annotations\n")
	}
	fmt.Fprintf(&b, "    lock: %s\n", rawjson.Quote(c.Name+".lock.json"))
	return b.String()
}

// insertServer writes an entry into the list mcp of a tools file, whose other text stays as it is.
func insertServer(path, entry string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("the tools file: %w", err)
	}
	lines := strings.SplitAfter(string(old), "\n")
	var text string
	at := slices.IndexFunc(lines, func(line string) bool { return strings.TrimRight(line, " \r\n") == "mcp:" })
	if at >= 0 {
		text = strings.Join(lines[:at+1], "") + entry + strings.Join(lines[at+1:], "")
	} else {
		text = strings.TrimRight(string(old), "\n") + "\n\nmcp:\n" + entry
	}
	if _, err := schemas.ParseToolsFile(path, []byte(text)); err != nil {
		return errors.Join(fmt.Errorf("the entry does not fit into %s; write it there by hand, under mcp:\n%s", path, entry), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), info.Mode())
}

// tableOf shows the tools of a server as they are served.
func tableOf(server schemas.Server, listed mcptool.List) [][]string {
	rows := [][]string{{"NAME", "KIND", "ON CRASH", "ASKS"}}
	for _, d := range listed.Tools {
		promise, ask, err := mcptool.Promise(server, d)
		if err != nil {
			rows = append(rows, []string{terminal.Clean(d.Name, 64), "not served: " + terminal.Clean(err.Error(), 120)})
			continue
		}
		asks := "no"
		if ask {
			asks = "yes"
		}
		rows = append(rows, []string{promise.Name, string(promise.Kind), string(promise.OnCrash), asks})
	}
	for _, r := range listed.Refused {
		rows = append(rows, []string{terminal.Clean(r.Name, 64), "not served: " + terminal.Clean(r.Why, 120)})
	}
	return rows
}

// serversOf returns the tools file of the settings and what its servers need. The settings
// must name a tools file.
func serversOf(a *command.App) (*config.Config, schemas.ToolsFile, toolservers.Place, error) {
	cfg, err := a.Settings()
	if err != nil {
		return nil, schemas.ToolsFile{}, toolservers.Place{}, err
	}
	if cfg.Tools == "" {
		return nil, schemas.ToolsFile{}, toolservers.Place{}, command.Usagef("name the tools file with --tools")
	}
	file, _, err := localtools.File(cfg)
	return cfg, file, localtools.PlaceOf(cfg, file, filepath.Dir(string(cfg.Tools)), ""), err
}
