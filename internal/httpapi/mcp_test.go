package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/messages"
)

// connectMCP connects the SDK's client to the server. It sends the header h with each request.
func (f *testFleet) connectMCP(path string, h http.Header) (*mcp.ClientSession, error) {
	with := &http.Client{Transport: adding{f.client.Transport, h}}
	return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(f.t.Context(),
		&mcp.StreamableClientTransport{Endpoint: "http://" + f.addr + path, HTTPClient: with, MaxRetries: -1}, nil)
}

// adding is a transport that adds headers to requests.
type adding struct {
	next http.RoundTripper
	http.Header
}

func (a adding) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range a.Header {
		r.Header[name] = values
	}
	return a.next.RoundTrip(r)
}

// The session of a call is taken from the path. If it is not there, it is taken from the
// header, then from _meta, and else it is the server's session.
func TestMCPSessions(t *testing.T) {
	f := newFleet(t)
	for _, row := range []struct {
		path   string
		header http.Header
		meta   mcp.Meta
		want   messages.SessionID
	}{
		{"/mcp/in%2Fpath", http.Header{"Toolfleet-Session": {"header"}}, mcp.Meta{"toolfleet/id": "1", "toolfleet/session": "meta"}, "in/path"},
		{"/mcp", http.Header{"Toolfleet-Session": {"header"}}, mcp.Meta{"claudecode/toolUseId": "1", "toolfleet/session": "meta"}, "header"},
		{"/mcp", http.Header{"Idempotency-Key": {"1"}}, mcp.Meta{"toolfleet/session": "meta"}, "meta"},
		{"/mcp", http.Header{"Idempotency-Key": {"2"}}, mcp.Meta{"toolfleet/id": "1"}, "mcp"},
	} {
		c, err := f.connectMCP(row.path, row.header)
		must(t, err)
		if v := c.InitializeResult().ProtocolVersion; v != "2026-07-28" {
			t.Errorf("the protocol is %s", v)
		}
		r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "look", Arguments: json.RawMessage(`{"n":1}`), Meta: row.meta})
		must(t, err)
		if r.IsError || r.Content[0].(*mcp.TextContent).Text != `{"n":1}` {
			t.Errorf("%s: got %+v", row.path, r)
		}
		if _, err := f.clientOf(messages.OneTenant).Get(t.Context(), row.want, "1"); err != nil {
			t.Errorf("%s: no batch in session %s: %v", row.path, row.want, err)
		}
		must(t, c.Close())
	}
}

// The tokens of the HTTP API are needed for MCP too. Each user has a session of their own.
func TestMCPAsksForTokens(t *testing.T) {
	f := newFleet(t)
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	token, line := access.NewToken(access.Principal{Tenant: messages.OneTenant, User: "alice"})
	must(t, os.WriteFile(file, []byte("tokens:\n"+line+"\n"), 0o600))
	tokens, err := access.ReadTokens(file, messages.OneTenant, f.log)
	must(t, err)
	f.http.stop()
	f.access = access.Bearer{Tokens: tokens}
	f.startHTTP()
	if a := f.do("POST", "/mcp", `{}`); a.Status != http.StatusUnauthorized || a.code() != "unauthorized" {
		t.Errorf("without a token: %d %s", a.Status, a.Body)
	}
	if _, err := f.connectMCP("/mcp", nil); err == nil {
		t.Error("the client of the SDK came in without a token")
	}
	c, err := f.connectMCP("/mcp", http.Header{"Authorization": {"Bearer " + token}})
	must(t, err)
	defer c.Close()
	_, err = c.CallTool(t.Context(), &mcp.CallToolParams{Name: "look", Arguments: json.RawMessage(`{}`), Meta: mcp.Meta{"toolfleet/id": "1"}})
	must(t, err)
	if _, err := f.clientOf(messages.OneTenant).Get(t.Context(), "mcp/alice", "1"); err != nil {
		t.Errorf("alice's session: %v", err)
	}
}

// rpc sends one message of protocol 2025-11-25, like a client that does not use the SDK.
func (f *testFleet) rpc(ctx context.Context, body string, headers ...string) (answer, error) {
	headers = append(headers, "Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2025-11-25")
	return f.try(ctx, "POST", "/mcp/s", body, headers...)
}

const gateCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gate","arguments":{}}}`

// untilResult waits until a call has ended, and returns the call's status.
func (f *testFleet) untilResult(s messages.SessionID, b messages.BatchID) (status messages.Status) {
	f.t.Helper()
	f.until("the call has ended", func() bool {
		reply, err := f.clientOf(messages.OneTenant).Get(f.t.Context(), s, b)
		if err == nil {
			status = reply.Results[0].Status
		}
		return err == nil
	})
	return status
}

