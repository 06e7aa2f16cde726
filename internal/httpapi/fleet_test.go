package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// testFleet is a NATS server, a coordinator, a worker and an HTTP server. The worker serves
// look (a read), note (a write), gate (a read that ends when the test opens the gate), and the
// tools of [meeting].
type testFleet struct {
	t       testing.TB
	nats    *devserver.Server
	conn    *bus.Conn // of the HTTP server
	log     *slog.Logger
	noted   atomic.Int32  // number of runs of note
	entered chan struct{} // gets a value when a run of gate begins
	gate    chan struct{} // closed when the gate is open
	meeting meeting

	opened sync.Map // the open streams

	alice     approval.Key // who decides about refund
	approvers approval.Approvers

	signer *principal.Signer
	access access.Control // access control of HTTP servers that start later
	listen func() (net.Listener, error)
	client *http.Client // makes a connection for each request, so that a restarted server is reached at once
	addr   string       // address of the HTTP servers
	http   *part
	server *httpapi.Server // the newest server
	coord  *part
}

// pipes is a network in memory, for HTTP servers in a bubble.
type pipes struct{ arriving chan net.Conn }

func newPipes() *pipes { return &pipes{make(chan net.Conn)} }

func (p *pipes) listen() (net.Listener, error) { return &pipeListener{p, make(chan struct{})}, nil }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.arriving <- there:
		return here, nil
	case <-time.After(time.Second): // no server accepts connections
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

type pipeListener struct {
	*pipes
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.arriving:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "pipe"} }

// part is a daemon that runs.
type part struct{ stop func() }

// newFleet starts a fleet with an HTTP server on the loopback interface. All parts stop at the
// end of the test. The test runs in parallel with others, because tests of a fleet mostly
// wait.
func newFleet(t testing.TB) *testFleet {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	return newFleetAlone(t)
}

// newFleetAlone is newFleet for a test that measures its process, so it does not run in
// parallel.
func newFleetAlone(t testing.TB) *testFleet {
	t.Helper()
	addr := natstest.FreeAddr(t)
	listen := func() (net.Listener, error) { return net.Listen("tcp", addr) }
	return startFleet(t, natstest.Server(t, natstest.Fast), addr, listen, new(net.Dialer).DialContext)
}

// inBubble runs a test of a fleet in simulated time. Connections to its HTTP server are pipes
// in memory.
func inBubble(t *testing.T, test func(*testing.T, *testFleet)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		net := newPipes()
		test(t, startFleet(t, srv, "localhost", net.listen, net.dial))
	}, natstest.Fast)
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func startFleet(t testing.TB, nats *devserver.Server, addr string, listen func() (net.Listener, error), dial dialFunc) *testFleet {
	t.Helper()
	f := &testFleet{
		t: t, nats: nats, addr: addr, listen: listen, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}},
		entered: make(chan struct{}, 1000), gate: make(chan struct{}), access: access.Here{As: access.Principal{Tenant: messages.OneTenant}},
		log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	}
	var err error
	f.alice, err = approval.NewKey()
	must(t, err)
	f.approvers, err = approval.NewApprovers([]messages.Approver{{Name: "alice", Key: f.alice.Public()}})
	must(t, err)
	f.signer, err = principal.NewSigner()
	must(t, err)
	f.conn = f.connect()
	f.startWorker()
	f.startCoordinator()
	f.startHTTP()
	t.Cleanup(func() {
		f.opened.Range(func(e, _ any) bool {
			e.(*events).close()
			return true
		})
	})
	return f
}

func (f *testFleet) connect() *bus.Conn {
	f.t.Helper()
	conn, err := bus.Connect(f.t.Context(), bus.Options{InProcess: f.nats, Name: "test", Logger: f.log})
	must(f.t, err)
	f.t.Cleanup(conn.Close)
	return conn
}

func (f *testFleet) startWorker() {
	f.t.Helper()
	var tools tool.Registry
	add := func(name string, kind messages.Kind, run tool.Func) {
		must(f.t, tools.Add(schemas.Tool{Name: name, Kind: kind, TimeoutMS: 600_000, InputSchema: []byte(`{"type":"object"}`)}, run))
	}
	add("look", messages.KindRead, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	add("who", messages.KindRead, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Text(fmt.Sprint(c.User, c.Labels)), nil
	})
	add("note", messages.KindWrite, func(context.Context, tool.Call) (tool.Output, error) {
		f.noted.Add(1)
		return tool.Text("noted"), nil
	})
	add("gate", messages.KindRead, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		f.entered <- struct{}{}
		select {
		case <-f.gate:
			return tool.Text("open"), nil
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		}
	})
	f.meeting.serve(add)
	add("secret", messages.KindRead, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("secret"), nil })
	add("refund", messages.KindWrite, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("refunded"), nil })
	policy, err := schemas.ParsePolicy("policy.yaml", []byte("ask: [refund]\ndeny: [secret]\n"))
	must(f.t, err)
	rules, err := permission.New(permission.Config{
		Default: permission.Effect(policy.Default), Version: policy.Version,
		Layers: []permission.Layer{{Source: "policy.yaml", Rules: policy.Rules}},
	})
	must(f.t, err)
	w, err := worker.New(f.connect(), &tools, worker.Config{Logger: f.log, Slots: 300, Rules: rules, Approvals: f.approvers})
	must(f.t, err)
	f.start(w.Run)
	f.until("the worker is ready", w.Ready)
}

