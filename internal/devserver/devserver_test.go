package devserver_test

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

func start(t *testing.T, o devserver.Options) *devserver.Server {
	t.Helper()
	srv, err := devserver.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// dial connects to the server, through its port if it has one.
func dial(t *testing.T, srv *devserver.Server) *nats.Conn {
	t.Helper()
	options := []nats.Option{nats.Timeout(time.Minute)}
	if srv.URL() == "" {
		options = append(options, nats.InProcessServer(srv))
	}
	nc, err := nats.Connect(srv.URL(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestStoredMessagesSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, o := range []devserver.Options{{DataDir: dir}, {DataDir: dir, Listen: "127.0.0.1:0"}} {
		srv := start(t, o)
		js, err := dial(t, srv).JetStream()
		if err != nil {
			t.Fatal(err)
		}
		if o.Listen == "" { // in the first round
			if _, err := js.AddStream(&nats.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := js.Publish("kept", nil); err != nil {
				t.Fatal(err)
			}
		}
		if info, err := js.StreamInfo("KEPT"); err != nil || info.State.Msgs != 1 {
			t.Errorf("%+v, %v; want one message", info, err)
		}
		srv.Shutdown()
		srv.Shutdown() // a second call does nothing
	}
	mode, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if mode.Mode().Perm() != 0o700 {
		t.Errorf("the data directory has mode %v, want 0700", mode.Mode().Perm())
	}
}

func TestADataDirBelongsToOneServer(t *testing.T) {
	dir := t.TempDir()
	first := start(t, devserver.Options{DataDir: dir})
	_, err := devserver.Start(devserver.Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another toolfleet") {
		t.Fatalf("a second server over the same data: %v", err)
	}
	first.Shutdown()
	start(t, devserver.Options{DataDir: dir})
}

func TestATemporaryDataDirGoesWithTheServer(t *testing.T) {
	srv := start(t, devserver.Options{})
	dir := srv.DataDir()
	srv.Stop()
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("gone while still in use: %v", err)
	}
	srv.Shutdown()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestAPortInUseSaysWhatToDo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = devserver.Start(devserver.Options{Listen: l.Addr().String()})
	if err == nil {
		t.Fatal("started on a port that is taken")
	}
	for _, want := range []string{l.Addr().String(), "address already in use", "--nats", "--listen"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestListenAddresses(t *testing.T) {
	for _, bad := range []string{"4222", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		if srv, err := devserver.Start(devserver.Options{Listen: bad}); err == nil {
			srv.Shutdown()
			t.Errorf("listens on %q", bad)
		}
	}
	srv := start(t, devserver.Options{Listen: "127.0.0.1:0"})
	url := srv.URL()
	if !strings.HasPrefix(url, "nats://127.0.0.1:") || strings.HasSuffix(url, ":0") {
		t.Fatalf("URL is %q", url)
	}
	dial(t, srv)
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	if srv.URL() != url {
		t.Errorf("after the restart at %s, before at %s", srv.URL(), url)
	}
	if quiet := start(t, devserver.Options{}); quiet.URL() != "" {
		t.Errorf("listens at %s without being asked to", quiet.URL())
	}
}

// A server that other machines can reach checks who connects, unless its options say that it
// is open.
func TestOtherMachinesNeedIdentities(t *testing.T) {
	conf := func(text string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	anybody := conf("accounts { A { users: [{user: a, password: b}] } }\nno_auth_user: a")
	for name, o := range map[string]devserver.Options{
		"every address": {Listen: "0.0.0.0:0"}, "no host": {Listen: ":0"}, "every IPv6 address": {Listen: "[::]:0"}, "without users": {Listen: "0.0.0.0:0", Config: conf("max_payload: 1MB")},
		"accounts alone": {Listen: "0.0.0.0:0", Config: conf("accounts { A {} }")}, "a user for everybody": {Listen: "0.0.0.0:0", Config: anybody},
	} {
		srv, err := devserver.Start(o)
		if err == nil {
			srv.Shutdown()
			t.Errorf("%s: it starts", name)
			continue
		}
		for _, want := range []string{"identities new", "--open", "127.0.0.1"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %s", name, err, want)
			}
		}
	}
	for name, o := range map[string]devserver.Options{
		"open": {Listen: "0.0.0.0:0", Open: true}, "IPv6 loopback": {Listen: "[::1]:0"}, "a name of this machine": {Listen: "localhost:0"}, "users": {Listen: "0.0.0.0:0", Config: conf("authorization { user: a, password: b }")},
		"a token": {Listen: "0.0.0.0:0", Config: conf("authorization { token: t }")}, "nobody listens": {},
	} {
		if name == "IPv6 loopback" {
			l, err := net.Listen("tcp", "[::1]:0")
			if err != nil {
				continue // this machine has none
			}
			l.Close()
		}
		srv, err := devserver.Start(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		srv.Shutdown()
	}
}

func TestMaxPayload(t *testing.T) {
	if got := dial(t, start(t, devserver.Options{})).MaxPayload(); got != 1<<20 {
		t.Errorf("default max payload is %d, want 1 MiB", got)
	}
	if got := dial(t, start(t, devserver.Options{MaxPayload: 4096})).MaxPayload(); got != 4096 {
		t.Errorf("max payload is %d, want 4096", got)
	}
}

// The log lines of nats-server go to our log, its notices at level debug.
func TestTheLogIsOurs(t *testing.T) {
	var out strings.Builder
	srv := start(t, devserver.Options{SyncInterval: time.Minute, Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	srv.Shutdown()
	if !strings.Contains(out.String(), "Server is ready") || strings.Contains(out.String(), "level=INFO") {
		t.Errorf("the log reads:\n%s", out.String())
	}
	if srv.SyncAlways() {
		t.Error("says that it syncs always, and was asked not to")
	}
}
