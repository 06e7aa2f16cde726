package natstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// Tenants lists the agent tenants of a server with [Identities]. The first has a file in
// deploy/nats/tenants. The file of the other is made from that one, as its comments say.
var Tenants = []string{"acme", "globex"}

// Identities are the identities of deploy/nats/identities.conf, each with a fresh key.
type Identities struct {
	tb    testing.TB
	dir   string // holds a copy of deploy/nats, and the seeds
	keys  map[string]string
	seeds map[string]string
}

// NewIdentities makes the keys and writes the public ones into a copy of the configuration, in the
// place of their variables. So a server that runs sees a key that changes.
func NewIdentities(tb testing.TB) *Identities {
	tb.Helper()
	ids := &Identities{tb: tb, dir: tb.TempDir(), keys: map[string]string{}, seeds: map[string]string{}}
	if err := os.CopyFS(ids.dir, os.DirFS(deployed(tb))); err != nil {
		tb.Fatal(err)
	}
	first, other := Tenants[0], Tenants[1]
	ids.edit("tenants/"+other+".conf", "tenants/"+first+".conf", first, other, strings.ToUpper(first),
		strings.ToUpper(other))
	include := `include "tenants/` + first + `.conf"`
	ids.edit("identities.conf", "identities.conf", include, include+"\n"+strings.Replace(include, first, other, 1))
	for _, who := range append([]string{"coordinator", "worker", "http", "operator", "approver"}, Tenants...) {
		ids.keys[who] = "$TOOLFLEET_" + strings.ToUpper(who) + "_NKEY"
		ids.Renew(who)
	}
	return ids
}

// deployed returns the folder deploy/nats of this module.
func deployed(tb testing.TB) string {
	dir, err := os.Getwd()
	for ; err == nil && filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		if found := filepath.Join(dir, "deploy", "nats", "identities.conf"); exists(found) {
			return filepath.Dir(found)
		}
	}
	tb.Fatal("deploy/nats/identities.conf is in no folder above this one: ", err)
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
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
	ids.edit("identities.conf", "identities.conf", coordinator, first+"WITNESS }\n"+coordinator)
	ids.Renew("witness")
}

// Option makes a server use the configuration file of the identities.
func (ids *Identities) Option(o *devserver.Options) {
	o.Config = filepath.Join(ids.dir, "identities.conf")
}

// Renew gives an identity a new key. The old key is refused after the next Reload of the server.
func (ids *Identities) Renew(who string) {
	ids.tb.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		ids.tb.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		ids.tb.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		ids.tb.Fatal(err)
	}
	for _, conf := range []string{"identities.conf", "tenants/" + Tenants[0] + ".conf", "tenants/" + Tenants[1] + ".conf"} {
		ids.edit(conf, conf, ids.keys[who], public)
	}
	ids.keys[who] = public
	file := filepath.Join(ids.dir, public+".seed")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		ids.tb.Fatal(err)
	}
	ids.seeds[who] = file
}

// Seed returns the file with an identity's key: coordinator, worker, http, operator, approver,
// witness, or a tenant's name for its agent.
func (ids *Identities) Seed(who string) string {
	ids.tb.Helper()
	if ids.seeds[who] == "" {
		ids.tb.Fatalf("there is no identity %q", who)
	}
	return ids.seeds[who]
}

// Inbox returns the prefix of the reply subjects that an identity may use.
func (ids *Identities) Inbox(who string) string {
	for _, tenant := range Tenants {
		if who == tenant {
			who = "agent"
		}
	}
	return "_INBOX." + who
}

// May returns what an identity may publish and subscribe to, in its own account.
func (ids *Identities) May(who string) (publish, subscribe []string) {
	ids.tb.Helper()
	opts, err := server.ProcessConfigFile(filepath.Join(ids.dir, "identities.conf"))
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
