package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"sigs.k8s.io/yaml"
)

func TestNATSConf(t *testing.T) {
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":       {},
		"unknown key":    {source{"deploy/nats/nats.conf": {"write_deadline", "write_dedline"}}, "write_dedline"},
		"late to disk":   {source{"deploy/nats/nats.conf": {"sync_interval: always", "sync_interval: 2m"}}, "power loss"},
		"small messages": {source{"deploy/nats/nats.conf": {"max_payload: 1MB", "max_payload: 64KB"}}, "max_payload"},
		"open monitor":   {source{"deploy/nats/nats.conf": {"127.0.0.1:8222", "0.0.0.0:8222"}}, "monitoring"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, natsProblems(t, tc.edit), tc.want) })
	}
}

func natsProblems(t *testing.T, edits source) (found []string) {
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, edits.read(t, "deploy/nats/nats.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		return []string{err.Error()}
	}
	if !opts.JetStream || opts.StoreDir != "/data" {
		found = append(found, "JetStream does not store in the volume at /data")
	}
	if !opts.SyncAlways {
		found = append(found, "a power loss takes acknowledged messages")
	}
	if opts.MaxPayload != 1<<20 {
		found = append(found, "max_payload is not 1 MiB")
	}
	if opts.HTTPHost != "127.0.0.1" {
		found = append(found, "the monitoring port is open, and it has no authentication")
	}
	return found
}

