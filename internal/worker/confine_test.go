package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

const confinedFile = `
tools:
  - name: book
    input_schema: {type: object}
    http: {url: "https://example.com"}
    on_crash: checkable
    check: {command: [sh, -c, '%s']}
    sandbox: {state: [ledger, ~/caches]}
  - {name: plain, input_schema: {type: object}, http: {url: "https://example.com"}}
mcp:
  - {name: files, command: [./server], sandbox: {network: none}}
  - {name: far, url: "https://example.com"}
programs:
  - {command: [python3, tools.py], sandbox: {off: true}}
  - {command: [node, tools.mjs]}
`

// Every entry that starts a program has a sandbox, and what the sandbox lacks is named.
func TestEveryProgramHasASandbox(t *testing.T) {
	file := parseTools(t, fmt.Sprintf(confinedFile, "echo not_done"))
	dir := t.TempDir()
	place := worker.Place{Dir: dir}
	gaps := place.Gaps(file)
	for name, want := range map[string]string{
		"book": "network: host", "server python3 tools.py": "off: ", "server node tools.mjs": "network: host",
	} {
		if !slices.ContainsFunc(gaps[name], func(gap string) bool { return strings.HasPrefix(gap, want) }) {
			t.Errorf("%s: got %q, want %s", name, gaps[name], want)
		}
	}
	for _, name := range []string{"plain", "server far", "files"} {
		if len(gaps[name]) > 0 {
			t.Errorf("%s: got %q", name, gaps[name])
		}
	}
	for name, want := range map[string]bool{"book": true, "plain": false, "files": true, "files__read": true, "far": false, "node tools.mjs": true} {
		if _, ok, err := worker.Find(file, name); err != nil || ok != want {
			t.Errorf("%s: it runs commands: %t, %v", name, ok, err)
		}
	}
	if _, _, err := worker.Find(file, "nothing"); err == nil {
		t.Error("nothing is there")
	}

	temps := map[string]string{}
	for _, name := range []string{"book", "files", "node tools.mjs"} {
		c, _, _ := worker.Find(file, name)
		policy, ok, err := place.Confinement(c)
		if err != nil || !ok || !slices.Contains(policy.Read, dir) {
			t.Errorf("%s: got %+v, %t, %v", name, policy, ok, err)
		}
		if other := temps[policy.Temp]; other != "" {
			t.Errorf("%s shares its folder for temporary files with %s", name, other)
		}
		temps[policy.Temp] = name
		if network := policy.Network; (network == sandbox.NoNetwork) != (name == "files") {
			t.Errorf("%s: the network is %s", name, network)
		}
	}
}

// The folder for temporary files of a hook keeps its name while the hook's targets stay the same,
// wherever in memory they are, and another one has another folder.
func TestTheTemporaryFolderOfAHook(t *testing.T) {
	temp := func(url string) string {
		c, ok := worker.CommandsOfHook(schemas.HookEntry{
			Name: "h", Sandbox: &schemas.Sandbox{}, Before: &schemas.HookTarget{Command: []string{"true"}}, After: &schemas.HookTarget{HTTP: &schemas.HookHTTP{URL: url}},
		})
		policy, confined, err := worker.Place{Dir: "/x"}.Confinement(c)
		if err != nil || !ok || !confined {
			t.Fatal(ok, confined, err)
		}
		return policy.Temp
	}
	if a, again := temp("https://a.example"), temp("https://a.example"); a != again {
		t.Errorf("a hook that is read twice has the folders %s and %s", a, again)
	}
	if a, b := temp("https://a.example"), temp("https://b.example"); a == b {
		t.Errorf("two hooks share the folder %s", a)
	}
}

func TestStateBelowTheHomeFolder(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	c, _, _ := worker.Find(parseTools(t, fmt.Sprintf(confinedFile, "true")), "book")
	policy, _, err := worker.Place{Dir: "/x"}.Confinement(c)
	if want := []string{"/x/ledger", filepath.Join(home, "caches")}; err != nil || !slices.Equal(policy.Write, want) {
		t.Errorf("got %q, %v, want %q", policy.Write, err, want)
	}
}

// The check of an HTTP tool can be a command: it runs in a sandbox too.
func TestTheCheckOfARequestIsConfined(t *testing.T) {
	if m := sandbox.Local(); m.Landlock == 0 && !m.Namespaces.Mount {
		t.Skip("this machine can confine no files")
	}
	home, outside := t.TempDir(), filepath.Join(t.TempDir(), "file")
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", t.TempDir())
	script := fmt.Sprintf("echo x >ledger/a || exit 1; if (echo x >%s); then echo done; else echo not_done; fi", outside)
	file := parseTools(t, fmt.Sprintf(confinedFile, script))
	file.Servers = nil
	var reg tool.Registry
	if err := worker.OpenTools(&reg, schemas.ToolsFile{Tools: file.Tools}, worker.Place{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	found, _ := reg.Lookup("book")
	probed, err := found.Runner.(tool.Prober).Probe(t.Context(), tool.Call{Input: []byte(`{}`)})
	if _, missing := os.Stat(outside); err != nil || probed.Applied || missing == nil {
		t.Errorf("got %+v, %v; the file outside: %v", probed, err, missing)
	}
}
