package mcptool

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/schemas"
)

// A server at a URL gets the headers of its entry. If it has forgotten the session, a new
// session is begun.
func TestService(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t0ken-value"), 0o600); err != nil {
		t.Fatal(err)
	}
	var handler atomic.Value
	restart := func() {
		server := newTestServer(dir)
		handler.Store(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	}
	restart()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0ken-value" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.Load().(*mcp.StreamableHTTPHandler).ServeHTTP(w, r)
	}))
	t.Cleanup(service.Close)
	cfg := Config{Secrets: secrets.Folder(dir), Server: schemas.Server{
		Name: "service", URL: service.URL, Loopback: true, Prefix: "service__", Processes: 1, Trusted: true,
		Values: []schemas.HTTPValue{{Name: "Authorization", Secret: "token", Prefix: "Bearer "}},
	}}
	s := open(t, cfg)
	for range 2 {
		if got := run(t, served(t, s, "service__echo").Runner, newCall()); got != `{}` {
			t.Errorf("got %s", got)
		}
		if got := run(t, served(t, s, "service__apply").Runner, newCall()); got != `"ok"` {
			t.Errorf("a write: got %s", got)
		}
		restart()
	}
	if got := run(t, served(t, s, "service__fail").Runner, newCall()); got != "tool_error false no such customer" {
		t.Errorf("got %s", got)
	}

	cfg.Server.Values = nil
	if _, err := Open(t.Context(), cfg); err == nil || strings.Contains(err.Error(), "t0ken") {
		t.Errorf("without its header: %v", err)
	}
	cfg.Server.Loopback = false
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "is this machine's own") {
		t.Errorf("got %v", err)
	}
}

// Numbers in the structured content of a service keep all their digits, whether it answers
// with JSON or with events, in one piece or in many.
func TestNumbersOfAServiceAreExact(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"n":9007199254740993,"d":0.12345678901234567890}}}`
	for name, write := range map[string]func(w http.ResponseWriter, message string){
		"JSON": func(w http.ResponseWriter, message string) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			_, _ = io.WriteString(w, message)
		},
		"an event": func(w http.ResponseWriter, message string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: message\ndata: "+message+"\n\n")
		},
		"pieces": func(w http.ResponseWriter, message string) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, b := range []byte(": hello\r\n\r\nid: 1\r\ndata:" + strings.Replace(message, ",", ",\r\ndata: ", 2) + "\r\n\r\n") {
				_, _ = w.Write([]byte{b})
				_ = http.NewResponseController(w).Flush()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t.TempDir())
			handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var message struct {
					ID     json.RawMessage
					Method string
				}
				if json.Unmarshal(body, &message) == nil && message.Method == "tools/call" {
					write(w, strings.Replace(answer, "ID", string(message.ID), 1))
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				handler.ServeHTTP(w, r)
			}))
			t.Cleanup(service.Close)
			s := open(t, Config{Server: schemas.Server{Name: "service", URL: service.URL, Loopback: true, Processes: 1}})
			want := `{"n":9007199254740993,"d":0.12345678901234567890}`
			if got := run(t, served(t, s, "structured").Runner, newCall()); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// A service applies a write, and its answer is lost: the connection breaks, or a gateway
// answers in its place. The outcome is unknown, and nothing is repeated. If a service answers
// that it is busy, it has not run the write.
func TestTheAnswerOfAServiceIsLost(t *testing.T) {
	for name, tc := range map[string]struct {
		status int // 0: the connection breaks
		want   string
	}{
		"the connection breaks": {0, "outcome_unknown"},
		"a gateway gives up":    {http.StatusGatewayTimeout, "outcome_unknown"},
		"a bad gateway":         {http.StatusBadGateway, "outcome_unknown"},
		"it is busy":            {http.StatusTooManyRequests, "tool_error"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t.TempDir())
			handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
			var writes atomic.Int32
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if !bytes.Contains(body, []byte(`"tools/call"`)) {
					r.Body = io.NopCloser(bytes.NewReader(body))
					handler.ServeHTTP(w, r)
					return
				}
				writes.Add(1)
				if tc.status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(tc.status)
			}))
			t.Cleanup(service.Close)
			s := open(t, Config{Server: schemas.Server{Name: "service", URL: service.URL, Loopback: true, Processes: 1}})
			got := run(t, served(t, s, "apply").Runner, newCall())
			if code, _, _ := strings.Cut(got, " "); code != tc.want || writes.Load() != 1 {
				t.Errorf("got %s after %d requests, want %s after one", got, writes.Load(), tc.want)
			}
		})
	}
}
