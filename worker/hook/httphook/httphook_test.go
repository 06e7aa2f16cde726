package httphook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/hookjson"
	"github.com/toolfleet/toolfleet/worker/hook/httphook"
)

var (
	aCall = hook.Call{
		Tenant: "acme", Session: "s", Batch: "b", ID: "c", Tool: "Bash", Kind: messages.KindWrite,
		Input: json.RawMessage(`{"command":"ls","n":9007199254740993}`),
	}
	anEnd = hook.Done{Status: messages.StatusOK, Outcome: messages.Text("done")}
)

// newHook returns an HTTP hook that runs before and after a tool.
func newHook(t *testing.T, cfg httphook.Config) hook.Hook {
	t.Helper()
	cfg.Name = "h"
	target, err := httphook.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return hookjson.New(hook.Hook{Name: "h"}, target, target)
}

// serve starts a service with this handler and returns a hook that asks it.
func serve(t *testing.T, answer http.HandlerFunc) hook.Hook {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return newHook(t, httphook.Config{Request: schemas.HookHTTP{URL: server.URL + "/hook?key=hidden", Loopback: true}})
}

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		before hook.Verdict
		after  hook.Change
	}{
		{"no body", says(204, ""), hook.Verdict{}, hook.Change{}},
		{"blanks", says(200, "\n"), hook.Verdict{}, hook.Change{}},
		{"nothing to say", says(200, `{}`), hook.Verdict{}, hook.Change{}},
		{"block", says(200, `{"decision":"block","reason":"no"}`), hook.Verdict{Opinion: hook.Deny, Reason: "no"}, hook.Change{Context: "no"}},
		{"stop", says(201, `{"continue":false,"stopReason":"enough"}`), hook.Verdict{Stop: true, StopReason: "enough"}, hook.Change{Stop: true, StopReason: "enough"}},
	} {
		h := serve(t, tt.answer)
		if got, err := h.Before(t.Context(), aCall); err != nil || !cmp.Equal(got, tt.before) {
			t.Errorf("%s: before: got %+v, %v, want %+v", tt.name, got, err, tt.before)
		}
		if got, err := h.After(t.Context(), aCall, anEnd); err != nil || !cmp.Equal(got, tt.after) {
			t.Errorf("%s: after: got %+v, %v, want %+v", tt.name, got, err, tt.after)
		}
	}
}

