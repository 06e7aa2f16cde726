package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The Python client uses only the standard library. Its own tests, which are in Python, pass
// with a real fleet.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3: the tests of examples/agent-python are not run")
	}
	p := newProcesses(t)
	file := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(file, []byte(`tools:
  - {name: echo, kind: read, builtin: noop}
  - {name: sleep, kind: read, timeout: 60s, builtin: sleep}
  - {name: blob, kind: read, builtin: blob}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.ready("coordinator")
	p.ready("worker", "--tools", file)
	dependOn(t, "../../../cmd", "../../../internal", "../../../examples/agent-python")
	cmd := exec.CommandContext(t.Context(), python, "-m", "unittest", "discover", "-s", "../../../examples/agent-python")
	cmd.Env = append(os.Environ(), "NATS_URL="+p.url, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
