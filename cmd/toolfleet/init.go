package main

import (
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"

	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
)

type initCmd struct {
	daemon.General
	Dir   string `arg:"" optional:"" default:"." help:"Folder to write to."`
	Force bool   `help:"Overwrite files that are there."`
}

//go:embed starter-tools.yaml
var starterTools []byte

//go:embed starter-policy.yaml
var starterPolicy []byte

func (i initCmd) Run(a *command.App) error {
	const toolsName, policyName = "tools.yaml", "policy.yaml"
	files := []struct {
		name string
		body []byte
	}{
		{config.FileName, config.Starter(map[string]string{"tools": toolsName, "policy": policyName})},
		{toolsName, starterTools},
		{policyName, starterPolicy},
	}
	for _, f := range files { // write all files or none
		path := filepath.Join(i.Dir, f.name)
		if _, err := os.Lstat(path); err == nil && !i.Force {
			return command.Usagef("%s is there already; --force overwrites it", path)
		}
	}
	if err := os.MkdirAll(i.Dir, 0o777); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(i.Dir, f.name)
		if err := write(path, f.body, i.Force); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.Stdout, path); err != nil {
			return err
		}
	}
	a.Say("\nTry it:\n  echo '{\"calls\":[{\"id\":\"1\",\"name\":\"now\",\"input\":{}}]}' | %s run --provider canonical", self())
	return nil
}

// write creates a file. Without force it never overwrites one, not even a file that was created
// after Run checked.
func write(path string, body []byte, force bool) error {
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, mode, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return command.Usagef("%s is there already; --force overwrites it", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	return errors.Join(err, f.Close())
}
