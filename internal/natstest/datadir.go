package natstest

import (
	"os"
	"testing"
)

// DataDir returns a folder for the data of a server, which is removed when the test ends. The
// folder is in memory if the system has room there. A server syncs every message, so on a disk
// the tests of several packages would wait for each other.
func DataDir(tb testing.TB) string {
	tb.Helper()
	memory := inMemory()
	if memory == "" {
		return tb.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "toolfleet-test-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
