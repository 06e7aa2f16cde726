package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/messages"
)

// A page of another site, in a browser on the server's machine, cannot use the server: neither
// by the server's address, nor by a domain name of that site that resolves to the address.
func TestPagesOfOtherSites(t *testing.T) {
	f := newFleet(t)
	for name, row := range map[string]struct {
		method, path string
		headers      []string
		code         string
	}{
		"a name that leads here": {"GET", "/v1/sessions/s/batches/b", []string{"Host", "evil.example"}, "foreign_host"},
		"and a port":             {"PUT", "/v1/sessions/s/batches/b", []string{"Host", "evil.example:80"}, "foreign_host"},
		"an address and a name":  {"GET", "/v1/events", []string{"Host", "127.0.0.1.evil.example"}, "foreign_host"},
		"the same for MCP":       {"POST", "/mcp/s", []string{"Host", "evil.example"}, "foreign_host"},
		"another origin":         {"POST", "/v1/sessions/s/abort", []string{"Origin", "https://evil.example"}, "foreign_origin"},
		"another site":           {"POST", "/v1/sessions/s/abort", []string{"Sec-Fetch-Site", "cross-site"}, "foreign_origin"},
		"a page of a null page":  {"DELETE", "/v1/sessions/s/batches/b", []string{"Origin", "null"}, "foreign_origin"},
	} {
		a := f.do(row.method, row.path, "", row.headers...)
		if a.Status != http.StatusForbidden || a.code() != row.code {
			t.Errorf("%s: got %d %s", name, a.Status, a.Body)
		}
		if a.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: is allowed to read the answer", name)
		}
	}
}

