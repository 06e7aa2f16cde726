package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

// here is the default root of commands that offer the file tools without --root: the current
// folder.
const here = "."

// toolsFile reads the tools file of the settings. dir is the folder to which its programs are
// relative. Without a tools file both are empty.
func toolsFile(cfg *config.Config) (file schemas.ToolsFile, dir string, err error) {
	name := string(cfg.Tools)
	if name == "" {
		return file, "", nil
	}
	body, err := os.ReadFile(name)
	if err != nil {
		return file, "", usagef("read the tools file: %w; `toolfleet init` writes one to start from, --tools names another", err)
	}
	if file, err = schemas.ParseToolsFile(name, body); err != nil {
		return file, "", usage(err)
	}
	return file, filepath.Dir(name), nil
}

// serving holds the tools that a worker in this process serves.
type serving struct {
	registry *tool.Registry
	roots    []string // spellings of the root folder, the canonical one first, for path rules
	root     *builtin.Root
	rules    schemas.Rules // of the tools file
}

// policy reads the policy of the settings, including the rules of the tools file.
func (s *serving) policy(cfg *config.Config) (*config.Policy, error) { return policyOf(cfg, s.rules) }

func policyOf(cfg *config.Config, tools schemas.Rules) (*config.Policy, error) {
	p, err := cfg.ReadPolicy(string(cfg.Tools), tools)
	if err != nil {
		return nil, usage(err)
	}
	return p, nil
}

// openTools opens the tools of the tools file, and the file tools on the root of the settings.
// standard is the root if they name none; "" means no file tools then.
func openTools(cfg *config.Config, standard string) (*serving, error) {
	file, dir, err := toolsFile(cfg)
	if err != nil {
		return nil, err
	}
	s := &serving{registry: &tool.Registry{}, rules: file.Rules}
	if root := rootOf(cfg, standard); root != "" {
		if s.root, err = builtin.OpenRoot(root); err != nil {
			return nil, usagef("%w; --root names a folder that is there", err)
		}
		s.roots = []string{s.root.Dir()}
		if given, err := filepath.Abs(root); err == nil && given != s.root.Dir() {
			s.roots = append(s.roots, given)
		}
	}
	if err := worker.OpenTools(s.registry, file, dir, s.root); err != nil {
		s.close()
		return nil, usage(fmt.Errorf("tools: %w", inFile(cfg, err)))
	}
	if len(s.registry.Promises()) == 0 {
		return nil, usage(errors.New("there is no tool to serve: name a tools file with --tools (`toolfleet init` writes one), or a folder for the builtin tools with --root"))
	}
	return s, nil
}

func (s *serving) close() {
	if s.root != nil {
		_ = s.root.Close() // closing a folder loses no data
	}
}

// promises returns what the tools of the settings promise. It opens none of them.
func promises(cfg *config.Config, standard string) ([]schemas.Tool, error) {
	file, _, err := toolsFile(cfg)
	if err != nil {
		return nil, err
	}
	tools, err := worker.Promises(file, rootOf(cfg, standard) != "")
	if err != nil {
		return nil, usage(inFile(cfg, err))
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
