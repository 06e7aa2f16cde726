package e2e

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/identities"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// operated is the server's configuration with JSON Web Tokens of an operator. It is made from
// the accounts that `toolfleet identities accounts` prints. Each account, export, import,
// limit and permission becomes the claim with the same meaning.
type operated struct {
	t        *testing.T
	operator nkeys.KeyPair
	keys     map[string]nkeys.KeyPair // keys of accounts, by name
	// scopes holds a signing key for each user of an account, with the user's permissions.
	scopes   map[string][]*jwt.UserScope
	accounts map[string]any // from the printed configuration
}

func newOperated(t *testing.T, text string) *operated {
	t.Helper()
	parsed, err := conf.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	o := &operated{t: t, keys: map[string]nkeys.KeyPair{}, scopes: map[string][]*jwt.UserScope{}, accounts: parsed["accounts"].(map[string]any)}
	o.operator, err = nkeys.CreateOperator()
	for name := range o.accounts {
		if err == nil {
			o.keys[name], err = nkeys.CreateAccount()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (o *operated) public(account string) string {
	o.t.Helper()
	key, err := o.keys[account].PublicKey()
	return must(o.t, key, err)
}

// list returns a list of maps of the configuration, or nil if there is none.
func list(of any) (all []map[string]any) {
	entries, _ := of.([]any)
	for _, each := range entries {
		all = append(all, each.(map[string]any))
	}
	return all
}

func texts(of any) (all []string) {
	entries, _ := of.([]any)
	for _, each := range entries {
		all = append(all, each.(string))
	}
	return all
}

// kinds are the two kinds of exports and imports, by their key in the configuration.
var kinds = map[string]jwt.ExportType{"service": jwt.Service, "stream": jwt.Stream}

// account returns the token of an account. An export that is only for certain accounts needs
// an activation: a token that the exporting account has signed for the importing account.
func (o *operated) account(name string) string {
	o.t.Helper()
	claims := jwt.NewAccountClaims(o.public(name))
	claims.Name = name
	body := o.accounts[name].(map[string]any)
	if body["jetstream"] != nil {
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: 32, Consumer: 20000}
	}
	if limits, ok := body["limits"].(map[string]any); ok {
		claims.Limits.Conn = limits["max_connections"].(int64)
	}
	for _, each := range list(body["exports"]) {
		for key, kind := range kinds {
			if subject, ok := each[key].(string); ok {
				export := &jwt.Export{Subject: jwt.Subject(subject), Type: kind, TokenReq: each["accounts"] != nil}
				if each["response"] == "stream" {
					export.ResponseType = jwt.ResponseTypeStream
				}
				if text, ok := each["response_threshold"].(string); ok {
					threshold, err := time.ParseDuration(text)
					export.ResponseThreshold = must(o.t, threshold, err)
				}
				if position, ok := each["account_token_position"].(int64); ok {
					export.AccountTokenPosition = uint(position)
				}
				claims.Exports.Add(export)
			}
		}
	}
	for _, each := range list(body["imports"]) {
		for key, kind := range kinds {
			if from, ok := each[key].(map[string]any); ok {
				claims.Imports.Add(o.imported(name, from, each["to"], kind))
			}
		}
	}
	for _, scope := range o.scopes[name] {
		claims.SigningKeys.AddScopedSigner(scope)
	}
	token, err := claims.Encode(o.operator)
	return must(o.t, token, err)
}

// imported returns an import of an account. In the configuration's subjects the tenant is the
// name of its account. Here it is the account's public key.
func (o *operated) imported(name string, from map[string]any, to any, kind jwt.ExportType) *jwt.Import {
	o.t.Helper()
	exporter := from["account"].(string)
	subject := strings.Replace(from["subject"].(string), "."+name, "."+o.public(name), 1)
	i := &jwt.Import{Subject: jwt.Subject(subject), Account: o.public(exporter), Type: kind}
	if local, ok := to.(string); ok {
		for n := 1; strings.Contains(local, "*"); n++ {
			local = strings.Replace(local, "*", fmt.Sprint("$", n), 1)
		}
		i.LocalSubject = jwt.RenamingSubject(local)
	}
	activation := jwt.NewActivationClaims(o.public(name))
	activation.ImportSubject, activation.ImportType = i.Subject, kind
	token, err := activation.Encode(o.keys[exporter])
	if local := to; local == nil { // the exports with a tenant's token are open to all accounts
		i.Token = must(o.t, token, err)
	}
	return i
}

// credentials writes a user's token and seed into a file and returns its path. The permissions
// are in the key that signs the token: a token with all permissions is longer than the server
// accepts.
func (o *operated) credentials(dir string, i identities.Identity) string {
	o.t.Helper()
	for account, body := range o.accounts {
		for _, user := range list(body.(map[string]any)["users"]) {
			if user["nkey"] != i.Key {
				continue
			}
			signing, err := nkeys.CreateAccount()
			if err != nil {
				o.t.Fatal(err)
			}
			scope := jwt.NewUserScope()
			scope.Key, err = signing.PublicKey()
			if err != nil {
				o.t.Fatal(err)
			}
			may, allowed := user["permissions"].(map[string]any), &scope.Template.Permissions
			allowed.Sub.Allow = texts(may["subscribe"])
			if allowed.Pub.Allow = texts(may["publish"]); allowed.Pub.Allow == nil {
				publish := may["publish"].(map[string]any)
				allowed.Pub.Allow, allowed.Pub.Deny = texts(publish["allow"]), texts(publish["deny"])
			}
			o.scopes[account] = append(o.scopes[account], scope)
			claims := jwt.NewUserClaims(i.Key)
			claims.IssuerAccount, claims.UserPermissionLimits = o.public(account), jwt.UserPermissionLimits{}
			token, err := claims.Encode(signing)
			seed, readErr := os.ReadFile(identities.KeyFile(dir, i.Name))
			if readErr != nil {
				o.t.Fatal(readErr)
			}
			body, err := jwt.FormatUserConfig(must(o.t, token, err), seed[:len(seed)-1])
			file := filepath.Join(dir, i.Name, "user.creds")
			if err := os.WriteFile(file, must(o.t, body, err), 0o600); err != nil {
				o.t.Fatal(err)
			}
			return file
		}
	}
	o.t.Fatalf("%s is no user", i.Name)
	return ""
}

// configuration writes the server's configuration into a file and returns its path.
func (o *operated) configuration(dir string) string {
	o.t.Helper()
	key, err := o.operator.PublicKey()
	claims := jwt.NewOperatorClaims(must(o.t, key, err))
	claims.SystemAccount = o.public("SYS")
	token, err := claims.Encode(o.operator)
	text := "operator: " + must(o.t, token, err) + "\nsystem_account: " + o.public("SYS") + "\nresolver: MEMORY\nresolver_preload: {\n"
	for name := range o.accounts {
		text += "  " + o.public(name) + ": " + o.account(name) + "\n"
	}
	file := filepath.Join(dir, "operator.conf")
	if err := os.WriteFile(file, []byte(text+"}\n"), 0o600); err != nil {
		o.t.Fatal(err)
	}
	return file
}

// The accounts and users of a fleet are JSON Web Tokens, as docs/identities.md describes. The
// fleet works as with a configuration that lists them.
func TestAFleetWithJWTAccounts(t *testing.T) {
	dir := t.TempDir()
	made, err := identities.New(dir, identities.Options{Tenants: natstest.Tenants, TLS: identities.TLS{None: true}})
	if err != nil {
		t.Fatal(err)
	}
	accounts, err := identities.Accounts(dir)
	if err != nil {
		t.Fatal(err)
	}
	o := newOperated(t, accounts)
	creds, inboxes := map[string]string{}, map[string]string{}
	for _, i := range made {
		creds[i.Name], inboxes[i.Name] = o.credentials(dir, i), i.InboxPrefix()
	}
	configuration := o.configuration(dir)
	srv := natstest.Server(t, natstest.Fast, func(s *devserver.Options) { s.Config = configuration })
	f := newFleetAs(t, srv, func(b *bus.Options) {
		who := b.Name
		if who == "agent" {
			who = natstest.Tenants[0]
		}
		b.Creds, b.InboxPrefix = creds[who], inboxes[who]
		b.Logger = slog.New(noRefusal{b.Logger.Handler(), t, who})
	})
	defer f.close()
	var s shelf
	s.tools(f)
	f.coordinator(coordinator.Config{})
	f.worker(worker.Config{})
	f.wantStatuses(f.run(canonical("s", "b", call{"wr", `{"k":"a","v":"1"}`}, call{"rd", `{"k":"a"}`})), "ok ok")

	conn := f.connect("operator")
	defer conn.Close()
	tenant := o.public(natstest.Tenants[0])
	if found, err := conn.All(t.Context(), conn.Names().Stream(bus.Replies), "toolfleet.*."+tenant+".>"); err != nil || len(found) != 1 {
		t.Errorf("%d replies of the tenant %s, %v", len(found), tenant, err)
	}
	if !messages.IsToken(tenant) {
		t.Errorf("%s cannot be a tenant", tenant)
	}
}
