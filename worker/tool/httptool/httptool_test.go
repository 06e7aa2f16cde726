package httptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// open starts a service with this handler, and returns a tool that sends requests to it.
func open(t *testing.T, cfg Config, answer http.HandlerFunc) *Tool {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	cfg.Request.Origin, cfg.Request.Loopback = server.URL, true
	return newTool(t, cfg)
}

func newTool(t *testing.T, cfg Config) *Tool {
	t.Helper()
	if cfg.Request.Method == "" {
		cfg.Request.Method = "GET"
	}
	if cfg.Request.MaxResponse == 0 {
		cfg.Request.MaxResponse = schemas.DefaultMaxResponse
	}
	made, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// with returns the call with another input.
func with(in string) tool.Call {
	c := call
	c.Input = json.RawMessage(in)
	return c
}

// failed runs a call that has to fail, and returns its error.
func failed(t *testing.T, made *Tool, ctx context.Context, c tool.Call) *messages.Error {
	t.Helper()
	out, err := made.Run(ctx, c)
	if err == nil {
		t.Fatalf("the run succeeds with %.100q", out.Value)
	}
	var own *messages.Error
	if !errors.As(err, &own) {
		own = &messages.Error{Code: messages.CodeToolError, Message: err.Error()}
	}
	return own
}

// Each value replaces its placeholder in the request, whatever characters it has, and changes
// nothing else.
func TestARequestIsFilled(t *testing.T) {
	request := schemas.HTTP{
		Method: "POST", Path: "/a%20b/{id}/x-{id}", Query: "v=2&for={who.name}", Body: schemas.HTTPBodyRest,
		Params:  []schemas.HTTPValue{{Name: "limit", Template: "{limit}"}, {Name: "fixed", Template: "a b"}},
		Headers: []schemas.HTTPValue{{Name: "X-Who", Template: "who: {who.name}"}, {Name: "X-Note", Template: "{note}"}},
	}
	for _, tt := range []struct{ name, in, path, who, body string }{
		{"plain", `{"id":"7","who":{"name":"ann"},"limit":1.50,"cents":9007199254740993}`,
			"/a%20b/7/x-7?v=2&for=ann&fixed=a+b&limit=1.50", "who: ann", `{"cents":9007199254740993}`},
		{"special characters", `{"id":"a/b?c#d%2e&e=f","who":{"name":"x&y=z #?"}}`,
			"/a%20b/a%2Fb%3Fc%23d%252e&e=f/x-a%2Fb%3Fc%23d%252e&e=f?v=2&for=x%26y%3Dz+%23%3F&fixed=a+b", "who: x&y=z #?", `{}`},
		{"another host", `{"id":"@evil.com","who":{"name":"//evil.com/"}}`,
			"/a%20b/@evil.com/x-@evil.com?v=2&for=%2F%2Fevil.com%2F&fixed=a+b", "who: //evil.com/", `{}`},
		{"letters", `{"id":"é","who":{"name":"ü"},"note":null}`, "/a%20b/%C3%A9/x-%C3%A9?v=2&for=%C3%BC&fixed=a+b", "who: ü", `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made := open(t, Config{Request: request}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.RequestURI != tt.path || r.Header.Get("X-Who") != tt.who || string(body) != tt.body || r.Header["X-Note"] != nil {
					t.Errorf("got %s\n%v\n%s", r.RequestURI, r.Header, body)
				}
			})
			if err := made.Check(t.Context(), with(tt.in)); err != nil {
				t.Fatal(err)
			}
			if _, err := made.Run(t.Context(), with(tt.in)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A value would change the request beyond its placeholder: the semantic check refuses the call
// before anything is sent.
func TestInjectionIsRefused(t *testing.T) {
	request := schemas.HTTP{Path: "/a/{id}/{part}{other}/x", Headers: []schemas.HTTPValue{{Name: "X-Note", Template: "{note}"}}}
	made := open(t, Config{Request: request}, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s arrived", r.RequestURI) })
	for _, tt := range []struct{ name, in, says string }{
		{"the folder above", `{"id":"..","part":"a","other":"b"}`, "would lead to another folder"},
		{"this folder", `{"id":".","part":"a","other":"b"}`, "would lead to another folder"},
		{"further above", `{"id":"x/../../admin","part":"a","other":"b"}`, "would lead to another folder"},
		{"with backslashes", `{"id":"x\\..\\admin","part":"a","other":"b"}`, "would lead to another folder"},
		{"with parameters", `{"id":"..;x=1","part":"a","other":"b"}`, "would lead to another folder"},
		{"put together", `{"id":"1","part":".","other":"."}`, "would lead to another folder"},
		{"an empty segment", `{"id":"","part":"a","other":"b"}`, "id is empty"},
		{"a line", `{"id":"a\r\nHost: evil","part":"a","other":"b"}`, "id has a control character"},
		{"a NUL", `{"id":"a\u0000","part":"a","other":"b"}`, "id has a control character"},
		{"an object", `{"id":{"a":1},"part":"a","other":"b"}`, "id is an object"},
		{"nothing", `{"part":"a","other":"b"}`, "id is missing"},
		{"null", `{"id":null,"part":"a","other":"b"}`, "id is missing"},
		{"a header", `{"id":"1","part":"a","other":"b","note":"x\r\nX-Admin: 1"}`, "the header X-Note cannot carry this value"},
		{"a header with NUL", `{"id":"1","part":"a","other":"b","note":"x\u0000"}`, "the header X-Note cannot carry this value"},
		{"a header of C1", `{"id":"1","part":"a","other":"b","note":"x\u0085y"}`, "the header X-Note cannot carry this value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := made.Check(t.Context(), with(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("check: got %v, want %q", err, tt.says)
			}
			if own := failed(t, made, t.Context(), with(tt.in)); !strings.Contains(own.Message, tt.says) || own.Retryable {
				t.Errorf("run: got %+v, want %q", own, tt.says)
			}
		})
	}
}

func TestTheRestIsTheQuery(t *testing.T) {
	made := open(t, Config{Request: schemas.HTTP{Path: "/{id}", Query: "v=1", Rest: true}}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.RawQuery)
	})
	out, err := made.Run(t.Context(), with(`{"id":1,"tags":["a b","c"],"n":1e2,"ok":true,"no":null}`))
	if err != nil || string(out.Value) != `"v=1&n=1e2&ok=true&tags=a+b&tags=c"` {
		t.Errorf("got %s, %v", out.Value, err)
	}
	for in, says := range map[string]string{
		`{"id":1,"deep":{}}`:   "deep is an object",
		`{"id":1,"v":"2"}`:     "v is fixed by the tool",
		`{"id":1,"v":["2"]}`:   "v is fixed by the tool",
		`{"id":1,"V":"other"}`: "V is fixed by the tool",
	} {
		if own := failed(t, made, t.Context(), with(in)); !strings.Contains(own.Message, says) {
			t.Errorf("%s: got %+v", in, own)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request schemas.HTTP
		answer  http.HandlerFunc
		output  string
		err     messages.Error // without the request's name in its message
	}{
		{"JSON", schemas.HTTP{}, says(200, ` {"n": 9007199254740993} `), `{"n": 9007199254740993}`, messages.Error{}},
		{"text", schemas.HTTP{}, says(201, "booked\n"), `"booked\n"`, messages.Error{}},
		{"nothing", schemas.HTTP{}, says(204, ""), `""`, messages.Error{}},
		{"a part", schemas.HTTP{Output: "/data/1/a~1b"}, says(200, `{"data":[0,{"a/b":1.50}]}`), `1.50`, messages.Error{}},
		{"a part that is missing", schemas.HTTP{Output: "/data/2"}, says(200, `{"data":[0]}`), "",
			messages.Error{Code: "tool_error", Message: "it answered with the status 200, but the answer has nothing at /data/2."}},
		{"a part of no JSON", schemas.HTTP{Output: "/data"}, says(200, `<html>`), "", messages.Error{Code: "tool_error", Message: "the answer is no JSON"}},
		{"too long", schemas.HTTP{MaxResponse: 10}, says(200, strings.Repeat("x", 11)), "",
			messages.Error{Code: "too_large", Message: "it answered with the status 200 and more than 10 bytes"}},
		{"without an end", schemas.HTTP{MaxResponse: 1 << 20}, func(w http.ResponseWriter, _ *http.Request) {
			for _, err := w.Write(make([]byte, 64<<10)); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
			}
		}, "", messages.Error{Code: "too_large", Message: "more than 1048576 bytes"}},
		{"a status that counts", schemas.HTTP{Success: []int{404}}, says(404, "none"), `"none"`, messages.Error{}},
		{"a status that does not", schemas.HTTP{Success: []int{200}}, says(202, "later"), "", messages.Error{Code: "http_202", Message: "202 Accepted: later"}},
		{"conflict", schemas.HTTP{}, says(409, `{"error":{"code":"taken","message":"the name is taken"}}`), "",
			messages.Error{Code: "http_409", Message: "409 Conflict: the name is taken"}},
		{"a problem", schemas.HTTP{}, says(422, `{"title":"no","detail":"the date is past","status":422}`), "",
			messages.Error{Code: "http_422", Message: "422 Unprocessable Entity: the date is past"}},
		{"it knows better", schemas.HTTP{}, says(409, `{"error":"locked","retryable":true}`), "",
			messages.Error{Code: "http_409", Message: "409 Conflict: locked", Retryable: true}},
		{"broken", schemas.HTTP{}, says(500, "oops"), "", messages.Error{Code: "http_500", Message: "500 Internal Server Error: oops"}},
		{"busy", schemas.HTTP{}, says(503, "later"), "", messages.Error{Code: "http_503", Message: "503 Service Unavailable: later", Retryable: true}},
		{"bad bytes", schemas.HTTP{}, says(400, "a\xffb"), "", messages.Error{Code: "http_400", Message: "400 Bad Request: a\uFFFDb"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made := open(t, Config{Request: tt.request, Harmless: true}, tt.answer)
			if tt.err.Code == "" {
				out, err := made.Run(t.Context(), call)
				if err != nil || string(out.Value) != tt.output {
					t.Errorf("got %.100s, %v, want %s", out.Value, err, tt.output)
				}
				return
			}
			own := failed(t, made, t.Context(), call)
			if own.Code != tt.err.Code || !strings.Contains(own.Message, tt.err.Message) || own.Retryable != tt.err.Retryable || !strings.HasPrefix(own.Message, made.name) {
				t.Errorf("got %+v, want %+v", own, tt.err)
			}
		})
	}
}

// A proxy answers a write, or the answer redirects it: the write is not known to have failed.
func TestAnswersOfProxiesToWrites(t *testing.T) {
	for _, tt := range []struct {
		status   int
		request  schemas.HTTP
		harmless bool
		code     messages.Code // "": it succeeded
	}{
		{status: 301, code: messages.CodeOutcomeUnknown},
		{status: 303, code: messages.CodeOutcomeUnknown},
		{status: 304, code: messages.CodeOutcomeUnknown},
		{status: 399, code: messages.CodeOutcomeUnknown},
		{status: 502, code: messages.CodeOutcomeUnknown},
		{status: 504, code: messages.CodeOutcomeUnknown},
		{status: 520, code: messages.CodeOutcomeUnknown},
		{status: 527, code: messages.CodeOutcomeUnknown},
		{status: 500, code: "http_500"},
		{status: 503, code: "http_503"},
		{status: 519, code: "http_519"},
		{status: 528, code: "http_528"},
		{status: 400, code: "http_400"},
		{status: 524, harmless: true, code: "http_524"},
		{status: 303, request: schemas.HTTP{Success: []int{303}}},
		{status: 302, request: schemas.HTTP{Failure: []int{302}}, code: "http_302"},
		{status: 502, request: schemas.HTTP{Failure: []int{502}}, code: "http_502"},
		{status: 521, request: schemas.HTTP{Failure: []int{502}}, code: messages.CodeOutcomeUnknown},
		{status: 202, request: schemas.HTTP{Failure: []int{202}}, code: "http_202"},
	} {
		t.Run(fmt.Sprint(tt.status, tt.request.Success, tt.request.Failure, tt.harmless), func(t *testing.T) {
			tt.request.Method = http.MethodPost
			made := open(t, Config{Request: tt.request, Harmless: tt.harmless}, says(tt.status, "words"))
			if tt.code == "" {
				if out, err := made.Run(t.Context(), call); err != nil || string(out.Value) != `"words"` {
					t.Errorf("got %s, %v", out.Value, err)
				}
				return
			}
			own := failed(t, made, t.Context(), call)
			if own.Code != tt.code {
				t.Errorf("got %+v, want %s", own, tt.code)
			}
		})
	}
}

func TestTheRequestSaysWhichCallItIs(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	made := open(t, Config{}, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "key" || r.Header.Get("traceparent") != traceparent || r.Header.Get("Toolfleet-Session") != "" {
			t.Errorf("the headers are %v", r.Header)
		}
	})
	if _, err := made.Run(tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}}), call); err != nil {
		t.Fatal(err)
	}
}

func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s arrived elsewhere", r.RequestURI) }))
	defer other.Close()
	for _, tt := range []struct {
		name, method, to string
		status           int
		code             messages.Code
	}{
		{"to the same host", "GET", "/there", 302, ""},
		{"of a write", "POST", "/there", 302, "outcome_unknown"},
		{"of a write that keeps its method", "POST", "/there", 307, "outcome_unknown"},
		{"to another host", "GET", other.URL, 302, "http_302"},
		{"to another scheme", "GET", strings.Replace(other.URL, "http:", "https:", 1), 302, "http_302"},
		{"to metadata", "GET", "http://169.254.169.254/latest", 302, "http_302"},
		{"to a file", "GET", "file:///etc/passwd", 302, "http_302"},
		{"without an end", "GET", "/", 302, "http_302"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made := open(t, Config{Request: schemas.HTTP{Method: tt.method, Path: "/"}, Harmless: tt.method == "GET"}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/" {
					http.Redirect(w, r, tt.to, tt.status)
				}
			})
			if tt.code == "" {
				if _, err := made.Run(t.Context(), call); err != nil {
					t.Fatal(err)
				}
				return
			}
			if own := failed(t, made, t.Context(), call); own.Code != tt.code {
				t.Errorf("got %+v, want %s", own, tt.code)
			}
		})
	}
}

func TestThisMachineIsRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request arrived") }))
	defer server.Close()
	made := newTool(t, Config{Request: schemas.HTTP{Origin: server.URL, Path: "/"}, Repeatable: true})
	own := failed(t, made, t.Context(), call)
	if !strings.Contains(own.Message, "is this machine's own") || own.Retryable {
		t.Errorf("got %+v", own)
	}
}

// A secret is in the request and nowhere else, even if the service repeats it.
func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(value string) {
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-secret\n")
	request := schemas.HTTP{
		Path: "/", Headers: []schemas.HTTPValue{{Name: "Authorization", Secret: "token", Prefix: "Bearer "}},
		Params: []schemas.HTTPValue{{Name: "key", Secret: "token"}},
	}
	var seen atomic.Value
	status := http.StatusOK
	made := open(t, Config{Request: request, Secrets: secrets.Folder(dir)}, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization") + " " + r.URL.Query().Get("key"))
		says(status, "you sent "+r.Header.Get("Authorization"))(w, r)
	})
	out, err := made.Run(t.Context(), call)
	if err != nil || seen.Load() != "Bearer first-secret first-secret" || string(out.Value) != `"you sent Bearer [secret]"` {
		t.Errorf("got %s, %v, and the service %v", out.Value, err, seen.Load())
	}
	write("second-secret") // the operator replaces the secret
	status = http.StatusForbidden
	if own := failed(t, made, t.Context(), call); strings.Contains(own.Message, "second-secret") || seen.Load() != "Bearer second-secret second-secret" {
		t.Errorf("got %+v, and the service %v", own, seen.Load())
	}
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if own := failed(t, made, t.Context(), call); !strings.Contains(own.Message, "secret token: it has no file") {
		t.Errorf("got %+v", own)
	}
	_, err = New(Config{Request: schemas.HTTP{Origin: "http://x", Headers: request.Headers}, Secrets: secrets.Folder(dir)})
	if err == nil || !strings.Contains(err.Error(), "http: headers: Authorization: secret token: it has no file") {
		t.Errorf("opened without its secret: %v", err)
	}
}

func TestARequestEndsWithItsCall(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	made := open(t, Config{}, func(_ http.ResponseWriter, r *http.Request) {
		cancel(stop)
		<-r.Context().Done()
	})
	for range 2 { // the second call begins after the stop
		if out, err := made.Run(ctx, call); !errors.Is(err, stop) || out.Value != nil {
			t.Errorf("got %s, %v, want the cause", out.Value, err)
		}
	}
}

// The connection breaks during a request: the HTTP client does not repeat it by itself. If the
// request may have changed something, the outcome is unknown.
func TestBrokenRequests(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		cfg          Config
		code         messages.Code
		sent         int32
	}{
		{"a write", "POST", Config{}, messages.CodeOutcomeUnknown, 1},
		{"a write without a body", "DELETE", Config{}, messages.CodeOutcomeUnknown, 1},
		{"a write by GET", "GET", Config{}, messages.CodeOutcomeUnknown, 1},
		{"a read", "GET", Config{Harmless: true, Repeatable: true}, "unreachable", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got atomic.Int32
			tt.cfg.Request = schemas.HTTP{Method: tt.method, Path: "/"}
			if tt.method == "POST" {
				tt.cfg.Request.Body = schemas.HTTPBodyInput
			}
			made := open(t, tt.cfg, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") == "first" {
					return
				}
				got.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				panic(http.ErrAbortHandler)
			})
			first := call
			first.IdempotencyKey = "first"
			if _, err := made.Run(t.Context(), first); err != nil { // leaves an open connection, which the next request uses
				t.Fatal(err)
			}
			own := failed(t, made, t.Context(), call)
			if own.Code != tt.code || !own.Retryable || got.Load() != tt.sent {
				t.Errorf("got %+v after %d requests, want %s after %d", own, got.Load(), tt.code, tt.sent)
			}
		})
	}
	for _, status := range []int{http.StatusBadGateway, http.StatusGatewayTimeout} {
		made := open(t, Config{}, says(status, "gone"))
		if own := failed(t, made, t.Context(), call); own.Code != messages.CodeOutcomeUnknown {
			t.Errorf("status %d of a write: got %+v", status, own)
		}
	}
}

func TestNothingWasSent(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	client, err := net.Dial("tcp", other.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// Nobody listens at the address: it is the client's own end of another connection.
	made := newTool(t, Config{Request: schemas.HTTP{Origin: "http://" + client.LocalAddr().String(), Path: "/", Loopback: true}})
	if own := failed(t, made, t.Context(), call); own.Code != "unreachable" || !own.Retryable || !strings.Contains(own.Message, "No request was sent") {
		t.Errorf("got %+v", own)
	}
	tls := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request arrived") }))
	defer tls.Close()
	tls.Config.ErrorLog = nil
	made = newTool(t, Config{Request: schemas.HTTP{Origin: tls.URL, Path: "/", Loopback: true}})
	if own := failed(t, made, t.Context(), call); own.Code != "unreachable" || !strings.Contains(own.Message, "certificate") {
		t.Errorf("a certificate that nobody has signed: got %+v", own)
	}
}

// roundTrip answers requests without a connection, so that a test can run in a bubble with its
// own clock.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		name       string
		repeatable bool
		after      string
		sends      int
		took       time.Duration
		ok         bool
	}{
		{"it is sent again", true, "7", 2, 7 * time.Second, true},
		{"a date", true, "Sat, 01 Jan 2000 00:00:05 GMT", 2, 5 * time.Second, true}, // the clock of a bubble begins at midnight UTC of 2000-01-01
		{"a write that may run once", false, "7", 1, 0, false},
		{"longer than the time that is left", true, "60", 1, 0, false},
		{"not said", true, "", 1, 0, false},
		{"nonsense", true, "soon", 1, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := newTool(t, Config{Request: schemas.HTTP{Origin: "http://x", Path: "/"}, Timeout: 30 * time.Second, Repeatable: tt.repeatable})
				sends := 0
				made.client.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
					sends++
					if r.Header.Get("Idempotency-Key") != "key" {
						t.Error("sent with another key")
					}
					w := httptest.NewRecorder()
					w.Header().Set("Retry-After", tt.after)
					says(map[bool]int{true: 429, false: 200}[sends == 1], "x")(w, r)
					return w.Result(), nil
				})
				began := time.Now()
				_, err := made.Run(t.Context(), call)
				if took := time.Since(began); (err == nil) != tt.ok || sends != tt.sends || took != tt.took {
					t.Errorf("got %v after %d requests in %v, want ok %t after %d in %v", err, sends, took, tt.ok, tt.sends, tt.took)
				}
				var own *messages.Error
				if errors.As(err, &own) && (own.Code != "http_429" || !own.Retryable) {
					t.Errorf("got %+v", own)
				}
			})
		})
	}
}

func TestTheTimeOfARequest(t *testing.T) {
	made := open(t, Config{Request: schemas.HTTP{Timeout: time.Millisecond}, Timeout: time.Hour}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	own := failed(t, made, t.Context(), call)
	if own.Code != messages.CodeTimeout && own.Code != codeUnreachable { // the time may be over before there is a connection
		t.Errorf("got %+v", own)
	}
}
