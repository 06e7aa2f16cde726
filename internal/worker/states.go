package worker

import (
	"path/filepath"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
)

// StatesOf returns the folders that the entries of a tools file name with the key state, as
// absolute paths. dir is the folder of the file.
func StatesOf(file schemas.ToolsFile, dir string) (all []string) {
	for _, entry := range file.Tools {
		all = append(all, states(entry.Sandbox, dir)...)
	}
	for _, server := range file.Servers {
		all = append(all, states(server.Sandbox, dir)...)
	}
	return all
}

// StatesOfHooks returns the folders that hooks name with the key state, as absolute paths. dir
// is the folder of the policy file.
func StatesOfHooks(hooks []schemas.HookEntry, dir string) (all []string) {
	for _, hook := range hooks {
		if hook.Sandbox != nil {
			all = append(all, states(*hook.Sandbox, dir)...)
		}
	}
	return all
}

func states(s schemas.Sandbox, dir string) (all []string) {
	if abs, err := filepath.Abs(dir); err == nil { // Confinement reports the error
		dir = abs
	}
	for _, name := range s.State {
		all = append(all, below(dir, name))
	}
	return all
}

// LockFiles returns the lock files of the servers of a tools file. dir is the folder of the file.
func LockFiles(file schemas.ToolsFile, dir string) (all []string) {
	for _, server := range file.Servers {
		if lock := (mcptool.Config{Server: server, Dir: dir}).LockPath(); lock != "" {
			all = append(all, lock)
		}
	}
	return all
}
