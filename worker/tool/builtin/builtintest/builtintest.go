// Package builtintest holds helpers for the tests of the builtins. They make folders with
// files, and run calls. Check and Run must agree about each call.
package builtintest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// Folder returns a root with these files in it.
func Folder(t testing.TB, files map[string]string) *rootdir.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		Put(t, filepath.Join(dir, name), text)
	}
	root, err := rootdir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// Box returns a sandbox for Bash in which only these folders can be changed.
func Box(writable ...string) (*sandbox.Box, error) {
	return sandbox.New(sandbox.Policy{Read: sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")), Write: writable, Network: sandbox.NoNetwork})
}

// Put writes a file without using the tools.
func Put(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// Get reads a file without using the tools.
func Get(t testing.TB, root *rootdir.Root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root.Dir(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// In holds the arguments of a call.
type In map[string]any

// Call returns a call of a builtin.
func Call(t testing.TB, name string, args In) tool.Call {
	t.Helper()
	input, err := rawjson.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return tool.Call{Tool: name, Input: input}
}

// Tools has a function for each builtin, by name, that makes its runner.
type Tools map[string]func(*rootdir.Root) tool.Runner

// New returns the runner of a builtin.
func (tools Tools) New(t testing.TB, name string, root *rootdir.Root) tool.Runner {
	t.Helper()
	if tools[name] == nil {
		t.Fatalf("no builtin %s", name)
	}
	return tools[name](root)
}

// Run takes a call through the semantic phase and the execute phase: it calls Check and Run of
// the builtin. If Check and Run do not return the same error, it fails the test.
func (tools Tools) Run(t testing.TB, root *rootdir.Root, name string, args In) (tool.Output, error) {
	t.Helper()
	runner := tools.New(t, name, root)
	call := Call(t, name, args)
	var told error
	checker, checks := runner.(tool.Checker)
	if checks {
		told = checker.Check(t.Context(), call)
	}
	out, err := runner.Run(t.Context(), call)
	if checks && ((told == nil) != (err == nil) || told != nil && told.Error() != err.Error()) {
		t.Errorf("%s %.300v: check says %v, run says %v", name, args, told, err)
	}
	return out, err
}

// Text returns the output of a call that must succeed.
func (tools Tools) Text(t testing.TB, root *rootdir.Root, name string, args In) string {
	t.Helper()
	out, err := tools.Run(t, root, name, args)
	if err != nil {
		t.Fatalf("%s %.300v: %v", name, args, err)
	}
	s, ok := (messages.Outcome{Output: out.Value}).OutputString()
	if !ok {
		t.Fatalf("%s %.300v: output is no text: %.200s", name, args, out.Value)
	}
	return s
}

// Refused returns the error of a call that must fail with the code want.
func (tools Tools) Refused(t testing.TB, root *rootdir.Root, name string, args In, want messages.Code) *messages.Error {
	t.Helper()
	_, err := tools.Run(t, root, name, args)
	var told *messages.Error
	if !errors.As(err, &told) || told.Code != want {
		t.Fatalf("%s %.300v: got error %v, want code %s", name, args, err, want)
	}
	return told
}

// BashFolder returns an empty folder for a test that needs bash. Without bash it skips the
// test.
func BashFolder(t *testing.T) *rootdir.Root {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	root, err := rootdir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}
