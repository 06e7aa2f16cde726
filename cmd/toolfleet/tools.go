package main

import (
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

type toolsCmd struct {
	Ls     toolsLsCmd     `cmd:"" help:"List the tools that run would serve here, or with --nats those of a fleet."`
	Export toolsExportCmd `cmd:"" help:"Print tool definitions as the requests of a provider hold them, the same bytes each time."`
}

type toolsLsCmd struct {
	daemon.Server
	served
	shape
}

func (t toolsLsCmd) Run(a *app) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	tools, err := knownTools(a, cfg)
	if err != nil {
		return err
	}
	if t.json() {
		return a.print(map[string]any{"tools": tools})
	}
	rows := [][]string{{"NAME", "KIND", "POOL", "TIMEOUT", "ON CRASH", "DESCRIPTION"}}
	for _, tool := range tools {
		sentence, _, _ := strings.Cut(strings.ReplaceAll(tool.Description, "\n", " "), ". ")
		rows = append(rows, []string{tool.Name, string(tool.Kind), tool.Pool, tool.Timeout().String(), string(tool.OnCrash), clean(sentence, 80)})
	}
	return a.table(rows)
}

type toolsExportCmd struct {
	daemon.Server
	served
	daemon.Governed
	Provider string `required:"" placeholder:"NAME" help:"anthropic, openai-chat, openai-responses, bedrock, gemini or canonical."`
}

// Help is shown below the command's usage.
func (toolsExportCmd) Help() string {
	return `Tools that a rule of the policy, the settings or the tools file denies altogether are left out: a model need not know of them.
With --nats so are those that the fleet denies: its workers say so, and where they disagree, deny wins.`
}

func (t toolsExportCmd) Run(a *app) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	codec, err := provider.For(messages.Provider(t.Provider))
	if err != nil {
		return usage(err)
	}
	tools, err := offeredTools(a, cfg)
	if err != nil {
		return err
	}
	file, _, err := toolsFile(cfg)
	if err != nil {
		return err
	}
	policy, err := policyOf(cfg, file.Rules)
	if err != nil {
		return err
	}
	rules, err := policy.Permissions()
	if err != nil {
		return usage(err)
	}
	tools = slices.DeleteFunc(tools, func(tool schemas.Tool) bool { return rules.DeniesTool(tool.Name) })
	definitions, err := codec.Tools(tools)
	if err != nil {
		return err
	}
	return a.printRaw(definitions)
}

// knownTools returns the tools of the fleet if the settings name a server, else those that run
// would serve here; sorted by name.
func knownTools(a *app, cfg *config.Config) ([]schemas.Tool, error) {
	if cfg.NATS.URL == "" {
		return toolsHere(cfg)
	}
	conn, err := daemon.Connect(a.ctx, cfg, "toolfleet "+a.command, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return readBucket[schemas.Tool](a.ctx, conn, bus.BucketTools)
}

// offeredTools returns the known tools without those that the policy of the fleet's workers denies
// altogether.
func offeredTools(a *app, cfg *config.Config) ([]schemas.Tool, error) {
	if cfg.NATS.URL == "" {
		return toolsHere(cfg)
	}
	conn, err := daemon.Connect(a.ctx, cfg, "toolfleet "+a.command, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	announced, err := readBucket[schemas.Announcement](a.ctx, conn, bus.BucketTools)
	if err != nil {
		return nil, err
	}
	present, err := readBucket[wire.Presence](a.ctx, conn, bus.BucketWorkers)
	if err != nil {
		return nil, err
	}
	return schemas.Offered(announced, present), nil
}

func toolsHere(cfg *config.Config) ([]schemas.Tool, error) {
	tools, err := promises(cfg, here)
	slices.SortFunc(tools, func(a, b schemas.Tool) int { return strings.Compare(a.Name, b.Name) })
	return tools, err
}
