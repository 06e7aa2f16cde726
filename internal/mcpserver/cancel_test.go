package mcpserver_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

// post sends one message of protocol 2025-11-25 to a server, from the MCP client "me".
func (f *testFleet) post(ctx context.Context, s *mcpserver.Server, body string, headers ...string) string {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(body))
	headers = append(headers, "Content-Type", "application/json", "Accept", "application/json, text/event-stream",
		"Mcp-Protocol-Version", "2025-11-25", "Mcp-Session-Id", "me")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r, mcpserver.Caller{Client: f.client, Session: "s"}, []byte(body))
	return w.Body.String()
}

const (
	gateCall   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gate","arguments":{}}}`
	cancelGate = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
)

// A client cancels a call at another server than the one that waits for it: the call is
// aborted. The client's other call goes on.
func TestACallIsCancelledAtAnotherServer(t *testing.T) {
	for _, tt := range []struct{ name, id, cancel string }{
		{"without an id", "", cancelGate},
		{"with an id that the client repeats", "mine", strings.Replace(cancelGate, `"requestId"`, `"_meta":{"toolfleet/id":"mine"},"requestId"`, 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, f *testFleet) {
				one, other := mcpserver.New(mcpserver.Config{Logger: f.log}), mcpserver.New(mcpserver.Config{Logger: f.log})
				var calls sync.WaitGroup
				var answers [2]string
				calls.Go(func() { answers[0] = f.post(t.Context(), one, gateCall, "Idempotency-Key", tt.id) })
				f.waitEntered(1)
				calls.Go(func() { answers[1] = f.post(t.Context(), one, strings.Replace(gateCall, `"id":1`, `"id":11`, 1)) })
				f.waitEntered(1)
				list, err := f.client.Batches(t.Context(), "s", client.ListOptions{})
				must(t, err)
				f.post(t.Context(), other, tt.cancel)
				f.untilCall("s", list.Batches[0].Batch, messages.StatusAborted)
				close(f.gate)
				calls.Wait()
				if !strings.Contains(answers[0], "cancelled") || !strings.Contains(answers[1], `"text":"open"`) {
					t.Errorf("got %q", answers)
				}
			})
		})
	}
}

// A client uses a request number twice, and the first request ends: the second request can
// still be cancelled.
func TestARequestThatComesAgainCanBeCancelled(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		s := mcpserver.New(mcpserver.Config{Logger: f.log})
		var calls [2]sync.WaitGroup
		for i, id := range []string{"first", "second"} { // a client that uses the number of a request twice
			calls[i].Go(func() { f.post(t.Context(), s, gateCall, "Idempotency-Key", id) })
			f.waitEntered(1)
		}
		_, err := f.client.Abort(t.Context(), "s", "first", client.Reason{})
		must(t, err)
		calls[0].Wait()
		f.post(t.Context(), s, cancelGate)
		f.untilCall("s", "second", messages.StatusAborted)
		calls[1].Wait()
	})
}
