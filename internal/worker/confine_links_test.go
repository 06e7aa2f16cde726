package worker_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

// A command replaces a folder of a tool by a link: at its next start the worker does not
// follow the link, and names it in an error.
func TestLinksOfCommandsAreNotFollowedAtStart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for name, tc := range map[string]struct {
		sandbox schemas.Sandbox
		states  []string // folders that other tools may write to
		link    string   // path of the link, in the folder of the tools file
		root    bool     // whether the folder of the tools file is the root
	}{
		"state below the root":            {sandbox: schemas.Sandbox{State: []string{"ledger"}}, link: "ledger", root: true},
		"a folder above it":               {sandbox: schemas.Sandbox{State: []string{"a/ledger"}}, link: "a", root: true},
		"read below the root":             {sandbox: schemas.Sandbox{Read: []string{"prices"}}, link: "prices", root: true},
		"state below its own":             {sandbox: schemas.Sandbox{State: []string{"a/b", "a"}}, link: "a/b"},
		"state below that of another":     {sandbox: schemas.Sandbox{State: []string{"a/b"}}, states: []string{"a"}, link: "a/b"},
		"read below the state of another": {sandbox: schemas.Sandbox{Read: []string{"a/b/c"}}, states: []string{"a"}, link: "a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, outside := canonicalTemp(t), canonicalTemp(t)
			link := filepath.Join(dir, tc.link)
			if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
				t.Fatal(err)
			}
			place := worker.Place{Dir: dir, States: tc.states}
			if tc.root {
				root, err := builtin.OpenRoot(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer root.Close()
				place.Root = root
			}
			if err := os.Symlink(outside, link); err != nil {
				t.Fatal(err)
			}
			entry := schemas.Entry{Tool: schemas.Tool{Name: "book"}, Exec: &schemas.Exec{Command: []string{"true"}}, Sandbox: tc.sandbox}
			c, _ := worker.CommandsOf(entry)
			policy, _, err := place.Confinement(c)
			if err == nil || !strings.Contains(err.Error(), link+" is a link") {
				t.Errorf("got %+v, %v", policy, err)
			}
			var reg tool.Registry
			if err := worker.OpenTools(&reg, schemas.ToolsFile{Tools: []schemas.Entry{entry}}, place); err == nil {
				t.Error("the tool is served")
			}
			if made, err := os.ReadDir(outside); err != nil || len(made) > 0 {
				t.Errorf("outside are %v, %v", made, err)
			}
		})
	}
}

// A link that no command can change is followed.
func TestOtherLinksAreFollowed(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir, outside := canonicalTemp(t), canonicalTemp(t)
	if err := os.Symlink(outside, filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	c, _ := worker.CommandsOf(schemas.Entry{Tool: schemas.Tool{Name: "book"}, Exec: &schemas.Exec{}, Sandbox: schemas.Sandbox{State: []string{"data", "data/new"}}})
	policy, _, err := worker.Place{Dir: dir}.Confinement(c)
	if want := []string{outside, filepath.Join(outside, "new")}; err != nil || !slices.Equal(policy.Write, want) {
		t.Errorf("got %q, %v, want %q", policy.Write, err, want)
	}
}

// Write and Edit do not change what no command may change.
func TestFileToolsKeepToTheProtectedPaths(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := canonicalTemp(t)
	settings := filepath.Join(dir, "tools.yaml")
	if err := os.WriteFile(settings, []byte("tools: []"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := builtin.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var reg tool.Registry
	if err := worker.OpenTools(&reg, schemas.ToolsFile{}, worker.Place{Dir: dir, Root: root, Fixed: []string{settings}}); err != nil {
		t.Fatal(err)
	}
	write, _ := reg.Lookup("Write")
	for name, want := range map[string]bool{"tools.yaml": false, ".mcp.json": false, ".claude/settings.json": false, ".git/config": false, "new": true} {
		_, err := write.Runner.Run(t.Context(), tool.Call{Input: []byte(`{"file_path": "` + name + `", "content": "x"}`)})
		if (err == nil) != want {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Files that git acts on are protected besides the listed paths. A link that no mount can
// cover is named.
func TestWhatGitObeysIsProtected(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c, _ := worker.CommandsOf(schemas.Entry{Tool: schemas.Tool{Name: "Bash"}, Builtin: "Bash"})
	for name, tc := range map[string]struct {
		files, protected []string
		links            map[string]string
		replaceable      []string
	}{
		"a repository": {files: []string{".git/config", ".git/modules/a/config", ".git/modules/a/b/hooks/x", ".git/modules/a/objects/config", ".git/worktrees/w/commondir"},
			protected: []string{".git/config", ".git/hooks", ".git/commondir", ".husky", ".git/modules/a/config", ".git/modules/a/b/hooks", ".git/worktrees/w/commondir"}},
		"a working tree": {files: []string{".git"}, protected: []string{".git"}},
		"links": {files: []string{"conf/mcp.json", "conf/settings"}, links: map[string]string{".mcp.json": "conf/mcp.json", ".claude": "conf", "tools.yaml": "conf/settings"},
			protected: []string{"conf/mcp.json", "conf", "conf/settings"}, replaceable: []string{".mcp.json", ".claude", "tools.yaml"}},
		"a .git that is a link": {files: []string{"other/config"}, links: map[string]string{".git": "other"}, protected: []string{"other/config", "other/hooks"},
			replaceable: []string{".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := canonicalTemp(t)
			at := func(name string) string { return filepath.Join(dir, name) }
			for _, name := range tc.files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), nil, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			for link, to := range tc.links {
				if err := os.Symlink(to, at(link)); err != nil {
					t.Fatal(err)
				}
			}
			root, err := builtin.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			policy, _, err := worker.Place{Dir: dir, Root: root, Fixed: []string{at("tools.yaml")}}.Confinement(c)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range tc.protected {
				if !slices.Contains(policy.Protect, at(name)) {
					t.Errorf("%s is not protected: %q", name, policy.Protect)
				}
			}
			for _, name := range []string{".git/modules/a/objects/config", "other"} {
				if slices.Contains(policy.Protect, at(name)) {
					t.Errorf("%s is protected, so git cannot work", name)
				}
			}
			var replaceable []string
			for _, name := range tc.replaceable {
				replaceable = append(replaceable, at(name))
			}
			if !slices.Equal(policy.Replaceable, replaceable) {
				t.Errorf("may be replaced: %q, want %q", policy.Replaceable, replaceable)
			}
			m := sandbox.Machine{OS: "linux", Landlock: 7, Seccomp: true, PIDBound: true, Namespaces: sandbox.Namespaces{User: true, Mount: true, PID: true, OwnPID: true}}
			missing := sandbox.Resolve(policy, m).Missing
			if named := slices.ContainsFunc(missing, func(m sandbox.Missing) bool { return strings.Contains(m.What, "may be replaced") }); named != (len(replaceable) > 0) {
				t.Errorf("missing is %q", missing)
			}
		})
	}
}

func canonicalTemp(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
