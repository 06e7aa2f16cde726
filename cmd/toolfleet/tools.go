package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

type toolsCmd struct {
	Ls     toolsLsCmd     `cmd:"" help:"List the tools that run would serve here, or with --nats those of a fleet."`
	Export toolsExportCmd `cmd:"" help:"Print tool definitions as the requests of a provider hold them, the same bytes each time."`
	MCP    toolsMCPCmd    `cmd:"" help:"Add, accept and list the MCP servers of a tools file."`
}

type toolsLsCmd struct {
	daemon.Server
	command.ToolFlags
	command.OutputFlags
}

func (t toolsLsCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	tools, err := knownTools(a, cfg)
	if err != nil {
		return err
	}
	if t.JSON() {
		return a.Print(map[string]any{"tools": tools})
	}
	rows := [][]string{{"NAME", "VERSION", "KIND", "POOL", "TIMEOUT", "ON CRASH", "DESCRIPTION"}}
	versions := false
	for _, tool := range tools {
		sentence, _, _ := strings.Cut(strings.ReplaceAll(tool.Description, "\n", " "), ". ")
		rows = append(rows, []string{tool.Name, tool.Version, string(tool.Kind), tool.Pool, tool.Timeout().String(), string(tool.OnCrash), terminal.Clean(sentence, 80)})
		versions = versions || tool.Version != ""
	}
	if !versions {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], 1, 2)
		}
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	if cfg.NATS.URL == "" {
		if err := localtools.Check(cfg, localtools.Here); err != nil {
			a.Say("A worker would not start with these tools. %v", err)
		}
	}
	return nil
}

type toolsExportCmd struct {
	daemon.Server
	command.ToolFlags
	daemon.Governed
	Provider string `required:"" placeholder:"NAME" help:"anthropic, openai-chat, openai-responses, bedrock, gemini or canonical."`
	Strict   string `enum:",off,exact,nullable" default:"" placeholder:"off|exact|nullable" help:"Which definitions the provider enforces: none, those that it can enforce as they are, or also those whose optional arguments it can be told to take as null. Default: what suits the provider."`
	Cache    bool   `help:"End the definitions with the provider's cache mark, where it has one."`
}

// Help returns the text that --help shows below the command's usage.
func (toolsExportCmd) Help() string {
	return `Leaves out a tool if a rule of the policy, the settings or the tools file denies every call of it, because a model need not know
it. With --nats the definitions are those that the fleet gives to its agents, without what the policy of its workers denies; if the
workers disagree, deny wins. Their digest, for the catalogue of a batch, is on stderr.`
}

func (t toolsExportCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	codec, err := provider.For(messages.Provider(t.Provider))
	if err != nil {
		return command.Usage(err)
	}
	file, _, err := localtools.File(cfg)
	if err != nil {
		return err
	}
	policy, err := localtools.Policy(cfg, file.Rules)
	if err != nil {
		return err
	}
	rules, err := policy.Permissions()
	if err != nil {
		return command.Usage(err)
	}
	if cfg.NATS.URL != "" {
		return t.fromFleet(a, cfg, rules.DeniesTool)
	}
	tools, err := toolsHere(a, cfg)
	if err != nil {
		return err
	}
	tools = slices.DeleteFunc(schemas.Newest(tools), func(tool schemas.Tool) bool { return rules.DeniesTool(tool.Name) })
	definitions, err := codec.ToolsWith(tools, export.Options{Strict: export.Strict(t.Strict), Cache: t.Cache})
	if err != nil {
		return err
	}
	return a.PrintRaw(definitions)
}

// fromFleet prints the definitions that a fleet gives to its agents, except those denied by the
// local policy.
func (t toolsExportCmd) fromFleet(a *command.App, cfg *config.Config, denied func(tool string) bool) error {
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	fleet := command.ClientOver(conn, cfg.Tenant)
	all, err := fleet.Tools(a.Ctx, messages.GetTools{})
	if err != nil {
		return err
	}
	var offered struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(all.Tools, &offered); err != nil {
		return fmt.Errorf("the definitions of the fleet cannot be read: %w", err)
	}
	want := messages.GetTools{Provider: messages.Provider(t.Provider), Strict: t.Strict, Cache: t.Cache}
	for _, tool := range offered.Tools {
		if !denied(tool.Name) {
			want.Names = append(want.Names, tool.Name)
		}
	}
	switch len(want.Names) {
	case len(offered.Tools):
		want.Names = nil // all tools: every agent then uses the same catalogue
	case 0:
		want.Names = []string{""} // no tool has this name
	}
	list, err := fleet.Tools(a.Ctx, want)
	if err != nil {
		return err
	}
	a.Say("catalogue %s", list.Digest)
	return a.PrintRaw(list.Tools)
}

// knownTools returns the tools of the fleet if the settings name a server, else the tools that
// "toolfleet run" would serve here. They are sorted by name, with the current version of each
// tool first.
func knownTools(a *command.App, cfg *config.Config) ([]schemas.Tool, error) {
	if cfg.NATS.URL == "" {
		return toolsHere(a, cfg)
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	fleet, err := command.ReadFleet(a.Ctx, conn)
	return fleet.Tools(), err
}

func toolsHere(a *command.App, cfg *config.Config) ([]schemas.Tool, error) {
	tools, _, err := localtools.Promises(a.Ctx, cfg, localtools.Here)
	slices.SortStableFunc(tools, func(a, b schemas.Tool) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), schemas.CompareVersions(b.Version, a.Version))
	})
	return tools, err
}
