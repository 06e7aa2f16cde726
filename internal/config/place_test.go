package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
)

// A command of a tool makes a link in its state folder, where a hook has a folder, or a
// command of a hook does so where a tool has one. The other does not follow it at the next
// start. The files lie in two folders, so that a path that is relative to the wrong one shows.
func TestLinksBetweenToolsAndHooksAreNotFollowed(t *testing.T) {
	for name, tc := range map[string]struct{ tool, hook string }{
		"state below a tool's state": {tool: "{state: [../work]}", hook: "{network: none, state: [../work/out]}"},
		"read below a tool's state":  {tool: "{state: [../work]}", hook: "{network: none, read: [../work/out]}"},
		"state below a hook's state": {tool: "{state: [../work/out]}", hook: "{network: none, state: [../work]}"},
		"read below a hook's state":  {tool: "{read: [../work/out]}", hook: "{network: none, state: [../work]}"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, at := twoFiles(t, "tools:\n- {name: x, input_schema: {type: object}, exec: {command: [sh]}, sandbox: "+tc.tool+"}\n",
				"hooks:\n- {name: in, before: {command: [sh]}, sandbox: "+tc.hook+"}\n")
			if err := os.Mkdir(at("work"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(t.TempDir(), at("work/out")); err != nil {
				t.Fatal(err)
			}
			p, file, dir := readBoth(t, cfg)
			place, err := cfg.hookPlace(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			commands, _ := worker.CommandsOfHook(p.hooks[0])
			if strings.HasSuffix(name, "hook's state") {
				place = cfg.Place(p, file, dir, "")
				place.Dir = dir
				commands, _ = worker.CommandsOf(file.Tools[0])
			}
			policy, _, err := place.Confinement(commands)
			if err == nil || !strings.Contains(err.Error(), "work/out is a link") {
				t.Errorf("it may read %v and write %v: %v", policy.Read, policy.Write, err)
			}
		})
	}
}

// What commands of tools may not change, commands of hooks may not change either.
func TestHooksAndToolsHaveTheSameFixedFiles(t *testing.T) {
	cfg, at := twoFiles(t, "tools:\n- {name: x, input_schema: {type: object}, exec: {command: [./run.sh]}}\nmcp:\n- {name: m, command: [./serve.sh], lock: m.lock}\n",
		"hooks:\n- {name: in, before: {command: [./guard.sh]}, sandbox: {network: none, state: [..]}}\n")
	for _, name := range []string{"a/run.sh", "a/serve.sh", "b/guard.sh"} {
		if err := os.WriteFile(at(name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p, file, dir := readBoth(t, cfg)
	place, err := cfg.hookPlace(p, []string{at(".")})
	if err != nil {
		t.Fatal(err)
	}
	if tools := cfg.Place(p, file, dir, at(".")).Fixed; !slices.Equal(place.Fixed, tools) {
		t.Errorf("hooks have %q, tools %q", place.Fixed, tools)
	}
	for _, name := range []string{"a/tools.yaml", "a/run.sh", "a/serve.sh", "a/m.lock", "b/policy.yaml", "b/guard.sh"} {
		if !slices.Contains(place.Fixed, at(name)) {
			t.Errorf("a hook may change %s: fixed are %q", name, place.Fixed)
		}
	}
}

// A hook with a sandbox has no place while the tools file cannot be read.
func TestAHooksPlaceNeedsTheToolsFile(t *testing.T) {
	cfg, at := twoFiles(t, "tools: []\n", "hooks:\n- {name: in, before: {command: [sh]}, sandbox: {network: none}}\n")
	p, _, _ := readBoth(t, cfg)
	if err := os.Remove(at("a/tools.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.hookPlace(p, nil); err == nil || !strings.Contains(err.Error(), "read the tools file") {
		t.Errorf("got %v", err)
	}
}

// twoFiles writes a tools file to the folder a and a policy file to the folder b. at returns a path
// beside them.
func twoFiles(t *testing.T, tools, policy string) (cfg *Config, at func(name string) string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at = func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"a/tools.yaml": tools, "b/policy.yaml": policy} {
		if err := os.Mkdir(filepath.Dir(at(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return load(t, sources("", []string{"TOOLFLEET_POLICY=" + at("b/policy.yaml"), "TOOLFLEET_TOOLS=" + at("a/tools.yaml")})), at
}

func readBoth(t *testing.T, cfg *Config) (p *Policy, file schemas.ToolsFile, dir string) {
	t.Helper()
	file, dir, err := cfg.ReadTools()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = cfg.ReadPolicy(string(cfg.Tools), file.Rules); err != nil {
		t.Fatal(err)
	}
	return p, file, dir
}