func (f *testFleet) startCoordinator() {
	f.t.Helper()
	c, err := coordinator.New(f.connect(), coordinator.Config{Logger: f.log, Approvers: f.approvers, HTTPKeys: []string{f.signer.Key()}})
	must(f.t, err)
	f.coord = f.start(c.Run)
	f.until("the coordinator is ready", c.Ready)
}

// startHTTP starts an HTTP server.
func (f *testFleet) startHTTP() {
	f.t.Helper()
	s, err := httpapi.New(f.clientOf, httpapi.Config{Access: f.access, Signer: f.signer, Logger: f.log})
	must(f.t, err)
	l, err := f.listen()
	must(f.t, err)
	f.server = s
	f.http = f.start(func(ctx context.Context) error { return s.Serve(ctx, l) })
}

func (f *testFleet) clientOf(tenant string) *client.Client {
	c, err := client.Connect(context.Background(), fleet.Options{}, clientconn.Over(f.conn), client.Tenant(tenant))
	if err != nil {
		panic(err) // cannot happen over a connection
	}
	return c
}

// start runs a daemon until stop is called or the test ends.
func (f *testFleet) start(run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	p := &part{sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("a daemon ended with: %v", err)
		}
	})}
	f.t.Cleanup(p.stop)
	return p
}

func (f *testFleet) open() { close(f.gate) }

// waitEntered waits until a run of gate has begun.
func (f *testFleet) waitEntered() {
	f.t.Helper()
	select {
	case <-f.entered:
	case <-time.After(patience):
		f.t.Fatal("no call came to the gate")
	}
}

// patience bounds every wait for something that should happen soon.
const patience = 2 * time.Minute

// until polls a condition. It fails the test if the condition is not true within patience.
func (f *testFleet) until(what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			f.t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// answer is the answer of an HTTP server.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// code returns the code of an answer that is a problem, and "" for any other answer.
func (a answer) code() string {
	var p struct {
		Error struct{ Code, Message string }
	}
	_ = json.Unmarshal(a.Body, &p)
	return p.Error.Code
}

// do sends a request and checks that the answer fits the OpenAPI document. headers holds a
// name, its value, and so on.
func (f *testFleet) do(method, path, body string, headers ...string) answer {
	f.t.Helper()
	a, err := f.try(f.t.Context(), method, path, body, headers...)
	must(f.t, err)
	if err := description().check(method, path, a); err != nil {
		f.t.Error(err)
	}
	return a
}

func (f *testFleet) try(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return f.ask(ctx, method, path, body, headers...)
}

func (f *testFleet) ask(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	res, err := f.send(ctx, method, path, strings.NewReader(body), headers...)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, raw}, err
}

func (f *testFleet) send(ctx context.Context, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+f.addr+path, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	return f.client.Do(r)
}

// retry sends a request again until a server answers it, as a client does whose server
// restarts.
func (f *testFleet) retry(method, path, body string, headers ...string) answer {
	for end := time.Now().Add(patience); ; {
		a, err := f.try(f.t.Context(), method, path, body, headers...)
		if err == nil && a.Status != http.StatusServiceUnavailable && a.Status != http.StatusTooManyRequests {
			return a
		}
		if time.Now().After(end) {
			f.t.Errorf("%s %s: asked in vain: %d %s %v", method, path, a.Status, a.Body, err)
			return a
		}
		<-time.After(5 * time.Millisecond)
	}
}

// message returns the body of a batch with one call for each tool.
func message(tools ...string) string {
	calls := make([]string, len(tools))
	for i, name := range tools {
		calls[i] = `{"id":"c` + string(rune('0'+i)) + `","name":"` + name + `","input":{"n":` + string(rune('0'+i)) + `}}`
	}
	return `{"provider":"canonical","message":{"calls":[` + strings.Join(calls, ",") + `]}}`
}

func decode[T any](t testing.TB, body []byte) (v T) {
	t.Helper()
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