// A service gives no valid answer: the hook returns an error with the cause. No error quotes
// the service or its address.
func TestCouldNotRun(t *testing.T) {
	gone := httptest.NewServer(says(200, ""))
	gone.Close()
	unreachable := newHook(t, httphook.Config{Request: schemas.HookHTTP{URL: gone.URL + "/?key=SECRET", Loopback: true}})
	refused := newHook(t, httphook.Config{Request: schemas.HookHTTP{URL: gone.URL}})
	for _, tt := range []struct {
		name  string
		hook  hook.Hook
		cause hook.Cause
		says  string
	}{
		{"error", serve(t, says(500, `{"decision":"approve"} SECRET`)), hook.BadAnswer, "it answered with the status 500 Internal Server Error"},
		{"not found", serve(t, says(404, "SECRET")), hook.BadAnswer, "it answered with the status 404 Not Found"},
		{"moved", serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/hook" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/SECRET", http.StatusTemporaryRedirect)
		}), hook.BadAnswer, "it answered with the status 307 Temporary Redirect"},
		{"page", serve(t, says(200, "<html>SECRET")), hook.BadAnswer, "no JSON object"},
		{"unknown key", serve(t, says(200, `{"SECRET":1}`)), hook.BadAnswer, "a key is not known here"},
		{"another call", serve(t, says(200, `{"tool_use_id":"other","decision":"approve"}`)), hook.BadAnswer, "about another call"},
		{"endless", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			for _, err := w.Write(make([]byte, 64<<10)); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
			}
		}), hook.BadAnswer, "longer than 4194304 bytes"},
		{"cut off", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"decision":"approve"}`)
		}), hook.BadAnswer, "read its answer: unexpected EOF"},
		{"hung up", serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), hook.Unreachable, "EOF"},
		{"gone", unreachable, hook.Unreachable, "refused"},
		{"this machine", refused, hook.Unreachable, "is this machine's own"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.hook.Before(t.Context(), aCall)
			var fault *hook.Fault
			if !errors.As(err, &fault) || fault.Cause != tt.cause || !strings.Contains(err.Error(), tt.says) || !cmp.Equal(got, hook.Verdict{}) {
				t.Fatalf("got %+v, %v, want %q and %q", got, err, tt.cause, tt.says)
			}
			if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%v quotes the service or its address", err)
			}
		})
	}
}

// The service of a gate does not answer within the budget: the gate refuses the call, and the
// request is cancelled.
func TestBudget(t *testing.T) {
	gone := make(chan struct{})
	h := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices the end of the connection
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := h.Before(ctx, aCall); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	<-gone
}

func TestRequest(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	h := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want := `{"hook_event_name":"PreToolUse","session_id":"s","transcript_path":"","cwd":"","permission_mode":"default",` +
			`"tool_name":"Bash","tool_input":{"command":"ls","n":9007199254740993},"tool_use_id":"c","tenant":"acme","principal":{"tenant":"acme"},"batch":"b","index":0,"kind":"write"}`
		if diff := cmp.Diff(want, string(body)); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		if r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("traceparent") != traceparent || r.Header["Idempotency-Key"] != nil {
			t.Errorf("got %s with %v", r.Method, r.Header)
		}
	})
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}})
	if _, err := h.Before(ctx, aCall); err != nil {
		t.Fatal(err)
	}
}

// A secret is read anew for each request. It appears in no answer, even if the service repeats
// it.
func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization")+" "+r.Header.Get("X-Fixed"))
		_, _ = io.WriteString(w, `{"decision":"block","reason":"`+r.Header.Get("Authorization")+`"}`)
	}))
	defer server.Close()
	request := schemas.HookHTTP{URL: server.URL, Loopback: true, Headers: []schemas.HTTPValue{
		{Name: "Authorization", Secret: "token", Prefix: "Bearer "}, {Name: "X-Fixed", Template: "plain"},
	}}
	if _, err := httphook.New(httphook.Config{Name: "h", Request: request, Secrets: secrets.Folder(dir)}); err == nil || !strings.Contains(err.Error(), `hook "h"`) || !strings.Contains(err.Error(), "token") {
		t.Errorf("without the secret: %v", err)
	}
	write("first-value")
	h := newHook(t, httphook.Config{Request: request, Secrets: secrets.Folder(dir)})
	for _, value := range []string{"first-value", "second-value"} {
		write(value)
		if v, err := h.Before(t.Context(), aCall); err != nil || v.Reason != "Bearer [secret]" {
			t.Errorf("got %+v, %v", v, err)
		}
	}
	if diff := cmp.Diff([]string{"Bearer first-value plain", "Bearer second-value plain"}, got); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	var fault *hook.Fault
	if _, err := h.Before(t.Context(), aCall); !errors.As(err, &fault) || len(got) != 2 {
		t.Errorf("without the secret: %v, and %d requests", err, len(got))
	}
}

// A service gives a bad answer: its text is in the log at level debug only.
func TestWhatIsLogged(t *testing.T) {
	server := httptest.NewServer(says(200, `{"decision":"SECRET"}`))
	defer server.Close()
	var log bytes.Buffer
	h := newHook(t, httphook.Config{
		Request: schemas.HookHTTP{URL: server.URL, Loopback: true},
		Logger:  slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if _, err := h.Before(t.Context(), aCall); err == nil {
		t.Error("the answer is accepted")
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "SECRET") || !strings.Contains(got, "hook=h") {
		t.Errorf("log %s", got)
	}
}