// A token has access to its own tenant and to no other, whatever the request says.
func TestTenantsStayApart(t *testing.T) {
	f := newFleet(t)
	red, redLine := access.NewToken(access.Principal{Tenant: "red", User: "rosa"})
	blue, blueLine := access.NewToken(access.Principal{Tenant: "blue", User: "bert"})
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	must(t, os.WriteFile(file, []byte("tokens:\n"+redLine+"\n"+blueLine+"\n"), 0o600))
	tokens, err := access.ReadTokens(file, messages.OneTenant, slog.New(slog.DiscardHandler))
	must(t, err)
	f.http.stop()
	f.access = access.Bearer{Tokens: tokens}
	f.startHTTP()
	const path = "/v1/sessions/s/batches/b"
	as := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	if a := f.do("PUT", path, message("look"), as(red)...); a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	for _, query := range []string{"", "?timeline=1", "?results=full"} {
		if a := f.do("GET", path+query, "", as(blue)...); a.Status != http.StatusNotFound {
			t.Errorf("blue reads red's batch%s: %d %s", query, a.Status, a.Body)
		}
	}
	if a := f.do("PUT", path, message("note"), as(blue)...); a.Status != http.StatusOK {
		t.Errorf("blue cannot use an id of red's: %d %s", a.Status, a.Body)
	}
	if a := f.do("PUT", path, `{"tenant":"red","principal":{"tenant":"red"},"provider":"canonical","message":{"calls":[]}}`, as(blue)...); a.Status != http.StatusConflict {
		t.Errorf("a body names its tenant: %d %s", a.Status, a.Body)
	}
	if a := f.do("PUT", path+"2", message("gate"), append(as(red), "Prefer", "wait=0")...); a.Status != http.StatusAccepted {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	f.waitEntered()
	if a := f.do("POST", "/v1/sessions/s/abort", "", as(blue)...); a.Status != http.StatusOK {
		t.Errorf("blue cannot abort its own session: %d %s", a.Status, a.Body)
	}
	f.open()
	if a := f.do("PUT", path+"2", message("gate"), as(red)...); decode[messages.Reply](t, a.Body).Status != messages.ReplyCompleted {
		t.Errorf("blue's abort reaches red: %s", a.Body)
	}
	for name, headers := range map[string][]string{"no token": nil, "a wrong one": as("tf_wrong"), "its hash": as("sha256:00")} {
		a := f.do("GET", path, "", headers...)
		if a.Status != http.StatusUnauthorized || a.Header.Get("WWW-Authenticate") == "" || strings.Contains(string(a.Body), "red") {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if a := f.do("GET", "/openapi.json", ""); a.Status != http.StatusOK {
		t.Errorf("the description: %d", a.Status)
	}
}

// expiring is an access control that accepts everybody, for a moment.
type expiring struct{}

func (expiring) Who(*http.Request) (access.Principal, error) {
	return access.Principal{Tenant: messages.OneTenant, Expires: time.Now().Add(50 * time.Millisecond)}, nil
}

// A token expires during a request: the request ends.
func TestATokenExpiresMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		f.http.stop()
		f.access = expiring{}
		f.startHTTP()
		a := f.do("PUT", "/v1/sessions/s/batches/b", message("gate"))
		if a.Status != http.StatusUnauthorized || a.code() != "unauthorized" {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	})
}

// endless is a request body that never ends.
type endless struct{ sent atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.sent.Add(int64(len(p)))
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A body over the limit is refused before all of it has arrived, whether or not its length is
// announced. The variable TOOLFLEET_HTTP_ROUNDS, which `make soak` sets, is how often 100 of
// each kind are sent, ten at once. In that form the test also checks that the server's memory
// does not grow.
func TestLargeBodies(t *testing.T) {
	if rounds := longRounds(); rounds > 0 {
		f := newFleetAlone(t)
		f.largeBodies()
		before := inUse()
		var ten sync.WaitGroup
		for range 10 {
			ten.Go(func() {
				for range 10 * rounds {
					f.largeBodies()
				}
			})
		}
		ten.Wait()
		if grown := inUse() - before; grown > 64<<20 {
			t.Errorf("afterwards the server has %d MiB more", grown>>20)
		}
		return
	}
	newFleet(t).largeBodies()
}

func (f *testFleet) largeBodies() {
	t := f.t
	for name, announced := range map[string]int64{"announced": 100 << 20, "in chunks": -1} {
		body := &endless{}
		r, err := http.NewRequestWithContext(t.Context(), "PUT", "http://"+f.addr+"/v1/sessions/s/batches/b", io.LimitReader(body, 100<<20))
		if err != nil {
			t.Error(err)
			return
		}
		r.ContentLength = announced
		res, err := f.client.Do(r)
		if err == nil { // otherwise the connection was closed while we wrote
			_ = res.Body.Close()
			if res.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("%s: got %d", name, res.StatusCode)
			}
		}
		if sent := body.sent.Load(); sent > 16<<20 { // the transport may go on reading for a moment
			t.Errorf("%s: the server took %d bytes", name, sent)
		}
	}
	if a := f.do("GET", "/v1/sessions/s/batches/b", ""); a.Status != http.StatusNotFound {
		t.Errorf("afterwards: %d %s", a.Status, a.Body)
	}
}

// The server answers a client that has sent more of its body than the server reads, with
// whatever answer: the answer arrives. The connection is closed in order and not reset.
func TestTheAnswerToABodyThatIsNotReadArrives(t *testing.T) {
	f := newFleet(t)
	for name, row := range map[string]struct {
		line, headers string
		status        int
	}{
		"too large":       {"PUT /v1/sessions/s/batches/b", "", http.StatusRequestEntityTooLarge},
		"a single call":   {"PUT /v1/sessions/s/calls/b", "Connection: close\r\n", http.StatusRequestEntityTooLarge},
		"asks first":      {"PUT /v1/sessions/s/batches/b", "Expect: 100-continue\r\nConnection: close\r\n", http.StatusRequestEntityTooLarge},
		"a control":       {"POST /v1/sessions/s/steer", "Connection: close\r\n", http.StatusRequestEntityTooLarge},
		"MCP":             {"POST /mcp/s", "Connection: close\r\n", http.StatusRequestEntityTooLarge},
		"no body wanted":  {"GET /v1/tools", "Connection: close\r\n", http.StatusRequestEntityTooLarge},
		"no such path":    {"PUT /nothing", "Connection: close\r\n", http.StatusNotFound},
		"no such method":  {"PATCH /v1/tools", "Connection: close\r\n", http.StatusMethodNotAllowed},
		"not UTF-8":       {"PUT /v1/sessions/%FF/batches/b", "Connection: close\r\n", http.StatusUnprocessableEntity},
		"another origin":  {"PUT /v1/sessions/s/batches/b", "Connection: close\r\nOrigin: https://evil.example\r\n", http.StatusForbidden},
		"another host":    {"PUT http://evil.example/v1/sessions/s/batches/b", "Connection: close\r\n", http.StatusForbidden},
		"an older client": {"PUT /v1/sessions/s/batches/b", "Connection: keep-alive\r\n", http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The server waits half a second for the client to read. On a busy machine that
			// may be too short, so the test tries again.
			var status int
			var err error
			for range 10 {
				if status, err = f.sendTooMuch(row.line, row.headers); err == nil {
					break
				}
			}
			if err != nil || status != row.status {
				t.Errorf("got %d, %v; want %d", status, err, row.status)
			}
		})
	}
}

