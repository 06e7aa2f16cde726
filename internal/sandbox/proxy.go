package sandbox

import (
	"context"
	"crypto/rand"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Proxy connects commands to the hosts of a policy.
type Proxy interface {
	// ServeProxy answers one request to an HTTP proxy, which may be CONNECT. It returns at the
	// latest when the context of the request ends. It returns what it refused and why, in
	// words, or "" if it refused nothing.
	ServeProxy(w http.ResponseWriter, r *http.Request) (refused string)
}

// maxRefused limits how many refusals of one command are kept.
const maxRefused = 5

// visit is the network traffic of one command.
type visit struct {
	proxy   Proxy // nil: the command reaches no host
	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex
	refused []string // guarded by mu
	over    bool     // no request begins any more; guarded by mu
	serving sync.WaitGroup
}

func newVisit(p Proxy) *visit {
	v := &visit{proxy: p}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	return v
}

// ServeHTTP answers one request of the command.
func (v *visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	if v.over || v.proxy == nil {
		v.mu.Unlock()
		http.Error(w, "the sandbox of toolfleet has no proxy", http.StatusForbidden)
		return
	}
	v.serving.Add(1)
	v.mu.Unlock()
	defer v.serving.Done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	if why := v.proxy.ServeProxy(w, r.WithContext(ctx)); why != "" {
		v.mu.Lock()
		if len(v.refused) < maxRefused && !slices.Contains(v.refused, why) {
			v.refused = append(v.refused, why)
		}
		v.mu.Unlock()
	}
}

// end closes all connections and returns what was refused.
func (v *visit) end() []string {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	v.cancel()
	v.serving.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.refused
}

// serve answers the requests that arrive at a listener. The caller closes the returned server.
func serve(l net.Listener, h http.Handler) *http.Server {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = server.Serve(l) }() // it ends with Close
	return server
}

// gate is the port at which commands without a network namespace reach the proxies of their
// sandboxes. All commands of this process share one port. The user name in the proxy's address
// tells which command sends a request.
type gate struct {
	port   int
	mu     sync.Mutex
	visits map[string]*visit // guarded by mu
}

// openGate opens the gate of this process at the first call. The gate stays open.
var openGate = sync.OnceValues(func() (*gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gate{port: l.Addr().(*net.TCPAddr).Port, visits: map[string]*visit{}}
	serve(l, g)
	return g, nil
})

// ServeHTTP passes a request to the visit of the command that sent it.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	credentials := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	name, _, _ := credentials.BasicAuth()
	g.mu.Lock()
	v := g.visits[name]
	g.mu.Unlock()
	if v == nil {
		w.Header().Set("Proxy-Authenticate", `Basic realm="toolfleet"`)
		http.Error(w, "this proxy is for the commands of a worker", http.StatusProxyAuthRequired)
		return
	}
	v.ServeHTTP(w, r)
}

// admit registers the visit of a command and returns its name at the gate.
func (g *gate) admit(v *visit) (name string) {
	name = rand.Text()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.visits[name] = v
	return name
}

func (g *gate) leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.visits, name)
}

// proxyEnviron returns the variables that tell programs the address of a proxy.
func proxyEnviron(address string) (env []string) {
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"="+address, strings.ToUpper(name)+"="+address)
	}
	// Node reads these variables only with NODE_USE_ENV_PROXY.
	return append(env, "NODE_USE_ENV_PROXY=1", "no_proxy=localhost,127.0.0.1,::1", "NO_PROXY=localhost,127.0.0.1,::1")
}
