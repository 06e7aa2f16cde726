package mcptool

import (
	"os"
	"path/filepath"
	"testing"
)

// A program name with a slash is looked up from the current folder, and one without a slash
// only in PATH.
func TestFind(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := os.WriteFile("server", []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"", ".", dir} {
		if got, err := find("./server", folder); err != nil || got != filepath.Join(dir, "server") {
			t.Errorf("in %q: got %q, %v", folder, got, err)
		}
	}
	if got, err := find("server", dir); err == nil {
		t.Errorf("without a slash: got %q", got)
	}
}
