package worker

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/schemas"
)

// scripts lists file name endings of scripts that an interpreter runs.
var scripts = []string{".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".bash", ".rb", ".pl", ".php", ".lua", ".jar"}

// ProgramsOf returns the files that the commands of a tools file run. Their paths are relative to
// dir.
func ProgramsOf(file schemas.ToolsFile, dir string) (all []string) {
	for _, entry := range file.Tools {
		if entry.Exec != nil {
			all = append(all, Programs(entry.Exec.Command, dir)...)
		}
		if entry.Check != nil {
			all = append(all, Programs(entry.Check.Command, dir)...)
		}
	}
	for _, server := range file.Servers {
		all = append(all, Programs(server.Command, dir)...)
	}
	return all
}

// Programs returns the files that a command runs, judged by its words: the program itself, and
// the scripts and programs among its arguments. Files that these load in turn are not known.
func Programs(command []string, dir string) (all []string) {
	for i, word := range command {
		name := word
		switch {
		case i == 0 && !strings.ContainsAny(word, `/`+string(filepath.Separator)):
			found, err := exec.LookPath(word)
			if err != nil {
				continue
			}
			name = found
		case !filepath.IsAbs(word):
			name = filepath.Join(dir, word)
		}
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if i > 0 && info.Mode()&0o111 == 0 && !slices.Contains(scripts, filepath.Ext(name)) {
			continue // a data file, which the command may change
		}
		if abs, err := filepath.Abs(name); err == nil {
			all = append(all, abs)
		}
	}
	return all
}
