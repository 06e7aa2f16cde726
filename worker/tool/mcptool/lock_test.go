package mcptool

import (
	"os"
	"strings"
	"testing"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(t, dir)
	cfg.Dir, cfg.Server.Lock = dir, "lock.json"
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "tools mcp accept") {
		t.Fatalf("without its lock file: %v", err)
	}
	listed, err := Look(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteLock(cfg.LockPath(), NewLock(listed.Tools)); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if len(s.Tools()) != len(listed.Tools) || s.pool.slots[0].session != nil {
		t.Errorf("%d tools of %d, and the server was started: %t", len(s.Tools()), len(listed.Tools), s.pool.slots[0].session != nil)
	}
	if got := run(t, served(t, s, "echo").Runner, newCall()); got != `{}` {
		t.Errorf("got %s", got)
	}

	// A server cannot be started: the worker still has its tools, from the lock file.
	broken := cfg
	broken.Server.Command = []string{"./missing"}
	s = open(t, broken)
	got := run(t, served(t, s, "echo").Runner, newCall())
	if !strings.HasPrefix(got, "server_down true The server test does not run, so the call was not run: program ") || s.Down() == nil {
		t.Errorf("got %s, %v", got, s.Down())
	}

	// Somebody changes the lock file by hand: Open refuses it.
	raw, err := os.ReadFile(cfg.LockPath())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.LockPath(), []byte(strings.Replace(string(raw), "Does [31mecho.", "Does more.", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), `the definition of "echo" does not fit its digest`) {
		t.Errorf("got %v", err)
	}
}