// sendTooMuch announces a body of 100 MiB and sends a part of it. Then it reads until the
// connection ends.
func (f *testFleet) sendTooMuch(line, headers string) (status int, err error) {
	var d net.Dialer
	c, err := d.DialContext(f.t.Context(), "tcp", f.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s", line, 100<<20, headers, strings.Repeat(" ", 1<<20)); err != nil {
		return 0, err
	}
	read := bufio.NewReader(c)
	res, err := http.ReadResponse(read, nil)
	if err != nil {
		return 0, err
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, read)
	return res.StatusCode, err
}

// Connections that send nothing, half a header or half a body do not hold up others, and the
// server still stops in time. With TOOLFLEET_HTTP_ROUNDS, which `make soak` sets, there are
// more of them, and the test waits until the server cuts off each one.
func TestSlowClients(t *testing.T) {
	each := 20
	f := func() *testFleet {
		if longRounds() > 0 {
			each = 200
			return newFleetAlone(t)
		}
		return newFleet(t)
	}()
	var slow []net.Conn
	for _, begun := range []string{
		"", "PUT /v1/ses", "PUT /v1/sessions/s/batches/b HTTP/1.1\r\nHost: localhost\r\n",
		"PUT /v1/sessions/s/batches/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"provider\":",
		"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
	} {
		for range each {
			var d net.Dialer
			c, err := d.DialContext(t.Context(), "tcp", f.addr)
			must(t, err)
			t.Cleanup(func() { _ = c.Close() })
			slow = append(slow, c)
			_, err = io.WriteString(c, begun)
			must(t, err)
		}
	}
	if a := f.do("PUT", "/v1/sessions/s/batches/b", message("look")); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if longRounds() > 0 { // the server cuts off each in time
		for _, c := range slow {
			must(t, c.SetDeadline(time.Now().Add(patience)))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("a slow client is not cut off")
			}
		}
	}
	f.http.stop() // fails the test if the server does not stop
}

// Whatever the body and the path are, the server never answers with an internal error.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][2]string{
		{"/v1/sessions/s/batches/b", message("look")}, {"/v1/sessions/%2F/batches/%00", `{"message":[]}`}, {"/v1/sessions/s/calls/%FF", `{"name":"look"}`},
		{"/v1/sessions/s/steer", `{"steer":1e999}`}, {"/v1/sessions/s/abort", `{"abort":[]}`}, {"/v1/../v1/x", `{"a":1,"a":2}`}, {"//", "\x00"},
	} {
		f.Add(seed[0], seed[1])
	}
	fleet := newFleet(f)
	f.Fuzz(func(t *testing.T, path, body string) {
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for _, method := range []string{"PUT", "POST", "GET", "DELETE"} {
			a, err := fleet.try(ctx, method, path, body, "Prefer", "wait=0")
			if err == nil && a.Status == http.StatusInternalServerError {
				t.Errorf("%s %q %q: %d %s", method, path, body, a.Status, a.Body)
			}
			if u, bad := url.Parse(path); err == nil && bad == nil {
				if err := description().check(method, u.EscapedPath(), a); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
