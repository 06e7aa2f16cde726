package exectool

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A run reports what its sandbox lacks. The calls of two tenants have separate temporary
// folders.
func TestTheSandboxOfARun(t *testing.T) {
	m := sandbox.Local()
	if m.Landlock == 0 && !m.Namespaces.Mount {
		t.Skip("this machine can confine no files")
	}
	bare := m
	bare.Namespaces, bare.WhyNot = sandbox.Namespaces{}, "refused by the test"
	dir := t.TempDir()
	for name, machine := range map[string]sandbox.Machine{"as it is": m, "no namespaces": bare} {
		t.Run(name, func(t *testing.T) {
			box, err := sandbox.NewOn(sandbox.Policy{
				Read: sandbox.SystemPaths("", os.Getenv("PATH")), Temp: filepath.Join(dir, machine.WhyNot+"temp"), Network: sandbox.HostNetwork,
			}, machine)
			if err != nil {
				t.Fatal(err)
			}
			runner, err := New(Config{Command: []string{"sh", "-c", `ls -d "$TMPDIR"/../*/mine 2>/dev/null; echo $TENANT >"$TMPDIR/mine" && cat "$TMPDIR/mine"`}, Sandbox: box})
			if err != nil {
				t.Fatal(err)
			}
			for _, tenant := range []messages.TenantID{"acme", "other", "acme"} {
				var lacks []string
				out, err := runner.Run(t.Context(), tool.Call{Tenant: tenant, Input: json.RawMessage(`{}`), OnSandboxGaps: func(p []string) { lacks = p }})
				if err != nil {
					t.Fatal(err)
				}
				seen := strings.Count(string(out.Value), "mine")
				if seen > 0 && !strings.Contains(string(out.Value), string(tenant)+"/mine") && machine.Landlock > 0 {
					t.Errorf("%s sees %s", tenant, out.Value)
				}
				if !slices.Equal(lacks, box.Lacking()) || name == "no namespaces" && !slices.Contains(lacks, "files") {
					t.Errorf("the sandbox lacks %q, and the run says %q", box.Lacking(), lacks)
				}
			}
			for _, tenant := range []string{"acme", "other"} {
				if _, err := os.Stat(filepath.Join(box.Policy.Temp, tenant, "mine")); err != nil {
					t.Error(err)
				}
			}
			for _, wrong := range []string{"..", "a/b", "."} {
				if _, err := box.For(wrong); err == nil {
					t.Errorf("the tenant %q has a sandbox", wrong)
				}
			}
		})
	}
}
