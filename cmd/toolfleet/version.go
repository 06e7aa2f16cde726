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
	line := "toolfleet " + b.Version
	if b.Revision != "" {
		line += " " + b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			line += " with changes"
		}
	}
	_, err := fmt.Fprintf(a.stdout, "%s (%s, %s)\n", line, b.Go, b.Platform)
	return err
}
