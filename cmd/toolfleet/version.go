package main

import (
	"fmt"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/daemon"
)

type versionCmd struct {
	command.OutputFlags
}

func (v versionCmd) Run(a *command.App) error {
	b := daemon.ThisBuild()
	if v.JSON() {
		return a.Print(b)
	}
	_, err := fmt.Fprintln(a.Stdout, b.Line("toolfleet"))
	return err
}
