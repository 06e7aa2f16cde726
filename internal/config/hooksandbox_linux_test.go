package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// A hook with a sandbox runs in it: it reads no key of the worker, writes below its state folders
// alone and has no network. One without the key does what the worker may, as before.
func TestAHookInTheSandbox(t *testing.T) {
	lacks := sandbox.Resolve(sandbox.Policy{}, sandbox.Local())
	if err := lacks.Lacks([]sandbox.Property{sandbox.Files}); err != nil {
		t.Skip("this machine has no Landlock: ", err)
	}
	outside := t.TempDir()
	key := filepath.Join(outside, "key.nkey")
	if err := os.WriteFile(key, []byte("SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := func(name string) string {
		return `[sh, -c, "cat >/dev/null; cat ` + key + ` >&2; echo x >` + filepath.Join(outside, name) + `; echo x >notes/` + name + `; echo said >&2; exit 2"]`
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "hooks:\n- {name: in, match: in, budget: 60s, before: {command: " + script("in") + "}, sandbox: {network: none, state: [notes]}}\n" +
		"- {name: out, match: out, budget: 60s, before: {command: " + script("out") + "}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, sources("nats: {nkey: "+key+"}\n", []string{"TOOLFLEET_POLICY=" + file}))
	p, err := cfg.ReadPolicy("", schemas.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(file))
	place, err := cfg.hookPlace(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := p.Hooks("1", place, nil)
	if err != nil {
		t.Fatal(err)
	}
	exists := func(name string) bool {
		_, err := os.Stat(name)
		return err == nil
	}
	in := set.Before(t.Context(), hook.Call{Tool: "in", Input: []byte(`{}`)}, nil)
	if in.Opinion != hook.Deny || !strings.Contains(in.Reason, "said") || strings.Contains(in.Reason, "SECRET") {
		t.Errorf("in the sandbox: %+v", in)
	}
	if exists(filepath.Join(outside, "in")) || !exists(filepath.Join(filepath.Dir(file), "notes", "in")) {
		t.Error("in the sandbox it writes elsewhere than in its state folder")
	}
	out := set.Before(t.Context(), hook.Call{Tool: "out", Input: []byte(`{}`)}, nil)
	if out.Opinion != hook.Deny || !strings.Contains(out.Reason, "SECRET") || !exists(filepath.Join(outside, "out")) {
		t.Errorf("without the key: %+v", out)
	}
	gaps := place.HookGaps(p.hooks)
	if got := gaps["hook out"]; len(got) != 1 || !strings.Contains(got[0], "no sandbox") {
		t.Errorf("the hook without a sandbox has the gaps %q", got)
	}
	if got := strings.Join(gaps["hook in"], " "); strings.Contains(got, "no sandbox") || strings.Contains(got, "host") {
		t.Errorf("the hook with a sandbox has the gaps %q", got)
	}
}

// The platform's bounds hold for hooks with a sandbox, and do not put others into one.
func TestBoundsOfHooks(t *testing.T) {
	p := policed(t, `hooks:
- {name: in, before: {command: [./a]}, sandbox: {network: host}}
- {name: out, before: {command: [./a]}}
sandbox: {network: none}
`, "", schemas.Rules{})
	place := worker.Place{Dir: ".", Tighten: p.Sandbox}
	c, ok := worker.CommandsOfHook(p.hooks[0])
	policy, confined, err := place.Confinement(c)
	if err != nil || !ok || !confined || policy.Network != sandbox.NoNetwork {
		t.Errorf("the network is %s: %v", policy.Network, err)
	}
	if _, ok := worker.CommandsOfHook(p.hooks[1]); ok {
		t.Error("a hook without the key is in a sandbox")
	}
}
