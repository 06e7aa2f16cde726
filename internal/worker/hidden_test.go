package worker_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

// A key of the worker lies below the root: no file tool reads it, by whatever path.
func TestAKeyBelowTheRootIsNotRead(t *testing.T) {
	const canary = "SUAcanary"
	dir := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	key, secrets := filepath.Join(dir, "keys", "worker.nk"), filepath.Join(dir, "secrets")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(key), 0o755), os.WriteFile(key, []byte(canary), 0o600),
		os.MkdirAll(secrets, 0o755), os.WriteFile(filepath.Join(secrets, "pay"), []byte(canary), 0o600),
		os.WriteFile(filepath.Join(dir, "free"), []byte("free words"), 0o644),
		os.Symlink("keys/worker.nk", filepath.Join(dir, "link")), os.Symlink("secrets", filepath.Join(dir, "folder")),
		os.Link(key, filepath.Join(dir, "hard")),
	); err != nil {
		t.Fatal(err)
	}
	root, err := builtin.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var reg tool.Registry
	if err := worker.OpenTools(&reg, schemas.ToolsFile{}, worker.Place{Dir: dir, Root: root, Hidden: []string{key, secrets}}); err != nil {
		t.Fatal(err)
	}
	run := func(name, input string) string {
		t.Helper()
		found, ok := reg.Lookup(name)
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		out, err := found.Runner.Run(t.Context(), tool.Call{Input: json.RawMessage(input)})
		if err != nil {
			return err.Error()
		}
		return string(out.Value)
	}
	for _, path := range []string{"keys/worker.nk", "./keys/../keys/worker.nk", key, "link", "hard", "secrets/pay", "folder/pay", "KEYS/worker.nk"} {
		in, _ := json.Marshal(map[string]string{"file_path": path})
		if got := run("Read", string(in)); strings.Contains(got, canary) {
			t.Errorf("Read %s: %s", path, got)
		}
		in, _ = json.Marshal(map[string]string{"file_path": path, "old_string": canary, "new_string": "x"})
		if got := run("Edit", string(in)); !strings.Contains(got, "may not be") && !strings.Contains(got, "not exist") {
			t.Errorf("Edit %s: %s", path, got)
		}
		in, _ = json.Marshal(map[string]string{"pattern": "SUA", "path": path, "output_mode": "content"})
		if got := run("Grep", string(in)); strings.Contains(got, canary) {
			t.Errorf("Grep %s: %s", path, got)
		}
	}
	if got := run("Grep", `{"pattern":"SUA|free","output_mode":"content"}`); strings.Contains(got, canary) || !strings.Contains(got, "free words") {
		t.Errorf("Grep: %s", got)
	}
	if got := run("Glob", `{"pattern":"**/pay"}`); strings.Contains(got, "secrets/pay") {
		t.Errorf("Glob: %s", got)
	}
	if got := run("Read", `{"file_path":"free"}`); !strings.Contains(got, "free words") {
		t.Errorf("Read: %s", got)
	}
}