// TestNATSIdentities checks the accounts and their users. The whole-fleet tests check what each
// user may do.
func TestNATSIdentities(t *testing.T) {
	for _, who := range []string{"COORDINATOR", "WORKER", "HTTP", "OPERATOR", "APPROVER", "ACME"} {
		key, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := key.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("TOOLFLEET_"+who+"_NKEY", public)
	}
	opts, err := server.ProcessConfigFile(filepath.Join(root, "deploy/nats/server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if !opts.SyncAlways || opts.StoreDir != "/data" {
		t.Error("server.conf does not include nats.conf: its sync or store_dir is missing")
	}
	if opts.NoAuthUser != "" || len(opts.Users) > 0 {
		t.Error("somebody may connect without a key")
	}
	for _, user := range opts.Nkeys {
		p := user.Permissions
		if p == nil || p.Publish == nil || len(p.Publish.Allow) == 0 || p.Subscribe == nil || len(p.Subscribe.Allow) == 0 {
			t.Errorf("%s in %s may do everything there", user.Nkey, user.Account.Name)
			continue
		}
		for _, subject := range p.Publish.Allow {
			if user.Account.Name != "FLEET" && user.Account.Name != "WORKERS" && strings.HasPrefix(subject, "$") {
				t.Errorf("%s may publish %s", user.Account.Name, subject)
			}
		}
		if user.Account.Name == "WORKERS" {
			expectImports(t, append(p.Publish.Allow, p.Subscribe.Allow...))
		}
	}
}

// expectImports checks that the workers' account imports what its user may publish and
// subscribe to, and nothing else. A request with a reply subject reaches everything that the
// account imports. None of these subjects is exported to another account.
func expectImports(t *testing.T, rights []string) {
	t.Helper()
	parsed, err := conf.ParseFile(filepath.Join(root, "deploy/nats/identities.conf"))
	if err != nil {
		t.Fatal(err)
	}
	accounts := parsed["accounts"].(map[string]any)
	var imported []string
	for _, each := range accounts["WORKERS"].(map[string]any)["imports"].([]any) {
		for _, from := range each.(map[string]any) {
			imported = append(imported, from.(map[string]any)["subject"].(string))
		}
	}
	own := []string{"_INBOX.worker.>", "$SYS.REQ.USER.INFO"} // need no import
	want := append(slices.DeleteFunc(rights, func(s string) bool { return slices.Contains(own, s) }), "$JS.API.INFO")
	slices.Sort(want)
	slices.Sort(imported)
	if !slices.Equal(want, imported) {
		t.Errorf("a worker may publish and hear\n%q\nand its account imports\n%q", want, imported)
	}
	for _, each := range accounts["FLEET"].(map[string]any)["exports"].([]any) {
		export := each.(map[string]any)
		subject, _ := export["service"].(string)
		if to, limited := export["accounts"].([]any); slices.Contains(want, subject) && (!limited || len(to) != 1 || to[0] != "WORKERS") {
			t.Errorf("%s is exported to %v", subject, to)
		}
	}
	for _, subject := range imported {
		for _, verb := range []string{".CREATE", ".UPDATE", ".DELETE", ".PURGE", ".SNAPSHOT", ".RESTORE", ".PAUSE", ".UNPIN", ".RESET", ".STEPDOWN", "API.>", "API.*"} {
			if strings.Contains(subject, verb) {
				t.Errorf("workers may publish %s", subject)
			}
		}
	}
}

// TestNATSValues checks that the chart's values match the configuration of a single server. The
// chart does not refuse unknown keys, so the test looks only at toolfleet's own keys.
func TestNATSValues(t *testing.T) {
	var values struct {
		Config struct {
			Cluster struct {
				Enabled  bool `json:"enabled"`
				Replicas int  `json:"replicas"`
			} `json:"cluster"`
			JetStream struct {
				Enabled   bool `json:"enabled"`
				FileStore struct {
					PVC struct {
						Size string `json:"size"`
					} `json:"pvc"`
				} `json:"fileStore"`
				Merge struct {
					SyncInterval string `json:"sync_interval"`
				} `json:"merge"`
			} `json:"jetstream"`
			Monitor struct {
				Enabled bool `json:"enabled"`
			} `json:"monitor"`
			NATS struct {
				TLS struct {
					Enabled    bool   `json:"enabled"`
					SecretName string `json:"secretName"`
				} `json:"tls"`
			} `json:"nats"`
			Merge struct {
				MaxPayload int    `json:"max_payload"`
				Accounts   string `json:"accounts$include"`
			} `json:"merge"`
		} `json:"config"`
		Container struct {
			Image struct {
				Tag string `json:"tag"`
			} `json:"image"`
			Patch []patch `json:"patch"`
		} `json:"container"`
		PodTemplate struct {
			Patch  []patch `json:"patch"`
			Spread map[string]struct {
				MaxSkew           int    `json:"maxSkew"`
				WhenUnsatisfiable string `json:"whenUnsatisfiable"`
			} `json:"topologySpreadConstraints"`
		} `json:"podTemplate"`
	}
	if err := yaml.UnmarshalStrict(source(nil).read(t, "deploy/nats/values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	c := values.Config
	if !c.Cluster.Enabled || c.Cluster.Replicas != 3 || !c.JetStream.Enabled || c.JetStream.Merge.SyncInterval != "always" || c.Merge.MaxPayload != 1<<20 {
		t.Errorf("want three servers, sync always, 1 MiB: got %+v", c)
	}
	if !c.NATS.TLS.Enabled || c.NATS.TLS.SecretName == "" || c.Merge.Accounts != "../toolfleet-accounts/accounts.conf" {
		t.Errorf("the servers ask nobody who they are, or speak no TLS: %+v", c)
	}
	for what, patches := range map[string][]patch{"the server": values.Container.Patch, "the pod": values.PodTemplate.Patch} {
		if len(patches) != 1 || patches[0].Value["name"] != "toolfleet-accounts" {
			t.Errorf("%s does not have the accounts: %+v", what, patches)
		}
	}
	if !pinned("nats:" + values.Container.Image.Tag) {
		t.Errorf("image tag %q names no version", values.Container.Image.Tag)
	}
}

// patch is a JSON patch of the chart's own objects.
type patch struct {
	Op    string         `json:"op"`
	Path  string         `json:"path"`
	Value map[string]any `json:"value"`
}
