package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// Without rules there is no version. The platform's part of a version does not depend on the tools
// file.
func TestVersionWithoutAPolicy(t *testing.T) {
	of := func(settings string, tools schemas.Rules) string {
		t.Helper()
		p, err := load(t, sources(settings, nil)).ReadPolicy("tools.yaml", tools)
		if err != nil {
			t.Fatal(err)
		}
		return p.Version()
	}
	rules := schemas.Rules{Deny: []schemas.RuleEntry{{Name: "X", Tool: "X"}}}
	for _, settings := range []string{"", "slots: 3\n", "permissions: {default: allow}\n"} {
		if got := of(settings, schemas.Rules{}); got != "" {
			t.Errorf("%q: version %q, and nothing is decided", settings, got)
		}
		if got := of(settings, rules); got == "" || wire.PlatformPolicy(got) != "" {
			t.Errorf("%q and rules of a tools file: version %q", settings, got)
		}
	}
	for _, settings := range []string{"permissions: {default: ask}\n", "permissions: {deny: [Bash]}\n"} {
		bare, with := of(settings, schemas.Rules{}), of(settings, rules)
		if bare == "" || bare == with || wire.PlatformPolicy(with) != bare {
			t.Errorf("%q: version %q, with rules of a tools file %q", settings, bare, with)
		}
	}
	if p := policed(t, "tests: []\n", "", schemas.Rules{}); p.Version() == "" {
		t.Error("a policy file that decides nothing is none")
	}
}

// Variables with public keys for the NATS server's configuration are no mistyped settings; a
// mistyped TOOLFLEET_ name is reported.
func TestKeysOfIdentitiesAreNotStrange(t *testing.T) {
	c := load(t, sources("", []string{"TOOLFLEET_ACME_NKEY=U", "TOOLFLEET_NKEY=file"}))
	if got := c.Strange(); len(got) != 1 || got[0] != "TOOLFLEET_NKEY" {
		t.Errorf("strange: %v", got)
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
	of := func(env ...string) devserver.Options {
		t.Helper()
		o, err := load(t, sources("", append(env, "TOOLFLEET_SERVER_CONFIG="+file))).NATSServer(nil)
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
	if _, err := load(t, sources("", []string{"TOOLFLEET_SERVER_CONFIG=not-there"})).NATSServer(nil); err == nil {
		t.Error("a file that is not there is read")
	}
}
