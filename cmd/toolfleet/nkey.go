package main

import (
	"fmt"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/approvals"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/daemon"
)

type nkeyCmd struct {
	daemon.General
	File string `arg:"" help:"File to write the key to. One that is there already is kept, and its public half is printed."`
}

// Help returns the text that --help shows below the command's usage.
func (nkeyCmd) Help() string {
	return `The file is secret; programs read it with --nkey. The command prints the public half, which goes into the configuration of the
NATS server. An approver's key is of the same kind, so one file may serve for both.`
}

func (c nkeyCmd) Run(a *command.App) error {
	key, made, err := approvals.ReadOrMakeKey(c.File)
	if err != nil {
		return err
	}
	if made {
		a.Say("%s holds the key: keep it to yourself", c.File)
	}
	_, err = fmt.Fprintln(a.Stdout, key.Public())
	return err
}
