package devserver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

func TestReadConfig(t *testing.T) {
	t.Setenv("SOME_FOLDER", "/somewhere")
	for text, want := range map[string]devserver.FileSettings{
		"":                                {},
		"port: 4333":                      {Listen: "0.0.0.0:4333"},
		"port: -1\nhost: localhost":       {Listen: "localhost:0"},
		"host: 127.0.0.1":                 {Listen: "127.0.0.1:4222"},
		"listen: \"[::1]:4333\"":          {Listen: "[::1]:4333"},
		"max_payload: 64KB":               {MaxPayload: 64 << 10},
		"jetstream { store_dir: /store }": {DataDir: "/store"},
		"jetstream { store_dir: $SOME_FOLDER, sync_interval: always }": {DataDir: "/somewhere", Sync: true},
		"jetstream { sync_interval: 30s }":                             {Sync: true, SyncInterval: 30 * time.Second},
	} {
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := devserver.ReadConfig(file)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	if _, err := devserver.ReadConfig("not-there.conf"); err == nil || !strings.Contains(err.Error(), "not-there.conf") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestADataDirThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := devserver.Start(devserver.Options{DataDir: filepath.Join(file, "data")}); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("a data directory below a file: %v", err)
	}
}
