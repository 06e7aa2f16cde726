package main

import (
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
)

type configCmd struct {
	Print  configPrintCmd  `cmd:"" help:"Show every setting in effect, and where each comes from."`
	Schema configSchemaCmd `cmd:"" help:"Print the JSON Schema of toolfleet.yaml, for editors."`
}

type configPrintCmd struct {
	daemon.Server
	command.ToolFlags
	command.ServerFlags
	daemon.Listens
	command.OutputFlags
	Slots string `setting:"slots" placeholder:"N"`
}

func (c configPrintCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	for _, name := range cfg.Strange() {
		a.Say("%s is set, and there is no such setting", name)
	}
	if c.JSON() {
		return a.Print(map[string]any{"file": cfg.File(), "settings": cfg.Effective()})
	}
	return cfg.Print(a.Stdout)
}

type configSchemaCmd struct{}

func (configSchemaCmd) Run(a *command.App) error { return a.PrintRaw(config.Schema()) }
