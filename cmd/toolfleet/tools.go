package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/coordinator/provider"
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
	return a.Table(rows)
}

type toolsExportCmd struct {
	daemon.Server
	command.ToolFlags
	daemon.Governed
	Provider string `required:"" placeholder:"NAME" help:"anthropic, openai-chat, openai-responses, bedrock, gemini or canonical."`
}

// Help is shown below the command's usage.
func (toolsExportCmd) Help() string {
	return `Leaves out a tool if a rule of the policy, the settings or the tools file denies every call of it, because a model need not know
it. With --nats the workers of the fleet say which tools their policy denies; if they disagree, deny wins.`
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
	tools, err := offeredTools(a, cfg)
	if err != nil {
		return err
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
	tools = slices.DeleteFunc(tools, func(tool schemas.Tool) bool { return rules.DeniesTool(tool.Name) })
	definitions, err := codec.Tools(tools)
	if err != nil {
		return err
	}
	return a.PrintRaw(definitions)
}

// knownTools returns the tools of the fleet if the settings name a server, else those that run
// would serve here; sorted by name, and of one name the current version first.
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

// offeredTools returns the known tools, without those of which the policy of the fleet's workers
// denies every call.
func offeredTools(a *command.App, cfg *config.Config) ([]schemas.Tool, error) {
	if cfg.NATS.URL == "" {
		tools, err := toolsHere(a, cfg)
		return schemas.Newest(tools), err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	fleet, err := command.ReadFleet(a.Ctx, conn)
	return fleet.Offered(), err
}

func toolsHere(a *command.App, cfg *config.Config) ([]schemas.Tool, error) {
	tools, _, err := localtools.Promises(a.Ctx, cfg, localtools.Here)
	slices.SortStableFunc(tools, func(a, b schemas.Tool) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), schemas.CompareVersions(b.Version, a.Version))
	})
	return tools, err
}
