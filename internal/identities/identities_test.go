package identities_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/identities"
)

// fill makes a folder with identities of every kind.
func fill(t *testing.T, o identities.Options) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "made")
	o.Tenants, o.Approvers = []string{"acme"}, []string{"ann"}
	if _, err := identities.New(dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve starts a NATS server with the configuration in a folder.
func serve(t *testing.T, dir string) *devserver.Server {
	t.Helper()
	srv, err := devserver.Start(devserver.Options{Config: identities.ServerFile(dir), Listen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// connect connects with an identity. It uses TLS if the identity's folder has an authority.
func connect(t *testing.T, srv *devserver.Server, dir string, i identities.Identity) error {
	t.Helper()
	o := bus.Options{URL: srv.URL(), NKey: identities.KeyFile(dir, i.Name), InboxPrefix: i.InboxPrefix()}
	if ca := filepath.Join(dir, i.Name, "ca.crt"); exists(ca) {
		o.TLSCA = ca
	}
	return try(t, o)
}

func try(t *testing.T, o bus.Options) error {
	t.Helper()
	conn, err := bus.Connect(t.Context(), o)
	if err == nil {
		conn.Close()
	}
	return err
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Every identity connects over TLS with the files of its folder. Only the owner can read the
// files.
func TestEveryIdentityConnects(t *testing.T) {
	dir := fill(t, identities.Options{Workers: []string{"w-1", "w-2"}, MaxStore: "1GB"})
	for _, add := range []identities.Identity{
		{Kind: identities.Worker, Name: "w-3"}, {Kind: identities.Worker, Name: "w-acme", Tenant: "acme"}, {Kind: identities.Worker, Name: "w-acme-2", Tenant: "acme"},
		{Kind: identities.Agent, Name: "globex", Tenant: "globex"}, {Kind: identities.Agent, Name: "acme-2", Tenant: "acme"}, {Kind: identities.Approver, Name: "bob"},
		{Kind: identities.HTTP, Name: "http-2"}, {Kind: identities.Coordinator, Name: "coordinator-2"}, {Kind: identities.Operator, Name: "oz"},
	} {
		if _, err := identities.Add(dir, add); err != nil {
			t.Fatal(err)
		}
	}
	srv := serve(t, dir)
	all, err := identities.List(dir)
	if err != nil || len(all) != 16 {
		t.Fatalf("%d identities, %v", len(all), err)
	}
	keys := map[string]bool{}
	for _, i := range all {
		if keys[i.Key] = true; connect(t, srv, dir, i) != nil {
			t.Errorf("%s: %v", i.Name, connect(t, srv, dir, i))
		}
	}
	if len(keys) != len(all) {
		t.Errorf("%d identities have %d keys", len(all), len(keys))
	}
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; err == nil && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if _, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL(), TLSCA: filepath.Join(dir, "ca", "ca.crt")}); err == nil {
		t.Error("somebody without a key connects")
	}
}

// After a reload, the server accepts a new key and uses another certificate. It refuses a key
// that was removed.
func TestChangesWithoutARestart(t *testing.T) {
	dir := fill(t, identities.Options{})
	srv := serve(t, dir)
	late, err := identities.Add(dir, identities.Identity{Kind: identities.Agent, Name: "globex", Tenant: "globex"})
	if err != nil {
		t.Fatal(err)
	}
	if connect(t, srv, dir, late) == nil {
		t.Error("a new key is taken before the reload")
	}
	gone, err := identities.Remove(dir, "worker")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "nats", "tls", "server.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := identities.Certificate(dir, []string{"elsewhere.example"}); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "nats", "tls", "server.crt")); err != nil || cmp.Equal(before, after) {
		t.Fatalf("the certificate is the same: %v", err)
	}
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	if try(t, bus.Options{URL: srv.URL(), NKey: identities.KeyFile(dir, late.Name), TLSCA: filepath.Join(dir, "ca", "ca.crt"), Timeout: time.Second}) == nil {
		t.Error("a certificate of another host is taken")
	}
	if err := identities.Certificate(dir, []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := connect(t, srv, dir, late); err != nil {
		t.Error(err)
	}
	if connect(t, srv, dir, gone) == nil {
		t.Error("a key that was taken away is taken")
	}
}

// A connected program reads its key and its authority again when it reconnects, as often as
// they change.
func TestProgramsReadTheirFilesAgain(t *testing.T) {
	dir, other := fill(t, identities.Options{}), fill(t, identities.Options{})
	srv := serve(t, dir)
	ca := filepath.Join(dir, "worker", "ca.crt")
	back := make(chan struct{}, 10)
	connected := func(o bus.Options) *bus.Conn {
		t.Helper()
		o.NKey, o.InboxPrefix, o.Timeout = identities.KeyFile(dir, "worker"), "_INBOX.worker", time.Minute
		conn, err := bus.Connect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		conn.OnReconnect(func() { back <- struct{}{} })
		return conn
	}
	for _, o := range []bus.Options{{URL: srv.URL(), TLSCA: ca}, {InProcess: srv}} {
		conn := connected(o)
		for range 3 {
			if _, err := identities.Renew(dir, "worker"); err != nil {
				t.Fatal(err)
			}
			if err := srv.Reload(); err != nil { // the server disconnects the old key
				t.Fatal(err)
			}
			<-back
		}
		conn.Close()
	}
	conn := connected(bus.Options{URL: srv.URL(), TLSCA: ca})
	defer conn.Close()
	for from, to := range map[string]string{
		filepath.Join(other, "worker", "ca.crt"):          ca,
		filepath.Join(other, "nats", "tls", "server.crt"): filepath.Join(dir, "nats", "tls", "server.crt"), filepath.Join(other, "nats", "tls", "server.key"): filepath.Join(dir, "nats", "tls", "server.key"),
	} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	<-back
}

// All accounts as one file are a valid part of another server's configuration.
func TestAccountsAsOneFile(t *testing.T) {
	dir := fill(t, identities.Options{TLS: identities.TLS{None: true}})
	text, err := identities.Accounts(dir)
	if err != nil || strings.Contains(text, "include \"") {
		t.Fatalf("%v\n%s", err, text)
	}
	file := filepath.Join(t.TempDir(), "accounts.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := devserver.Start(devserver.Options{Config: file, Listen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	all, err := identities.List(dir)
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, i := range all {
		if err := connect(t, srv, dir, i); err != nil {
			t.Errorf("%s: %v", i.Name, err)
		}
	}
}

// A certificate that exists already is used by its path.
func TestACertificateByPath(t *testing.T) {
	theirs := filepath.Join(fill(t, identities.Options{}), "nats", "tls")
	own := identities.TLS{Cert: filepath.Join(theirs, "server.crt"), Key: filepath.Join(theirs, "server.key"), CA: filepath.Join(theirs, "..", "..", "ca", "ca.crt")}
	dir := fill(t, identities.Options{TLS: own})
	if exists(filepath.Join(dir, "ca", "ca.key")) || exists(filepath.Join(dir, "nats", "tls")) {
		t.Error("there is a trial authority")
	}
	late, err := identities.Add(dir, identities.Identity{Kind: identities.Operator, Name: "oz"})
	if err != nil {
		t.Fatal(err)
	}
	if err := connect(t, serve(t, dir), dir, late); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]identities.TLS{"--tls-key": {Cert: own.Cert}, "--no-tls": {None: true, CA: own.CA}, "read the certificate": {Cert: own.CA, Key: own.Key}} {
		if _, err := identities.New(t.TempDir(), identities.Options{TLS: bad}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// New and Add replace no file, and a folder that they refuse stays as it was.
func TestNothingIsReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "nats", "tls"), 0o700); err != nil { // a container may have these folders from its volumes
		t.Fatal(err)
	}
	note := filepath.Join(dir, "nats", "note")
	if err := os.WriteFile(note, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identities.New(dir, identities.Options{}); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a folder with a file: %v", err)
	}
	if _, err := identities.Add(dir, identities.Identity{Kind: identities.Worker, Name: "w"}); err == nil || !strings.Contains(err.Error(), "identities new") {
		t.Errorf("a key in a folder without identities: %v", err)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	if _, err := identities.New(dir, identities.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := identities.Add(dir, identities.Identity{Kind: identities.Agent, Name: "Worker", Tenant: "t"}); err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := identities.Remove(dir, "nobody"); err == nil || !strings.Contains(err.Error(), "identities ls") {
		t.Errorf("an identity that is not there: %v", err)
	}
}

func TestNames(t *testing.T) {
	for name, o := range map[string]identities.Options{
		"an account of the fleet": {Tenants: []string{"Fleet"}}, "tenant \"_\"": {Tenants: []string{"_"}}, "name \"../x\"": {Workers: []string{"../x"}},
		"two folders": {Approvers: []string{"worker"}}, "called nats": {Workers: []string{"nats"}}, "WORKERS_acme": {Tenants: []string{"WORKERS_acme"}}, "name \"a b\"": {Approvers: []string{"a b"}},
	} {
		dir := t.TempDir()
		if _, err := identities.New(dir, o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", o, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%+v left %v, %v", o, left, err)
		}
	}
	if _, err := identities.Add(fill(t, identities.Options{}), identities.Identity{Kind: identities.Agent, Name: "x"}); err == nil || !strings.Contains(err.Error(), "--tenant") {
		t.Errorf("an agent without a tenant: %v", err)
	}
}

// A worker in its tenant's pool: its settings, the others that come into the pool, and what is
// refused.
func TestAPoolOfATenant(t *testing.T) {
	dir := fill(t, identities.Options{})
	add := func(name string, pools ...string) (identities.Identity, error) {
		return identities.Add(dir, identities.Identity{Kind: identities.Worker, Name: name, Tenant: "acme", Pools: pools})
	}
	first, err := add("gpu-1", "acme-gpu", "acme-cpu")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile(filepath.Join(dir, "gpu-1", "toolfleet.yaml"))
	if err != nil || !strings.Contains(string(settings), "worker_tenant: acme\nworker_pool: acme-gpu\n") {
		t.Errorf("settings: %v\n%s", err, settings)
	}
	second, err := add("gpu-2")
	if err != nil || !slices.Equal(second.Pools, first.Pools) {
		t.Errorf("a second worker has %v: %v", second.Pools, err)
	}
	if _, err := add("gpu-3", "other"); err == nil || !strings.Contains(err.Error(), "acme-gpu and acme-cpu alone") {
		t.Errorf("another pool: %v", err)
	}
	all, err := identities.List(dir)
	if n := slices.IndexFunc(all, func(i identities.Identity) bool { return i.Name == "gpu-2" }); err != nil || n < 0 || !slices.Equal(all[n].Pools, first.Pools) {
		t.Errorf("listed: %+v, %v", all, err)
	}
	text, err := identities.Accounts(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, account, _ := strings.Cut(text, "WORKERS_acme {")
	for _, wrong := range []string{"TOOLFLEET_JOBS.*", "TOOLFLEET_JOBS.>", "toolfleet.queue.*", "TOOLFLEET_workers.*", "TOOLFLEET_tools.*"} {
		if strings.Contains(account, wrong) {
			t.Errorf("the account, or the permissions of its users, have %s", wrong)
		}
	}
	srv := serve(t, dir)
	for _, i := range []identities.Identity{first, second} {
		if err := connect(t, srv, dir, i); err != nil {
			t.Errorf("%s: %v", i.Name, err)
		}
	}
	for _, wrong := range []identities.Identity{
		{Kind: identities.Worker, Name: "x", Pools: []string{"p"}},
		{Kind: identities.Agent, Name: "x", Tenant: "acme", Pools: []string{"p"}},
		{Kind: identities.Worker, Name: "x", Tenant: "globex", Pools: []string{"p.>"}},
		{Kind: identities.Worker, Name: "x", Tenant: "globex", Pools: []string{"p", "q", "p"}},
	} {
		if _, err := identities.Add(dir, wrong); err == nil || !strings.Contains(err.Error(), "pool") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if after, err := identities.Accounts(dir); err != nil || after != text {
		t.Errorf("what is refused has changed the server's files: %v", err)
	}
}
