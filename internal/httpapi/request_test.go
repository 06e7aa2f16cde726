package httpapi

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
)

// guard is an access control by hand.
type guard func(*http.Request) (access.Principal, error)

func (g guard) Who(r *http.Request) (access.Principal, error) { return g(r) }

// guardedServer returns a server that asks no fleet.
func guardedServer(t *testing.T, g access.Control) *Server {
	t.Helper()
	health := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s, err := New(func(string) *client.Client { return nil }, Config{Access: g, Health: health})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A token that is wrong is not the same as one that cannot be checked now.
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
