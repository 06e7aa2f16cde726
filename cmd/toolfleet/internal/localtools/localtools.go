// Package localtools reads the tools file and the policy that the settings name, and opens the
// tools that a worker in this process serves. All of its errors about files are usage errors.
package localtools

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

// Here is the default root for commands that offer the file tools without --root: the current
// folder.
const Here = "."

// File reads the tools file of the settings. dir is the folder to which its programs are
// relative. Without a tools file both are empty.
func File(cfg *config.Config) (file schemas.ToolsFile, dir string, err error) {
	name := string(cfg.Tools)
	if name == "" {
		return file, "", nil
	}
	body, err := os.ReadFile(name)
	if err != nil {
		return file, "", command.Usagef("read the tools file: %w; `toolfleet init` writes one to start from, --tools names another", err)
	}
	if file, err = schemas.ParseToolsFile(name, body); err != nil {
		return file, "", command.Usage(err)
	}
	return file, filepath.Dir(name), nil
}

// Serving holds the tools that a worker in this process serves.
type Serving struct {
	Registry *tool.Registry // never empty
	Roots    []string       // paths of the root folder, the canonical one first, for path rules
	root     *builtin.Root
	rules    schemas.Rules // of the tools file
}

// Policy reads the policy of the settings, including the rules of the tools file.
func (s *Serving) Policy(cfg *config.Config) (*config.Policy, error) { return Policy(cfg, s.rules) }

// Policy reads the policy of the settings, with the rules of a tools file that is read already.
func Policy(cfg *config.Config, tools schemas.Rules) (*config.Policy, error) {
	p, err := cfg.ReadPolicy(string(cfg.Tools), tools)
	if err != nil {
		return nil, command.Usage(err)
	}
	return p, nil
}

// Open opens the tools of the tools file, and the file tools on the root of the settings. standard
// is the root if the settings name none; if standard is "" too, there are no file tools.
func Open(cfg *config.Config, standard string) (*Serving, error) {
	file, dir, err := File(cfg)
	if err != nil {
		return nil, err
	}
	s := &Serving{Registry: &tool.Registry{}, rules: file.Rules}
	if root := rootOf(cfg, standard); root != "" {
		if s.root, err = builtin.OpenRoot(root); err != nil {
			return nil, command.Usagef("%w; --root names a folder that is there", err)
		}
		s.Roots = []string{s.root.Dir()}
		if given, err := filepath.Abs(root); err == nil && given != s.root.Dir() {
			s.Roots = append(s.Roots, given)
		}
	}
	if err := worker.OpenTools(s.Registry, file, dir, s.root); err != nil {
		s.Close()
		return nil, command.Usage(fmt.Errorf("tools: %w", inFile(cfg, err)))
	}
	if len(s.Registry.Promises()) == 0 {
		return nil, command.Usage(errors.New("there is no tool to serve: name a tools file with --tools (`toolfleet init` writes one), or a folder for the builtin tools with --root"))
	}
	return s, nil
}

// Close closes the root folder. The tools must not run any more.
func (s *Serving) Close() {
	if s.root != nil {
		_ = s.root.Close() // closing a folder loses no data
	}
}

// Promises returns the definitions of the tools of the settings. It opens none of them.
func Promises(cfg *config.Config, standard string) ([]schemas.Tool, error) {
	file, _, err := File(cfg)
	if err != nil {
		return nil, err
	}
	tools, err := worker.Promises(file, rootOf(cfg, standard) != "")
	if err != nil {
		return nil, command.Usage(inFile(cfg, err))
	}
	return tools, nil
}

func rootOf(cfg *config.Config, standard string) string {
	if cfg.Root != "" {
		return string(cfg.Root)
	}
	return standard
}

func inFile(cfg *config.Config, err error) error {
	if cfg.Tools == "" {
		return err
	}
	return fmt.Errorf("%s: %w", cfg.Tools, err)
}
