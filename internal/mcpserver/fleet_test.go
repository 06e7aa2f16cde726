package mcpserver_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// testFleet is a NATS server, a coordinator and a worker, whose tools record their runs.
type testFleet struct {
	t       testing.TB
	nats    *devserver.Server
	log     *slog.Logger
	client  *client.Client
	entered chan struct{} // gets a value when a run of gate, hold or steps begins
	gate    chan struct{} // closed when gate and hold may end
	steps   chan struct{} // each value lets one run of steps end

	alice     approval.Key
	approvers approval.Approvers

	mu   sync.Mutex
	runs []string // guarded by mu
}

// inFleet runs a test with a fleet, in simulated time.
func inFleet(t *testing.T, test func(*testing.T, *testFleet)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) { test(t, newFleet(t, srv)) }, natstest.Fast)
}

func newFleet(t *testing.T, nats *devserver.Server) *testFleet {
	t.Helper()
	f := &testFleet{
		t: t, nats: nats, entered: make(chan struct{}, 1000), gate: make(chan struct{}), steps: make(chan struct{}),
		log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	}
	var err error
	f.alice, err = approval.NewKey()
	must(t, err)
	f.approvers, err = approval.NewApprovers([]messages.Approver{{Name: "alice", Key: f.alice.Public()}})
	must(t, err)
	f.client, err = client.Connect(t.Context(), fleet.Options{}, clientconn.Over(f.connect()))
	must(t, err)
	f.startWorker()
	c, err := coordinator.New(f.connect(), coordinator.Config{Logger: f.log, Approvers: f.approvers})
	must(t, err)
	f.start(c.Run)
	f.until("the coordinator is ready", c.Ready)
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
	add := func(t schemas.Tool, run func(context.Context, tool.Call) (tool.Output, error)) {
		t.InputSchema = []byte(`{"type":"object"}`)
		must(f.t, tools.Add(t, tool.Func(func(ctx context.Context, c tool.Call) (tool.Output, error) {
			f.ran(t.Name, c)
			return run(ctx, c)
		})))
	}
	echo := func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Output{Value: c.Input}, nil }
	wait := func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		f.entered <- struct{}{}
		select {
		case <-f.gate:
			return tool.Text("open"), nil
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		}
	}
	add(schemas.Tool{Name: "look", Kind: messages.KindRead, Description: "Looks."}, echo)
	add(schemas.Tool{Name: "note", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, echo)
	add(schemas.Tool{Name: "gate", Kind: messages.KindRead, TimeoutMS: 60_000}, wait)
	add(schemas.Tool{Name: "hold", Kind: messages.KindWrite, TimeoutMS: 60_000}, wait)
	add(schemas.Tool{Name: "steps", Kind: messages.KindRead, TimeoutMS: 60_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		c.Progress(messages.Progress{Fraction: 0.5, Text: "half"})
		f.entered <- struct{}{}
		select {
		case <-f.steps:
			return tool.Text("stepped"), nil
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		}
	})
	add(schemas.Tool{Name: "refund", Kind: messages.KindWrite, Risk: messages.TierHigh}, echo)
	add(schemas.Tool{Name: "fail", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) {
		return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: "The shop is closed."}
	})
	policy, err := schemas.ParsePolicy("policy.yaml", []byte("ask: [refund]\n"))
	must(f.t, err)
	rules, err := permission.New(permission.Config{
		Default: permission.Effect(policy.Default), Version: policy.Version,
		Layers: []permission.Layer{{Source: "policy.yaml", Rules: policy.Rules}},
	})
	must(f.t, err)
	w, err := worker.New(f.connect(), &tools, worker.Config{Logger: f.log, Slots: 50, Rules: rules, Approvals: f.approvers})
	must(f.t, err)
	f.start(w.Run)
	f.until("the worker is ready", w.Ready)
}

func (f *testFleet) ran(name string, c tool.Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs = append(f.runs, name+string(c.Input))
}

// history returns the runs of tools so far.
func (f *testFleet) history() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.runs...)
}

// start runs a daemon until stop is called or the test ends.
func (f *testFleet) start(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("a daemon ended with: %v", err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *testFleet) waitEntered(n int) {
	f.t.Helper()
	for range n {
		select {
		case <-f.entered:
		case <-time.After(30 * time.Second):
			f.t.Fatal("too few calls run")
		}
	}
}

func (f *testFleet) until(what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(end) {
			f.t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// untilCall waits until the only call of a batch has ended, with this status.
func (f *testFleet) untilCall(s messages.SessionID, b messages.BatchID, want messages.Status) {
	f.t.Helper()
	var reply messages.Reply
	f.until("the call has its result", func() (ended bool) {
		var err error
		reply, err = f.client.Get(f.t.Context(), s, b)
		return err == nil
	})
	if got := reply.Results[0].Status; got != want {
		f.t.Errorf("%s/%s: the call is %s, want %s", s, b, got, want)
	}
}

// otherBatch returns the only batch of a session other than one.
func (f *testFleet) otherBatch(s messages.SessionID, one messages.BatchID) (other messages.BatchID) {
	f.t.Helper()
	list, err := f.client.Batches(f.t.Context(), s, client.ListOptions{Since: time.Now().Add(-time.Hour)})
	must(f.t, err)
	for _, b := range list.Batches {
		if b.Batch != one {
			other = b.Batch
		}
	}
	return other
}

// dial connects a client of the SDK to a server, over a connection in memory. leave closes the
// client and waits for the end of the server.
func (f *testFleet) dial(cfg mcpserver.Config, o *mcp.ClientOptions, session messages.SessionID) (c *mcp.ClientSession, leave func()) {
	f.t.Helper()
	cfg.Logger = f.log
	here, there := mcp.NewInMemoryTransports()
	s := mcpserver.New(cfg)
	stop := f.start(func(ctx context.Context) error {
		return s.Serve(ctx, there, mcpserver.Caller{Client: f.client, Session: session})
	})
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(f.t.Context(), here, nil)
	must(f.t, err)
	return c, func() { _ = c.Close(); stop() }
}

// call returns the parameters of a call. meta holds a name, its value, and so on.
func call(name, input string, meta ...any) *mcp.CallToolParams {
	p := &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(input), Meta: mcp.Meta{}}
	for i := 0; i < len(meta); i += 2 {
		p.Meta[meta[i].(string)] = meta[i+1]
	}
	return p
}

// text returns the text of a result.
func text(r *mcp.CallToolResult) (all string) {
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			all += c.Text
		}
	}
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
