package sdks

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// testFleet is a NATS server, a coordinator, a worker and an HTTP server.
type testFleet struct {
	t      testing.TB
	nats   *devserver.Server
	log    *slog.Logger
	client *client.Client
	tools  tool.Registry
	url    string // of the HTTP server
	policy worker.Config
	people coordinator.Config
}

// newFleet starts a fleet. add adds the tools, and may set policy and people.
func newFleet(t *testing.T, add func(*testFleet)) *testFleet {
	t.Helper()
	f := &testFleet{t: t, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))}
	f.nats = natstest.Server(t, natstest.Fast, natstest.Listening)
	conn := f.connect()
	clientOf := func(tenant string) *client.Client {
		c, err := client.Connect(context.Background(), fleet.Options{}, clientconn.Over(conn), client.Tenant(tenant))
		must(t, err)
		return c
	}
	f.client = clientOf(messages.OneTenant)
	add(f)
	f.policy.Logger, f.policy.Slots, f.people.Logger = f.log, 100, f.log
	w, err := worker.New(f.connect(), &f.tools, f.policy)
	must(t, err)
	f.start(w.Run)
	until(t, "the worker is ready", w.Ready)
	c, err := coordinator.New(f.connect(), f.people)
	must(t, err)
	f.start(c.Run)
	until(t, "the coordinator is ready", c.Ready)
	until(t, "the tools are announced", func() bool {
		_, err := f.client.Tools(t.Context(), messages.GetTools{Provider: messages.Canonical})
		return err == nil
	})
	api, err := httpapi.New(clientOf, httpapi.Config{Access: access.Here{As: access.Principal{Tenant: messages.OneTenant}}, Logger: f.log})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.url = "http://" + l.Addr().String()
	f.start(func(ctx context.Context) error { return api.Serve(ctx, l) })
	return f
}

func (f *testFleet) connect() *bus.Conn {
	f.t.Helper()
	conn, err := bus.Connect(f.t.Context(), bus.Options{InProcess: f.nats, Name: "test", Logger: f.log})
	must(f.t, err)
	f.t.Cleanup(conn.Close)
	return conn
}

// add adds a tool that is a function. properties are the properties of its input schema.
func (f *testFleet) add(t schemas.Tool, properties string, run tool.Func) {
	f.t.Helper()
	t.InputSchema = fmt.Appendf(nil, `{"type":"object","properties":{%s},"additionalProperties":false}`, properties)
	t.TimeoutMS = 120_000
	must(f.t, f.tools.Add(t, run))
}

// start runs a daemon until the test ends.
func (f *testFleet) start(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("a daemon ended with: %v", err)
		}
	})
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// conversation holds what the tools share in one session.
type conversation struct {
	entered chan messages.BatchID // gets a value for each run of hold or idle
	steps   chan struct{}         // closed: steps may end
	gate    chan struct{}         // closed: hold and idle may end
	full    chan struct{}         // closed: three runs of meet have begun

	mu    sync.Mutex
	notes int      // guarded by mu
	runs  []string // starts and ends of runs; guarded by mu
}

func (c *conversation) log(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs = append(c.runs, what)
}

// history returns the starts and ends of the runs so far.
func (c *conversation) history() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.runs...)
}

// conversations holds the conversation of each session.
type conversations struct {
	mu  sync.Mutex
	all map[messages.SessionID]*conversation // guarded by mu
}

func (s *conversations) conversationOf(id messages.SessionID) *conversation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[messages.SessionID]*conversation{}
	}
	if s.all[id] == nil {
		s.all[id] = &conversation{
			entered: make(chan messages.BatchID, 10), steps: make(chan struct{}), gate: make(chan struct{}), full: make(chan struct{}),
		}
	}
	return s.all[id]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
