package localtools

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

// Files below the root that are executed, or that say who may do what, are fixed: no command
// may change them.
func TestWhatIsFixed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	t.Setenv("PATH", at("bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	for name, text := range map[string]string{
		"tools.yaml": `
tools:
  - {name: book, input_schema: {type: object}, exec: {command: [./book, data.db, sub]}, on_crash: checkable, check: {command: [sh, check.sh]}}
mcp: [{name: files, command: [python3, server.py, --fast]}]
programs: [{command: [own, tools.mjs]}]
`,
		"policy.yaml": "hooks: [{name: guard, class: gate, before: {command: [hooks/guard]}}]\n",
		"book":        "", "data.db": "", "sub/x": "", "check.sh": "", "server.py": "", "bin/own": "", "tools.mjs": "", "hooks/guard": "", "tokens": "", "keys.json": "", "other.py": "",
	} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o755)
		if strings.Contains(name, ".") {
			mode = 0o644
		}
		if err := os.WriteFile(at(name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	cfg := &config.Config{Tools: config.Path(at("tools.yaml")), Policy: config.Path(at("policy.yaml"))}
	cfg.API.Tokens, cfg.API.JWT.Keys = config.Path(at("tokens")), at("keys.json")
	file, _, err := File(cfg)
	if err != nil {
		t.Fatal(err)
	}
	root, err := builtin.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	fixed := placeOf(cfg, file, dir, root).Fixed
	for _, name := range []string{"tools.yaml", "policy.yaml", "tokens", "keys.json", "book", "check.sh", "server.py", "bin/own", "tools.mjs", "hooks/guard"} {
		if !slices.Contains(fixed, at(name)) {
			t.Errorf("%s is not fixed: %q", name, fixed)
		}
	}
	for _, name := range []string{"data.db", "sub", "other.py", "bin"} {
		if slices.Contains(fixed, at(name)) {
			t.Errorf("%s is fixed", name)
		}
	}
	cfg.API.JWT.Keys = "https://issuer.example/keys"
	if fixed := placeOf(cfg, file, dir, root).Fixed; slices.ContainsFunc(fixed, func(name string) bool { return strings.Contains(name, "example") }) {
		t.Errorf("an address is no file: %q", fixed)
	}
}
