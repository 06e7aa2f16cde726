package httptool

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

var call = tool.Call{
	Tenant: "t", Session: "s 1", Batch: "b", ID: "c\u00e9", Index: 3, Tool: "book", Input: json.RawMessage(`{"n":9007199254740993}`),
	Attempt: 2, IdempotencyKey: "key", Fence: 77,
}

// serve starts a service with this handler, and returns a probe of it.
func serve(t *testing.T, timeout time.Duration, answer http.HandlerFunc) *Probe {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return probe(t, schemas.CheckHTTP{URL: server.URL + "/probe?key=hidden", Method: "GET"}, timeout)
}

func probe(t *testing.T, request schemas.CheckHTTP, timeout time.Duration) *Probe {
	t.Helper()
	p, err := NewProbe(request, "", timeout)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProbe(t *testing.T) {
	long := strings.Repeat("x", maxBody-len("done\n"))
	for _, tt := range []struct {
		name    string
		answer  http.HandlerFunc
		applied bool
		output  string // "": the answer is that it is not known
		fails   string // the end of the error's text
	}{
		{"not done", says(200, "not_done\n"), false, "", ""},
		{"done", says(200, "done"), true, "", ""},
		{"done, created", says(201, "done\r\n"), true, "", ""},
		{"done with JSON", says(200, "done\n{\"id\": 1.0}\n"), true, `{"id": 1.0}`, ""},
		{"done with text", says(200, "done\nbooked\n"), true, `"booked\n"`, ""},
		{"long", says(200, "done\n"+long), true, `"` + long + `"`, ""},
		{"too long", says(200, "done\n"+long+"x"), false, "", ": its answer is longer than 1048576 bytes"},
		{"without an end", func(w http.ResponseWriter, r *http.Request) {
			for _, err := io.WriteString(w, "done\n"); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
			}
		}, false, "", ": its answer is longer than 1048576 bytes"},
		{"garbage", says(200, "<html>"), false, "", `: its first line is "<html>"; want done or not_done`},
		{"nothing", says(204, ""), false, "", `: its first line is ""; want done or not_done`},
		{"broken", says(500, "not_done"), false, "", ": it answered with the status 500 Internal Server Error"},
		{"not found", says(404, "not_done"), false, "", ": it answered with the status 404 Not Found"},
		{"moved", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, false, "", ": it answered with the status 307 Temporary Redirect"},
		{"cut off", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "done\n")
		}, false, "", ": read its answer: unexpected EOF"},
		{"hung up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "", ": EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := serve(t, time.Minute, tt.answer)
			got, err := p.Probe(t.Context(), call)
			if got.Applied != tt.applied || string(got.Output.Value) != tt.output {
				t.Errorf("got %v %.200s", got.Applied, got.Output.Value)
			}
			switch {
			case tt.fails == "" && err != nil:
				t.Error(err)
			case tt.fails != "" && (err == nil || err.Error() != "probe "+strings.TrimSuffix(p.endpoint.cfg.URL, "?key=hidden")+tt.fails):
				t.Errorf("got %v, want ... %s", err, tt.fails)
			}
		})
	}
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestProbeIsTheCall(t *testing.T) {
	t.Setenv("BOOKINGS_TOKEN", "Bearer secret")
	for _, method := range []string{"GET", "POST"} {
		var got http.Header
		var body []byte
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.Header.Clone()
			got["Asked"] = []string{r.Method + " " + r.URL.String()}
			body, _ = io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "done")
		}))
		p := probe(t, schemas.CheckHTTP{
			URL: server.URL + "/probe?full=1", Method: method, Headers: []schemas.CheckHeader{{Name: "authorization", Env: "BOOKINGS_TOKEN"}},
		}, time.Minute)
		if _, err := p.Probe(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		server.Close()
		want := http.Header{
			"Asked": {method + " /probe?full=1"}, "User-Agent": {"toolfleet"}, "Connection": {"close"}, "Authorization": {"Bearer secret"},
			"Toolfleet-Session": {"s 1"}, "Toolfleet-Batch": {"b"}, "Toolfleet-Call-Id": {"c\u00e9"}, "Toolfleet-Index": {"3"},
			"Toolfleet-Attempt": {"2"}, "Toolfleet-Idempotency-Key": {"key"}, "Toolfleet-Fence": {"77"},
		}
		wantBody := ""
		if method == "POST" {
			wantBody = string(call.Input)
			want["Content-Type"], want["Content-Length"] = []string{"application/json"}, []string{"22"}
		}
		if diff := cmp.Diff(want, got); diff != "" || string(body) != wantBody {
			t.Errorf("%s: body %q\n%s", method, body, diff)
		}
	}
}

func TestProbeRefusesAnIdThatAHeaderWouldChange(t *testing.T) {
	p := serve(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("was asked") })
	for _, id := range []messages.SessionID{" s", "s\t", "a\nb", "a\x00b"} {
		c := call
		c.Session = id
		if got, err := p.Probe(t.Context(), c); err == nil || !strings.HasSuffix(err.Error(), "Toolfleet-Session has a value that no header can carry; no request was sent") || got.Applied {
			t.Errorf("%q: got %+v, %v", id, got, err)
		}
	}
}

func TestProbeThatIsSlow(t *testing.T) {
	done := make(chan struct{})
	p := serve(t, 20*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "done\n")
		w.(http.Flusher).Flush()
		<-done
	})
	defer close(done)
	got, err := p.Probe(t.Context(), call)
	if err == nil || !strings.HasSuffix(err.Error(), "/probe: it did not answer in 20ms") || got.Applied {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A probe has no proxy. The test looks at the transport, since Go never uses a proxy for
// requests to this machine.
func TestProbeUsesNoProxyOfTheEnvironment(t *testing.T) {
	p := probe(t, schemas.CheckHTTP{URL: "http://x", Method: "GET"}, time.Second)
	if p.endpoint.client.Transport.(*http.Transport).Proxy != nil {
		t.Error("has a proxy")
	}
}

func TestNewProbeNamesTheVariable(t *testing.T) {
	t.Setenv("EMPTY", "")
	t.Setenv("BROKEN", "secret\n")
	for env, want := range map[string]string{
		"EMPTY":  "http: header A: the environment variable EMPTY is not set",
		"BROKEN": "http: header A: the environment variable BROKEN has a value that no header can carry",
	} {
		_, err := NewProbe(schemas.CheckHTTP{URL: "http://x", Method: "GET", Headers: []schemas.CheckHeader{{Name: "A", Env: env}}}, "", time.Second)
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
