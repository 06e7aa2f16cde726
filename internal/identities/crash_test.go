package identities_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/identities"
)

func edit(t *testing.T, file string, change func(string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(change(string(text))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// New is killed before its end: there is no server.conf, and the next New says what to do.
func TestAFolderThatIsHalfWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	blocked := filepath.Join(dir, "operator", "key.nkey")
	if err := os.MkdirAll(blocked, 0o700); err != nil { // makes New fail before its end
		t.Fatal(err)
	}
	if _, err := identities.New(dir, identities.Options{}); err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Stat(identities.ServerFile(dir)); err == nil {
		t.Error("server.conf is there before the keys are")
	}
	if _, err := identities.New(dir, identities.Options{}); err == nil || !strings.Contains(err.Error(), "empty the folder") {
		t.Errorf("the next New: %v", err)
	}
}

// A killed command may leave a temporary file beside the one that it was to replace, and a
// tenant's file that is not included yet: later commands still work.
func TestWhatAKilledCommandLeaves(t *testing.T) {
	dir := fill(t, identities.Options{})
	conf := filepath.Join(dir, "nats", "identities.conf")
	for _, stale := range []string{conf, filepath.Join(dir, "nats", "users", "workers.conf"), identities.KeyFile(dir, "worker")} {
		if err := os.WriteFile(stale+".new", []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := identities.Renew(dir, "worker"); err != nil {
		t.Error(err)
	}
	edit(t, conf, func(text string) string { return strings.Replace(text, "  include \"tenants/acme.conf\"\n", "", 1) })
	if _, err := identities.Add(dir, identities.Identity{Kind: identities.Agent, Name: "second", Tenant: "acme"}); err != nil {
		t.Error(err)
	}
	all, err := identities.Accounts(dir)
	if err != nil || strings.Count(all, "# agent acme\n") != 1 || strings.Count(all, "# agent second\n") != 1 {
		t.Errorf("%v: %s", err, all)
	}
	serve(t, dir)
}

// A command that made the pool of a tenant is killed before identities.conf includes the account.
// A command with another pool is then refused and changes nothing. One with the same pool, or with
// none, goes on where the first stopped.
func TestAKilledCommandHasMadeAPool(t *testing.T) {
	for name, next := range map[string][]string{"the same pool": {"a"}, "no pool": nil} {
		t.Run(name, func(t *testing.T) {
			dir := fill(t, identities.Options{})
			at := func(name string) string { return filepath.Join(dir, "nats", filepath.FromSlash(name)) }
			read := func(name string) string {
				text, err := os.ReadFile(at(name))
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			add := func(name string, pools ...string) (identities.Identity, error) {
				return identities.Add(dir, identities.Identity{Kind: identities.Worker, Name: name, Tenant: "globex", Pools: pools})
			}
			before := read("identities.conf")
			if _, err := add("killed", "a"); err != nil {
				t.Fatal(err)
			}
			edit(t, at("identities.conf"), func(string) string { return before })
			edit(t, at("workers/globex.conf"), func(s string) string {
				return regexp.MustCompile(`(?m)^.*# worker killed\n`).ReplaceAllString(s, "")
			})
			permissions := read("permissions/worker-globex.conf")
			if _, err := add("w", "b"); err == nil || !strings.Contains(err.Error(), "take jobs of a alone") {
				t.Errorf("another pool: %v", err)
			}
			if read("identities.conf") != before || read("permissions/worker-globex.conf") != permissions {
				t.Error("what is refused has changed the server's files")
			}
			w, err := add("w", next...)
			if err != nil || !slices.Equal(w.Pools, []string{"a"}) {
				t.Fatalf("it has the pools %q: %v", w.Pools, err)
			}
			if got := read("permissions/worker-globex.conf"); got != permissions {
				t.Errorf("its permissions are for another pool:\n%s", got)
			}
			if !strings.Contains(read("identities.conf"), "$KV.TOOLFLEET_tools.globex.*") {
				t.Error("it may not announce its tools below its tenant's name")
			}
			if err := connect(t, serve(t, dir), dir, w); err != nil {
				t.Error(err)
			}
		})
	}
}

// Somebody moves the line of a user to another file of users: commands still find the line.
func TestALineInAnotherFile(t *testing.T) {
	dir := fill(t, identities.Options{})
	var line string
	edit(t, filepath.Join(dir, "nats", "users", "approvers.conf"), func(text string) string {
		for _, l := range strings.SplitAfter(text, "\n") {
			if strings.HasSuffix(l, "# approver ann\n") {
				line = l
			}
		}
		return strings.Replace(text, line, "", 1)
	})
	edit(t, filepath.Join(dir, "nats", "users", "fleet.conf"), func(text string) string {
		end := strings.LastIndex(text, "]")
		return text[:end] + line + text[end:]
	})
	if _, err := identities.Remove(dir, "ann"); err != nil {
		t.Fatal(err)
	}
	left, err := identities.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range left {
		if i.Name == "ann" {
			t.Error("ann is still there")
		}
	}
}

func TestTenantsThatAreNoNamesForTheServer(t *testing.T) {
	for _, tenant := range []string{"include", "Include", "true", "no", "OFF", "1st", "-x"} {
		_, err := identities.New(t.TempDir(), identities.Options{Workers: []string{"w"}, Tenants: []string{tenant}})
		if err == nil || !strings.Contains(err.Error(), "name") && !strings.Contains(err.Error(), "tenant") {
			t.Errorf("%s: %v", tenant, err)
		}
		dir := fill(t, identities.Options{})
		_, err = identities.Add(dir, identities.Identity{Kind: identities.Agent, Name: "agent", Tenant: tenant})
		if err == nil || !strings.Contains(err.Error(), "reads this as something else") {
			t.Errorf("%s: %v", tenant, err)
		}
	}
}
