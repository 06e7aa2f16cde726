package main

import (
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
)

type configCmd struct {
	Print  configPrintCmd  `cmd:"" help:"Show every setting in effect, and where each comes from."`
	Schema configSchemaCmd `cmd:"" help:"Print the JSON Schema of toolfleet.yaml, for editors."`
}

type configPrintCmd struct {
	daemon.Server
	served
	embedded
	daemon.Listens
	shape
	Slots string `setting:"slots" placeholder:"N"`
}

func (c configPrintCmd) Run(a *app) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	for _, name := range cfg.Strange() {
		a.say("%s is set and is no setting", name)
	}
	if c.json() {
		return a.print(map[string]any{"file": cfg.File(), "settings": cfg.Effective()})
	}
	return cfg.Print(a.stdout)
}

type configSchemaCmd struct{}

func (configSchemaCmd) Run(a *app) error { return a.printRaw(config.Schema()) }
