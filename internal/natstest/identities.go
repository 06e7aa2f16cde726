package natstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/identities"
)

// Tenants lists the agent tenants of a server with [Identities].
var Tenants = []string{"acme", "globex"}

// Identities are identities as `toolfleet identities new` makes them, in a folder of the test.
type Identities struct {
	tb   testing.TB
	home string // the folder with a folder for each identity
	dir  string // the folder with the server's files
	// keys holds the public halves of keys, seeds the files with the keys, and inboxes the
	// prefixes of reply subjects. Each is by the name of the identity.
	keys, seeds, inboxes map[string]string
}

// NewIdentities makes keys and the server's configuration, without TLS.
func NewIdentities(tb testing.TB) *Identities {
	tb.Helper()
	ids := &Identities{tb: tb, home: tb.TempDir(), keys: map[string]string{}, seeds: map[string]string{}, inboxes: map[string]string{}}
	ids.dir = filepath.Join(ids.home, "nats")
	made, err := identities.New(ids.home, identities.Options{Tenants: Tenants, Approvers: []string{"approver"}, TLS: identities.TLS{None: true}})
	if err != nil {
		tb.Fatal(err)
	}
	for _, i := range made {
		ids.know(i)
	}
	return ids
}

// Add makes another identity. A running server accepts it after Reload.
func (ids *Identities) Add(i identities.Identity) {
	ids.tb.Helper()
	made, err := identities.Add(ids.home, i)
	if err != nil {
		ids.tb.Fatal(err)
	}
	ids.know(made)
}

func (ids *Identities) know(i identities.Identity) {
	ids.keys[i.Name], ids.seeds[i.Name], ids.inboxes[i.Name] = i.Key, identities.KeyFile(ids.home, i.Name), i.InboxPrefix()
}

// edit writes the file to with the text of the file from, after it has made replacements.
func (ids *Identities) edit(to, from string, oldnew ...string) {
	ids.tb.Helper()
	text, err := os.ReadFile(filepath.Join(ids.dir, from))
	if err == nil {
		err = os.WriteFile(filepath.Join(ids.dir, to), []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o600)
	}
	if err != nil {
		ids.tb.Fatal(err)
	}
}

// Witness adds an identity "witness" to the fleet's own account. It has no limits there, so it
// receives every message of the account. It is for a test that watches what other identities
// cause there. Call Witness before the server starts.
func (ids *Identities) Witness() {
	ids.tb.Helper()
	const first = "{ nkey: "
	ids.keys["witness"] = "WITNESS"
	coordinator := first + ids.keys["coordinator"]
	ids.edit("users/fleet.conf", "users/fleet.conf", coordinator, first+"WITNESS }\n"+coordinator)
	ids.Renew("witness")
}

// Option makes a server use the configuration file of the identities.
func (ids *Identities) Option(o *devserver.Options) {
	o.Config = identities.ServerFile(ids.home)
}

// Renew gives an identity a new key. After the next Reload, the server refuses the old key.
func (ids *Identities) Renew(who string) {
	ids.tb.Helper()
	key, err := approval.NewKey()
	if err != nil {
		ids.tb.Fatal(err)
	}
	confs, err := filepath.Glob(filepath.Join(ids.dir, "*", "*.conf"))
	if err != nil {
		ids.tb.Fatal(err)
	}
	for _, conf := range confs {
		name := strings.TrimPrefix(conf, ids.dir)
		ids.edit(name, name, ids.keys[who], key.Public())
	}
	ids.keys[who] = key.Public()
	ids.seeds[who] = filepath.Join(ids.home, key.Public()+".nkey")
	if err := key.Write(ids.seeds[who]); err != nil {
		ids.tb.Fatal(err)
	}
}

// Seed returns the file with the key of an identity: coordinator, worker, http, operator,
// approver, witness, or the name of a tenant for its agent.
func (ids *Identities) Seed(who string) string {
	ids.tb.Helper()
	if ids.keys[who] == "" {
		ids.tb.Fatalf("there is no identity %q", who)
	}
	return ids.seeds[who]
}

// Inbox returns the prefix of the reply subjects that an identity may use.
func (ids *Identities) Inbox(who string) string {
	if inbox := ids.inboxes[who]; inbox != "" {
		return inbox
	}
	return "_INBOX." + who
}

// May returns the subjects that an identity may publish and subscribe to, in its own account.
func (ids *Identities) May(who string) (publish, subscribe []string) {
	ids.tb.Helper()
	opts, err := server.ProcessConfigFile(identities.ServerFile(ids.home))
	if err != nil {
		ids.tb.Fatal(err)
	}
	for _, user := range opts.Nkeys {
		if user.Nkey == ids.keys[who] {
			return user.Permissions.Publish.Allow, user.Permissions.Subscribe.Allow
		}
	}
	ids.tb.Fatalf("%s is no user", who)
	return nil, nil
}
