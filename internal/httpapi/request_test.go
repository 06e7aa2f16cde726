package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
)

// guard is an access control made of a function.
type guard func(*http.Request) (access.Principal, error)

func (g guard) Who(r *http.Request) (access.Principal, error) { return g(r) }

// guardedServer returns a server that has no fleet.
func guardedServer(t *testing.T, g access.Control) *Server {
	t.Helper()
	health := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s, err := New(func(string) *client.Client { return nil }, Config{Access: g, Health: health})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A wrong token gets another answer than a token that cannot be checked for now.
func TestWhyNobodyIsLetIn(t *testing.T) {
	for code, row := range map[string]struct {
		status int
		err    error
	}{
		"unauthorized": {http.StatusUnauthorized, &access.Denied{Message: "no token"}},
		"foreign_host": {http.StatusForbidden, &access.Denied{Message: "another host", Foreign: true}},
		"unavailable":  {http.StatusServiceUnavailable, &access.Unchecked{Err: errors.New("the issuer is down")}},
	} {
		s := guardedServer(t, guard(func(*http.Request) (access.Principal, error) { return access.Principal{}, row.err }))
		for _, path := range []string{"/v1/tools", "/metrics"} {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if w.Code != row.status || !strings.Contains(w.Body.String(), `"`+code+`"`) || strings.Contains(w.Body.String(), "issuer is down") {
				t.Errorf("%s: got %d %s, want %d %s", path, w.Code, w.Body, row.status, code)
			}
		}
	}
}

// While a request waits, its token is removed, expires or gets another owner: the request
// ends. If the token cannot be checked for a while, the request goes on.
func TestATokenIsTakenBackMeanwhile(t *testing.T) {
	alice := access.Principal{Tenant: "_", User: "alice"}
	for name, row := range map[string]struct {
		then access.Principal // the owner of the token later
		err  error
		ends bool
	}{
		"it is good":          {then: alice},
		"nobody knows":        {err: &access.Unchecked{Err: errors.New("the issuer is down")}},
		"it is taken back":    {err: &access.Denied{Message: "this server does not know the token"}, ends: true},
		"it is another's":     {then: access.Principal{Tenant: "_", User: "bob"}, ends: true},
		"it is of a tenant's": {then: access.Principal{Tenant: "acme", User: "alice"}, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				s := guardedServer(t, guard(func(*http.Request) (access.Principal, error) {
					if asked++; asked == 1 {
						return alice, nil
					}
					return row.then, row.err
				}))
				h := s.answering(route{handle: func(s *Server, w http.ResponseWriter, q *request) error {
					return s.stream(w, q, func(q *request, opened func() *stream) error {
						opened()
						select {
						case <-q.Context().Done():
							return context.Cause(q.Context())
						case <-time.After(time.Minute):
							return nil
						}
					})
				}})
				w := httptest.NewRecorder()
				begun := time.Now()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/events", nil))
				ended := strings.Contains(w.Body.String(), "event: error") && strings.Contains(w.Body.String(), `"unauthorized"`)
				if took := time.Since(begun); ended != row.ends || ended && took > checkEvery {
					t.Errorf("after %v the client has read %s", took, w.Body)
				}
			})
		})
	}
}

// An answer without an explicit status counts as 200, and a request without any answer as 499.
func TestAnswersAreCounted(t *testing.T) {
	for want, handle := range map[string]http.HandlerFunc{
		"200": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) },
		"202": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
		"499": func(http.ResponseWriter, *http.Request) {},
	} {
		reg := prometheus.NewRegistry()
		s := guardedServer(t, access.Anybody{})
		s.cfg.Metrics = NewMetrics(reg)
		h := s.answering(route{method: "GET", path: "/x", handle: func(_ *Server, w http.ResponseWriter, q *request) error {
			handle(slowly{w}, q.Request)
			return nil
		}})
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil))
		got, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if counted := fmt.Sprint(got); !strings.Contains(counted, `"`+want+`"`) {
			t.Errorf("want an answer of %s in %s", want, counted)
		}
	}
}

// A request aborts or steers a session: its sender is the owner of the token. Only a server
// that requires no token takes the sender from the body.
func TestTheSenderOfAControl(t *testing.T) {
	for want, row := range map[string]struct {
		guard access.Control
		user  string
	}{
		"mallory": {access.Here{}, ""},
		"alice":   {access.Bearer{}, "alice"},
		"":        {access.Bearer{}, ""},
	} {
		s := guardedServer(t, row.guard)
		got, err := s.controlOf(&request{who: access.Principal{Tenant: "_", User: row.user}}, []byte(`{"abort":true,"by":"mallory"}`), "abort")
		if err != nil || got.By != want {
			t.Errorf("%T, user %q: got %q, %v; want %q", row.guard, row.user, got.By, err, want)
		}
	}
}

// The number of bodies that are read at once is bounded.
func TestBodiesThatComeInAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := guardedServer(t, access.Anybody{})
		s.reading = make(places, 1)
		h := s.answering(route{body: maxControl, handle: func(*Server, http.ResponseWriter, *request) error { return nil }})
		ask := func(body io.Reader) int {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/x", body)
			h.ServeHTTP(w, r)
			return w.Code
		}
		slow, client := io.Pipe()
		first := make(chan int)
		go func() { first <- ask(slow) }()
		synctest.Wait()
		if got := ask(strings.NewReader("{}")); got != http.StatusServiceUnavailable {
			t.Errorf("a second one: %d", got)
		}
		if got := ask(nil); got != http.StatusOK {
			t.Errorf("one without a body: %d", got)
		}
		_ = client.Close()
		if got := <-first; got != http.StatusOK {
			t.Errorf("the first: %d", got)
		}
		if got := ask(strings.NewReader("{}")); got != http.StatusOK {
			t.Errorf("the next: %d", got)
		}
	})
}
