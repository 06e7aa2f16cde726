package main

import (
	"fmt"

	"github.com/toolfleet/toolfleet/internal/daemon"
)

type versionCmd struct {
	shape
}

func (v versionCmd) Run(a *app) error {
	b := daemon.ThisBuild()
	if v.json() {
		return a.print(b)
	}
	_, err := fmt.Fprintln(a.stdout, b.Line("toolfleet"))
	return err
}