// A client of protocol 2025-11-25 cancels its call with another request: the call is aborted.
// Another client that cancels the same request number cancels nothing.
func TestMCPCancel(t *testing.T) {
	f := newFleet(t)
	const begin = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	var clients []string
	for range 2 {
		a, err := f.rpc(t.Context(), begin)
		must(t, err)
		if id := a.Header.Get("Mcp-Session-Id"); id != "" && !strings.Contains(strings.Join(clients, " "), id) {
			clients = append(clients, id)
		}
	}
	if len(clients) != 2 {
		t.Fatalf("the clients are %q", clients)
	}
	var calls sync.WaitGroup
	for i, id := range clients {
		calls.Go(func() {
			a, err := f.rpc(t.Context(), gateCall, "Mcp-Session-Id", id, "Idempotency-Key", []string{"first", "second"}[i])
			if want := []string{`"isError":true`, `"text":"open"`}[i]; err != nil || !strings.Contains(string(a.Body), want) {
				t.Errorf("%v: %d %s; want %s", err, a.Status, a.Body, want)
			}
		})
		f.waitEntered()
	}
	a, err := f.rpc(t.Context(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, "Mcp-Session-Id", clients[0])
	must(t, err)
	if a.Status != http.StatusAccepted {
		t.Errorf("cancelling: %d %s", a.Status, a.Body)
	}
	if status := f.untilResult("s", "first"); status != messages.StatusAborted {
		t.Errorf("the cancelled call is %s", status)
	}
	f.open()
	calls.Wait()
}

// The stream of a call is closed: the call is aborted if it has no id. A call with an id goes
// on, even if the server is gone, and the same request gets its result.
func TestMCPStreamsThatClose(t *testing.T) {
	f := newFleet(t)
	ctx, cut := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() { _, _ = f.rpc(ctx, gateCall) })
	f.waitEntered()
	calls.Go(func() { _, _ = f.rpc(ctx, gateCall, "Idempotency-Key", "mine") })
	f.waitEntered()
	list, err := f.clientOf(messages.OneTenant).Batches(t.Context(), "s", client.ListOptions{})
	must(t, err)
	cut()
	calls.Wait()
	for _, b := range list.Batches {
		if b.Batch != "mine" {
			if status := f.untilResult("s", b.Batch); status != messages.StatusAborted {
				t.Errorf("the call without an id is %s", status)
			}
		}
	}
	f.until("the server has noticed", func() bool { return f.server.Waiting() == 0 })
	calls.Go(func() { // a server that stops tells its clients that the call goes on
		a, err := f.rpc(t.Context(), gateCall, "Idempotency-Key", "mine")
		if err != nil || !strings.Contains(string(a.Body), "ask again with the same id") {
			t.Errorf("%v: %d %s", err, a.Status, a.Body)
		}
	})
	f.until("the request waits", func() bool { return f.server.Waiting() == 1 })
	f.http.stop()
	calls.Wait()
	f.startHTTP()
	f.open()
	a, err := f.rpc(t.Context(), gateCall, "Idempotency-Key", "mine")
	if err != nil || !strings.Contains(string(a.Body), `"text":"open"`) {
		t.Errorf("asked again: %v: %d %s", err, a.Status, a.Body)
	}
	if len(f.entered) != 0 {
		t.Error("a call ran twice")
	}
}

// Over HTTP, calls that are sent one after another keep their order. Three reads that are sent
// at once run together.
func TestMCPOrderOverHTTP(t *testing.T) {
	f := newFleet(t)
	c, err := f.connectMCP("/mcp/s", nil)
	must(t, err)
	defer c.Close()
	for i := range 20 {
		for _, name := range []string{"note", "look"} {
			if r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(`{}`)}); err != nil || r.IsError {
				t.Fatalf("%s %d: %v %+v", name, i, err, r)
			}
			if noted := int(f.noted.Load()); noted != i+1 {
				t.Fatalf("after %s %d: %d notes", name, i, noted)
			}
		}
	}
	var reads sync.WaitGroup
	for range 3 {
		reads.Go(func() {
			if r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "gate"}); err != nil || r.IsError {
				t.Errorf("gate: %v %+v", err, r)
			}
		})
		f.waitEntered()
	}
	f.open()
	reads.Wait()
}

// Whatever the message is, the MCP server never answers with an internal error.
func FuzzMCP(f *testing.F) {
	for _, seed := range []string{
		gateCall[:40], `[]`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":{},"method":"tools/call","params":[]}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":{"n":1e999},"_meta":{"toolfleet/session":"\u0000/"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"note","arguments":{},"_meta":{"toolfleet/id":"1","progressToken":[]}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e400}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		f.Add(seed)
	}
	fleet := newFleet(f)
	f.Fuzz(func(t *testing.T, body string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if a, err := fleet.rpc(ctx, body); err == nil && a.Status >= http.StatusInternalServerError && a.code() == "" {
			t.Errorf("%q: %d %s", body, a.Status, a.Body)
		}
	})
}
