package main

import (
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

type planCmd struct {
	daemon.Server
	command.ToolFlags
	input
	command.OutputFlags
}

// plannedStage is a stage of the plan, as -o json prints it.
type plannedStage struct {
	Calls []plannedCall `json:"calls"`
}

type plannedCall struct {
	Index           int             `json:"index"`
	ID              messages.CallID `json:"id"`
	Name            string          `json:"name"`
	Kind            messages.Kind   `json:"kind"`
	ConcurrencySafe bool            `json:"concurrency_safe"`
	Reason          string          `json:"reason"`
}

// Help returns the text that --help shows below the command's usage.
func (planCmd) Help() string {
	return `Plans with the tools that "toolfleet run" would serve here: those of --tools, and the builtin ones. With --nats it plans with the
tools that the workers of that fleet have announced.`
}

func (p planCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	tools, err := knownTools(a, cfg)
	if err != nil {
		return err
	}
	catalog, err := schemas.NewCatalog(current(tools)...)
	if err != nil {
		return err
	}
	batch, _, err := p.read(a)
	if err != nil {
		return err
	}
	codec, err := provider.For(batch.Provider)
	if err != nil {
		return err
	}
	calls, err := codec.Decode(batch.Message)
	if err != nil {
		return err
	}
	planned := plan.New(calls, catalog)
	if p.JSON() {
		return a.Print(map[string]any{"stages": stagesOf(planned)})
	}
	return a.Table(stageRows(planned))
}

// current returns the first version of each tool.
func current(tools []schemas.Tool) []schemas.Tool {
	return slices.CompactFunc(tools, func(a, b schemas.Tool) bool { return a.Name == b.Name })
}

func stagesOf(p plan.Plan) []plannedStage {
	stages := make([]plannedStage, len(p.Stages))
	for i, indices := range p.Stages {
		for _, index := range indices {
			c := p.Calls[index]
			stages[i].Calls = append(stages[i].Calls, plannedCall{c.Index, c.ID, c.PlannedCall.Tool, c.Kind, c.ConcurrencySafe, c.Reason})
		}
	}
	return stages
}

func stageRows(p plan.Plan) [][]string {
	rows := [][]string{{"STAGE", "CALL", "TOOL", "KIND", "RUNS", "REASON"}}
	for stage, indices := range p.Stages {
		for _, index := range indices {
			c := p.Calls[index]
			runs := "alone"
			switch {
			case c.Refused != nil:
				runs = "never"
			case c.ConcurrencySafe:
				runs = "together"
			}
			rows = append(rows, []string{
				fmt.Sprint(stage + 1), fmt.Sprint(c.Index), terminal.OrDash(c.PlannedCall.Tool, 64), string(c.Kind), runs, terminal.Clean(c.Reason, 200),
			})
		}
	}
	return rows
}
