// Package e2e tests whole fleets: a NATS server with coordinators, workers and agents in one
// process. Every call must be answered once and in order, and nothing may be lost. The package
// also checks the rules about imports.
package e2e

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Tests in real time call t.Parallel. They mostly wait, so eight of them run at once even on
// two cores.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == effectsProgram {
		serveEffects(os.Args[2])
		return
	}
	_ = flag.Set("test.parallel", "8") // before the flags are read, so that -parallel overrides it
	m.Run()
}

// fleet is a NATS server with coordinators and workers in this process. close stops all of
// them, and the stop of a part stops that part earlier. A test in a bubble calls close before
// the bubble's function returns.
type fleet struct {
	t       testing.TB
	srv     *devserver.Server
	conn    *bus.Conn // the agent's connection
	client  *client.Client
	tools   *tool.Registry
	running sync.WaitGroup
	stops   []func()
	log     *slog.Logger
	// as gives a connection its credentials, by the connection's name. It is nil if the server
	// asks for none.
	as func(*bus.Options)
}

// part is one daemon of a fleet.
type part struct {
	stop func() // tells the daemon to stop and waits until it has
}

func newFleet(t testing.TB, srv *devserver.Server) *fleet {
	t.Helper()
	return newFleetAs(t, srv, nil)
}

func newFleetAs(t testing.TB, srv *devserver.Server, as func(*bus.Options)) *fleet {
	t.Helper()
	f := &fleet{t: t, srv: srv, as: as, tools: &tool.Registry{}, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))}
	f.conn = f.connect("agent")
	f.client = fleettest.AgentOver(f.conn, "")
	return f
}

func (f *fleet) connect(name string) *bus.Conn {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	options := bus.Options{InProcess: f.srv, Name: name, Logger: f.log}
	if f.as != nil {
		f.as(&options)
	}
	conn, err := bus.Connect(ctx, options)
	if err != nil {
		f.t.Fatalf("connect %s: %v", name, err)
	}
	return conn
}

// start runs a daemon until the part is stopped, and closes conn after that.
func (f *fleet) start(conn *bus.Conn, run func(context.Context) error) part {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	f.running.Go(func() {
		defer close(ended)
		if err := run(ctx); err != nil {
			f.t.Errorf("a daemon ended with: %v", err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		<-ended
		conn.Close()
	})
	f.stops = append(f.stops, stop)
	return part{stop}
}

func (f *fleet) coordinator(cfg coordinator.Config) part {
	f.t.Helper()
	conn := f.connect("coordinator")
	cfg.Logger = f.log
	c, err := coordinator.New(conn, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	p := f.start(conn, c.Run)
	f.until("the coordinator is ready", c.Ready)
	return p
}

func (f *fleet) worker(cfg worker.Config) part {
	f.t.Helper()
	return f.workerWith(f.tools, cfg)
}

func (f *fleet) workerWith(tools *tool.Registry, cfg worker.Config) part {
	f.t.Helper()
	conn := f.connect("worker")
	cfg.Logger = f.log
	w, err := worker.New(conn, tools, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.start(conn, w.Run)
}

// tool registers a tool for every worker that starts later.
func (f *fleet) tool(promise schemas.Tool, run tool.Func) {
	f.t.Helper()
	if err := f.tools.Add(promise, run); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) close() {
	for _, stop := range f.stops {
		stop()
	}
	f.running.Wait()
	f.conn.Close()
}

// until polls a condition every 2 ms and fails the test if it is not true within 30 s.
func (f *fleet) until(what string, is func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			f.t.Fatalf("waited in vain until %s", what)
		}
		tick := time.NewTimer(2 * time.Millisecond)
		<-tick.C
	}
}

// run submits a batch and returns its reply. It fails the test after 5 minutes.
func (f *fleet) run(b messages.Batch) messages.Reply {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	reply, err := f.client.Run(ctx, b)
	if err != nil {
		f.t.Fatalf("batch %s: %v", b.ID, err)
	}
	return reply
}
