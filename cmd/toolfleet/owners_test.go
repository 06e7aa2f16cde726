package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/devserver"
)

// The largest message by default is the same in the settings and in the server.
func TestDefaultsOfTheNATSServer(t *testing.T) {
	cfg, err := config.Load(config.Sources{File: config.NoFile, Environ: func() []string { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if got := devserverOptions(cfg, nil).MaxPayload; got != devserver.DefaultMaxPayload {
		t.Errorf("server.max_payload is %d by default, and that of the server %d", got, devserver.DefaultMaxPayload)
	}
}

// A given setting wins over the NATS server's own configuration file, and that wins over the
// defaults.
func TestSettingsOfTheNATSServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nats.conf")
	text := "port: 4333\nmax_payload: 2MB\njetstream { store_dir: /store, sync_interval: 30s }\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(file string, env ...string) (devserver.Options, error) {
		t.Helper()
		env = append(env, "TOOLFLEET_SERVER_CONFIG="+file)
		cfg, err := config.Load(config.Sources{File: config.NoFile, Environ: func() []string { return env }})
		if err != nil {
			t.Fatal(err)
		}
		return natsOptions(cfg, nil)
	}
	of := func(env ...string) devserver.Options {
		t.Helper()
		o, err := read(file, env...)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	want := devserver.Options{Config: file, Listen: "0.0.0.0:4333", DataDir: "/store", SyncInterval: 30 * time.Second, MaxPayload: 2 << 20}
	if diff := cmp.Diff(want, of()); diff != "" {
		t.Error(diff)
	}
	want = devserver.Options{Config: file, Listen: "127.0.0.1:0", DataDir: "mine", MaxPayload: 1 << 20}
	if diff := cmp.Diff(want, of("TOOLFLEET_SERVER_LISTEN=127.0.0.1:0", "TOOLFLEET_SERVER_DATA=mine", "TOOLFLEET_SERVER_SYNC=always", "TOOLFLEET_SERVER_MAX_PAYLOAD=1MB")); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if o := of(); o.Listen != "127.0.0.1:4222" || o.SyncInterval != 0 {
		t.Errorf("a file that says nothing: listens on %s and syncs after %v", o.Listen, o.SyncInterval)
	}
	if _, err := read("not-there"); err == nil {
		t.Error("a file that is not there is read")
	}
}
