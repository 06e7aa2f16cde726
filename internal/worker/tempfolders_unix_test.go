//go:build unix

package worker

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A worker removes only those temporary folders that no worker uses any more.
func TestUnusedTemporaryFoldersAreRemoved(t *testing.T) {
	base := t.TempDir()
	now := time.Now()
	old := now.Add(-unusedTemp - time.Hour)
	for name, at := range map[string]time.Time{"gone": old, "used": old, "recent": now.Add(-time.Hour)} {
		lock := filepath.Join(base, name+lockEnding)
		if err := errors.Join(os.MkdirAll(filepath.Join(base, name, "x"), 0o700), os.WriteFile(lock, nil, 0o600), os.Chtimes(lock, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	other, err := os.Open(filepath.Join(base, "used"+lockEnding))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if err := holdTemp(filepath.Join(base, "own"), now); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"gone": false, "used": true, "recent": true} {
		if _, err := os.Stat(filepath.Join(base, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
