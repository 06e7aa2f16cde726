package journal_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// users is the server's list of users. The user blind may write to the journal, and its reads
// get no answer. The user strict gets answers only from a stream's leader, as if all other
// replicas were behind.
const users = `
accounts {
  A {
    jetstream: enabled
    users: [
      {user: all, password: p}
      {user: blind, password: p, permissions: {publish: {deny: ["$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.>"]}}}
      {user: strict, password: p, permissions: {publish: {deny: ["$JS.API.DIRECT.GET.>", "$JS.API.STREAM.INFO.>"]}}}
    ]
  }
}
`

func withUsers(t *testing.T) natstest.Option {
	file := filepath.Join(t.TempDir(), "users.conf")
	if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *devserver.Options) { o.Config = file }
}

func connect(t *testing.T, srv *devserver.Server, user string) *bus.Conn {
	t.Helper()
	conn, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL(), InProcess: srv, User: user, Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// fixture is a log and a journal. There is no coordinator.
type fixture struct {
	t       *testing.T
	srv     *devserver.Server
	conn    *bus.Conn
	names   wire.Names
	journal *journal.Journal
}

func withFixture(t *testing.T, f func(x *fixture), options ...natstest.Option) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn := connect(t, srv, "all")
		x := &fixture{t, srv, conn, conn.Names(), journal.New(conn)}
		x.must(provision.Ensure(x.t.Context(), conn, provision.Config{}))
		f(x)
	}, append(options, withUsers(t))...)
}

func (x *fixture) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

// same fails the test if two values differ.
func (x *fixture) same(what string, want, got any) {
	x.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		x.t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

// as returns the journal of another user.
func (x *fixture) as(user string) *journal.Journal {
	x.t.Helper()
	return journal.New(connect(x.t, x.srv, user))
}

// slow is a connection whose first write to a subject is held back until another writer has
// written there.
type slow struct {
	net.Conn
	srv     *devserver.Server
	subject string
	faster  func() // nil once it has run
}

func (s *slow) InProcessConn() (conn net.Conn, err error) {
	s.Conn, err = s.srv.InProcessConn()
	return s, err
}

func (s *slow) Write(b []byte) (int, error) {
	if faster := s.faster; faster != nil && bytes.Contains(b, []byte("PUB "+s.subject+" ")) {
		s.faster = nil
		faster()
	}
	return s.Conn.Write(b)
}

// slower returns a journal whose first write to subject comes after the one of another writer.
func (x *fixture) slower(subject string, faster func()) *journal.Journal {
	x.t.Helper()
	options := bus.Options{URL: x.srv.URL(), InProcess: &slow{srv: x.srv, subject: subject, faster: faster}, User: "all", Password: "p"}
	conn, err := bus.Connect(x.t.Context(), options)
	x.must(err)
	x.t.Cleanup(conn.Close)
	return journal.New(conn)
}

// append stores a message directly, not through the journal.
func (x *fixture) append(subject, body string) (seq uint64) {
	x.t.Helper()
	seq, err := x.conn.Append(x.t.Context(), subject, nil, []byte(body))
	x.must(err)
	return seq
}

// stored returns every message of a subject.
func (x *fixture) stored(stream, subject string) []bus.Msg {
	x.t.Helper()
	msgs, err := x.conn.All(x.t.Context(), x.names.Stream(stream), subject)
	x.must(err)
	return msgs
}

// silence makes a stream store messages without acknowledging them.
func (x *fixture) silence(stream string) {
	x.t.Helper()
	name := x.names.Stream(stream)
	var answer struct {
		Config map[string]any `json:"config"`
		Error  any            `json:"error"`
	}
	request := func(verb string, body []byte) {
		msg, err := x.conn.Request(x.t.Context(), "$JS.API.STREAM."+verb+"."+name, nil, body)
		x.must(err)
		x.must(json.Unmarshal(msg.Data, &answer))
		if answer.Error != nil {
			x.t.Fatalf("%s of stream %s: %v", verb, name, answer.Error)
		}
	}
	request("INFO", nil)
	answer.Config["no_ack"] = true
	request("UPDATE", rawjson.MustMarshal(answer.Config))
}
