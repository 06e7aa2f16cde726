package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// A call gets no process in its time: the error says that it was not run, and its outcome is
// not unknown.
func TestEveryProcessIsBusy(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	held, err := s.pool.acquire(t.Context(), "a", true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = served(t, s, "crash").Runner.Run(ctx, newCall())
	var own *messages.Error
	if ctx.Err() == nil && (!errors.As(err, &own) || own.Code != codeServerBusy || !own.Retryable) {
		t.Errorf("got %v", err)
	}
	s.pool.release(held)
}

func TestTheServerGetsTheTrace(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}, "Tracestate": {"vendor=1"}})
	out, err := served(t, open(t, testConfig(t, t.TempDir())), "trace").Runner.Run(ctx, newCall())
	if err != nil || string(out.Value) != `"`+traceparent+` vendor=1"` {
		t.Errorf("got %s, %v", out.Value, err)
	}
}

// The server's list of tools has changed and one call reads it: another call waits for the new
// list, and does not use the old one.
func TestCallsWaitForAChangedList(t *testing.T) {
	entered, gate := make(chan struct{}, 2), make(chan struct{})
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	about := &mcp.Tool{Name: "look", InputSchema: json.RawMessage(`{"type":"object"}`)}
	server.AddTool(about, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, nil })
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if method == "tools/list" {
				entered <- struct{}{}
				<-gate
			}
			return next(ctx, method, r)
		}
	})
	here, there := mcp.NewInMemoryTransports()
	if _, err := server.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s := &session{client: client, calls: newCalls(), listing: make(chan struct{}, 1)}
	s.digests.Store(&map[string]string{"look": "old"})
	s.stale.Store(true)
	digests := make(chan string, 2)
	ask := func() {
		digest, err := s.digest(t.Context(), "look")
		if err != nil {
			t.Error(err)
		}
		digests <- digest
	}
	go ask()
	<-entered
	go ask()
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if digest, err := s.digest(short, "look"); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that has ended: got %s, %v", digest, err)
	}
	close(gate)
	if one, other := <-digests, <-digests; one == "old" || one != other {
		t.Errorf("got %s and %s", one, other)
	}
}

func TestResults(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	for name, want := range map[string]string{
		"noise":          `"ok"`,
		"structured":     `{"n":1}`,
		"digits":         `{"n":12345678901234567890,"f":1.10}`,
		"ask":            `"decline"`,
		"coded":          "no_customer false " + tooltest.Failure,
		"protocol_error": "tool_error false not [2Jthat",
	} {
		if got := run(t, served(t, s, name).Runner, newCall()); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	out, err := served(t, s, "blocks").Runner.Run(t.Context(), newCall())
	want := []messages.Block{
		{Type: "text", Text: "hé"},
		{Type: "image", Data: "cG5n", MimeType: "image/png"},
		{Type: "audio", Data: "d2F2", MimeType: "audio/wav"},
		{Type: "resource_link", URI: "file:///a", Name: "a"},
		{Type: "resource", Resource: &messages.Resource{URI: "file:///b", MimeType: "text/plain", Text: "b"}},
		{Type: "text", Text: `{"n":1}`},
	}
	if diff := cmp.Diff(want, out.Content); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestLargeOutput(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := run(t, served(t, s, "large").Runner, newCall()); len(got) != tooltest.FloodSize+len(tooltest.FloodTail)+2 {
		t.Errorf("got %d bytes: %.100s", len(got), got)
	}
}

// A server sends a message without an end: its process is killed, and the worker goes on.
func TestEndlessOutput(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := run(t, served(t, s, "endless").Runner, newCall()); !strings.HasPrefix(got, "outcome_unknown true ") {
		t.Errorf("got %.300s", got)
	}
	pid(t, s)
}

// The definition of a tool has changed since an operator accepted it: the tool does not run.
func TestAChangedDefinition(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := run(t, served(t, s, "change").Runner, newCall()); got != `"ok"` {
		t.Fatal(got)
	}
	// The notice of the change comes a moment after the answer.
	for got := ""; !strings.HasPrefix(got, "tool_changed false The server test has changed the definition of describe"); {
		if got = run(t, served(t, s, "describe").Runner, newCall()); got == `"changed"` {
			continue
		}
		if t.Context().Err() != nil {
			t.Fatal(got)
		}
	}
	if got := run(t, served(t, s, "echo").Runner, newCall()); got != `{}` {
		t.Errorf("another tool: %s", got)
	}
}

var _ tool.Runner = (*runner)(nil)
