package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		pattern, target string
		want            bool
	}{
		{"example.com", "example.com:443", true},
		{"example.com", "example.com:80", true},
		{"Example.com", "example.com:443", true},
		{"example.com", "example.com.:443", true},
		{"example.com", "example.com:22", false},
		{"example.com", "www.example.com:443", false},
		{"example.com", "example.com.evil.org:443", false},
		{"example.com", "notexample.com:443", false},
		{"example.com:8443", "example.com:8443", true},
		{"example.com:8443", "example.com:443", false},
		{"*.example.com", "www.example.com:443", true},
		{"*.example.com", "a.b.example.com:443", true},
		{"*.example.com", "example.com:443", false},
		{"*.example.com", ".example.com:443", false},
		{"*.example.com", "wwwexample.com:443", false},
		{"*.example.com:8443", "www.example.com:8443", true},
		{"192.0.2.1", "192.0.2.1:443", true},
		{"[2001:db8::1]", "[2001:db8::1]:443", true},
		{"[2001:db8::1]:99", "[2001:db8::1]:99", true},
		{"example.com", "example.com", false},
	} {
		if got := Match(tc.pattern, tc.target); got != tc.want {
			t.Errorf("Match(%q, %q) = %t", tc.pattern, tc.target, got)
		}
	}
}

// serving starts a proxy. It returns an HTTP client that uses the proxy, the proxy's address,
// and a channel with the reasons of its refusals.
func serving(t *testing.T, cfg Config) (client *http.Client, address string, refused chan string) {
	t.Helper()
	p, refused := New(cfg), make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := p.ServeProxy(w, r); why != "" {
			refused <- why
		}
	}))
	t.Cleanup(server.Close)
	at, _ := url.Parse(server.URL)
	transport := &http.Transport{Proxy: http.ProxyURL(at)}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, at.Host, refused
}

func port(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestAHostOfTheList(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("the host reads of the proxy: %v", r.Header)
		}
		fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path)
	}))
	defer host.Close()
	at := strings.TrimPrefix(host.URL, "http://")
	client, proxy, refused := serving(t, Config{Hosts: []string{at}, Loopback: true})
	answer, err := client.Get(host.URL + "/a")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); string(body) != "GET /a" {
		t.Errorf("got %q", body)
	}
	// The next request goes to the same host, through a tunnel.
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", at, at)
	all, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200") || !strings.HasSuffix(string(all), "GET /b") {
		t.Errorf("got %q, %v", all, err)
	}
	if len(refused) > 0 {
		t.Error(<-refused)
	}
}

// connect asks a proxy for a tunnel and returns the status of its answer.
func connect(t *testing.T, proxy, target string) int {
	t.Helper()
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

func TestWhatIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("a connection from %s", c.RemoteAddr())
			c.Close()
		}
	}()
	here := port(t, l.Addr().String())
	own := "192.0.2.1:9" // used if this machine has no address but loopback
	if all, err := net.InterfaceAddrs(); err == nil {
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
				own = n.IP.String() + ":" + here
			}
		}
	}
	listed := Config{Hosts: []string{"allowed.example", "localhost:" + here, "127.0.0.1:" + here, "169.254.169.254", "[::ffff:169.254.169.254]"}}
	fleet := Config{Hosts: []string{"127.0.0.1:" + here, "localhost:" + here}, Loopback: true, Fleet: []string{"localhost:" + here}}
	for name, tc := range map[string]struct {
		cfg    Config
		target string
		why    string
	}{
		"a host that is not listed":      {listed, "other.example:443", "is not in the list"},
		"another port":                   {listed, "allowed.example:22", "is not in the list"},
		"a name of this machine":         {listed, "localhost:" + here, "is this machine's own"},
		"loopback, listed":               {listed, "127.0.0.1:" + here, "is this machine's own"},
		"metadata, listed":               {listed, "169.254.169.254:80", "link-local"},
		"metadata in an IPv6 address":    {listed, "[::ffff:169.254.169.254]:80", "link-local"},
		"any: loopback":                  {Config{Any: true}, "127.0.0.1:" + here, "is this machine's own"},
		"any: loopback although allowed": {Config{Any: true, Loopback: true}, "127.0.0.1:" + here, "is this machine's own"},
		"any: all of 127":                {Config{Any: true}, "127.9.9.9:" + here, "is this machine's own"},
		"any: a number for an address":   {Config{Any: true}, "2130706433:" + here, ""},
		"any: IPv6 loopback":             {Config{Any: true}, "[::1]:" + here, "is this machine's own"},
		"any: no address":                {Config{Any: true}, "0.0.0.0:" + here, "is no host's"},
		"any: a name of this machine":    {Config{Any: true}, "localhost:" + here, "is this machine's own"},
		"any: another own address":       {Config{Any: true}, own, ""},
		"any: metadata":                  {Config{Any: true}, "169.254.169.254:80", "link-local"},
		"any: metadata over IPv6":        {Config{Any: true}, "[fd00:ec2::254]:80", "metadata"},
		"any: link-local":                {Config{Any: true}, "169.254.1.1:443", "link-local"},
		"the fleet, on this machine":     {fleet, "127.0.0.1:" + here, "server of the fleet"},
		"the fleet by another name":      {fleet, "localhost:" + here, "server of the fleet"},
		"the fleet elsewhere":            {Config{Any: true, Fleet: []string{"192.0.2.7:4222"}}, "192.0.2.7:8222", "server of the fleet"},
		"the fleet, in IPv6":             {Config{Any: true, Fleet: []string{"192.0.2.7:4222"}}, "[::ffff:192.0.2.7]:4222", "server of the fleet"},
		"a fleet that has no address":    {Config{Any: true, Fleet: []string{"nowhere.invalid:4222"}}, "192.0.2.9:443", "could not be told"},
	} {
		t.Run(name, func(t *testing.T) {
			_, proxy, refused := serving(t, tc.cfg)
			status := connect(t, proxy, tc.target)
			if status == http.StatusOK {
				t.Fatal("connected")
			}
			if tc.why == "" {
				return
			}
			select {
			case why := <-refused:
				if !strings.Contains(why, tc.why) {
					t.Errorf("got %q, want %q", why, tc.why)
				}
			default:
				t.Errorf("status %d, and nothing was refused", status)
			}
		})
	}
}

// A tunnel to any host carries only TLS. So a command cannot send the text protocol of NATS
// through it.
func TestATunnelToAnyHostSpeaksTLS(t *testing.T) {
	ours, command := net.Pipe()
	defer command.Close()
	go func() {
		defer ours.Close()
		_, _ = io.WriteString(ours, "CONNECT {}\r\nPUB a 1\r\nx\r\n")
	}()
	if hello(bufio.NewReader(command)) {
		t.Error("the words of NATS passed for TLS")
	}
	for start, want := range map[string]bool{"\x16\x03\x01": true, "GET /": false, "": false} {
		if got := hello(bufio.NewReader(strings.NewReader(start))); got != want {
			t.Errorf("%q: got %t", start, got)
		}
	}
}

func TestWhatIsNoRequestToAProxy(t *testing.T) {
	_, proxy, _ := serving(t, Config{Any: true})
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"} {
		c, err := net.Dial("tcp", proxy)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, request)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: got %v, %v", request, answer, err)
		}
		c.Close()
	}
}
