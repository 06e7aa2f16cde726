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

// Identities are the identities that `toolfleet identities new` makes, in a folder of the test.
type Identities struct {
	tb   testing.TB
	home string // what is made, for each identity a folder
	dir  string // the server's files
	// keys has the public halves, seeds the files of the keys, and inboxes the prefixes of reply
	// subjects, by the identity's name.
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

// Add makes another identity. A server that runs takes it after Reload.
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

// edit writes a file of the copy from another file or from itself, with replacements.
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

// Witness adds an identity "witness" without any permission set to the fleet's own account, which
// hears everything there. Only a test that looks for what others bring about there adds it, before
// the server starts.
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

// Renew gives an identity a new key. The old key is refused after the next Reload of the server.
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

// Seed returns the file with an identity's key: coordinator, worker, http, operator, approver,
// witness, or a tenant's name for its agent.
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

// May returns what an identity may publish and subscribe to, in its own account.
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
