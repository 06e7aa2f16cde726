// Package egress lets a command in a sandbox without a network reach certain hosts. It is
// an HTTP proxy in the worker that connects to the hosts which the sandbox allows.
//
//	command --HTTP_PROXY--> Proxy --name allowed? resolve; address allowed?--> host
//
// The name is checked against the list before it is resolved. The address is checked when the
// connection is made, so a name that changes its address between two look-ups gains nothing.
// Some addresses are refused even if the list has their host: link-local and multicast
// addresses, metadata services and the servers of the fleet. This machine is refused too,
// unless [Config.Loopback] allows it.
//
// If every host is allowed, a tunnel must begin with a TLS handshake. This keeps a
// command from talking to a NATS server of the fleet under an address that the worker does not
// know.
package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/worker/tool/outbound"
)

// Limits of the phases of a connection. A connection ends at the latest with its command.
const (
	connectTime = 10 * time.Second
	tlsTime     = 10 * time.Second
	helloTime   = 10 * time.Second // limit for the first bytes of a tunnel
	idleTime    = 30 * time.Second
	maxHeaders  = 64 << 10
)

// Config says to which hosts a proxy connects.
type Config struct {
	// Any allows every host. Otherwise Hosts lists the allowed hosts: see [Match].
	Any   bool
	Hosts []string
	// Loopback allows connections to this machine, for hosts in the list.
	Loopback bool
	// Fleet are the servers of the fleet, as host:port. The proxy never connects to them.
	Fleet []string
}

// Proxy connects commands to hosts. It is safe for concurrent use.
type Proxy struct {
	cfg       Config
	dialer    net.Dialer
	transport *http.Transport
}

// New returns a proxy.
func New(cfg Config) *Proxy {
	p := &Proxy{cfg: cfg}
	p.dialer = net.Dialer{Timeout: connectTime, ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		return p.check(ctx, address)
	}}
	p.transport = &http.Transport{
		DialContext: p.dialer.DialContext, TLSHandshakeTimeout: tlsTime, MaxResponseHeaderBytes: maxHeaders,
		DisableCompression: true, DisableKeepAlives: true, IdleConnTimeout: idleTime,
	}
	return p
}

// ServeProxy answers one request of a command. It returns what it refused and why, or "" if it
// refused nothing.
func (p *Proxy) ServeProxy(w http.ResponseWriter, r *http.Request) (refused string) {
	target, err := targetOf(r)
	if err != nil {
		http.Error(w, "this is a proxy of toolfleet: "+err.Error(), http.StatusBadRequest)
		return ""
	}
	if !p.cfg.Any && !slices.ContainsFunc(p.cfg.Hosts, func(pattern string) bool { return Match(pattern, target) }) {
		return refuse(w, target, "is not in the list of hosts")
	}
	if r.Method == http.MethodConnect {
		return p.tunnel(w, r, target)
	}
	return p.forward(w, r, target)
}

// refuse answers that a host may not be reached.
func refuse(w http.ResponseWriter, target, why string) string {
	text := target + " " + why
	http.Error(w, "refused by the sandbox of toolfleet: "+text, http.StatusForbidden)
	return text
}

// targetOf returns the host and port to which a request goes.
func targetOf(r *http.Request) (string, error) {
	if r.Method == http.MethodConnect {
		if _, _, err := net.SplitHostPort(r.Host); err != nil {
			return "", errors.New("CONNECT needs a host and a port")
		}
		return strings.ToLower(r.Host), nil
	}
	if r.URL.Scheme != "http" || r.URL.Hostname() == "" {
		return "", errors.New("a request needs the whole address, with http://; CONNECT is for all else")
	}
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(strings.ToLower(r.URL.Hostname()), port), nil
}

// forward sends a request to its host and passes the answer on.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, target string) (refused string) {
	proxy := httputil.ReverseProxy{
		Transport: p.transport, FlushInterval: -1, ErrorLog: silent,
		Rewrite: func(out *httputil.ProxyRequest) { out.Out.Host = out.Out.URL.Host },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refused = unreachable(w, target, err)
		},
	}
	proxy.ServeHTTP(w, r)
	return refused
}

// unreachable answers that no connection to a host is possible.
func unreachable(w http.ResponseWriter, target string, err error) (refused string) {
	var no *outbound.RefusedError
	if errors.As(err, &no) {
		return refuse(w, target, "leads to "+no.Address+", which "+no.Why)
	}
	http.Error(w, "no connection to "+target+": "+err.Error(), http.StatusBadGateway)
	return ""
}

// tunnel connects a command and a host until one of them ends the connection or ctx ends.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request, target string) (refused string) {
	far, err := p.dialer.DialContext(r.Context(), "tcp", target)
	if err != nil {
		return unreachable(w, target, err)
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return ""
	}
	defer near.Close()
	defer context.AfterFunc(r.Context(), func() { near.Close(); far.Close() })()
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return ""
	}
	if p.cfg.Any {
		_ = near.SetReadDeadline(time.Now().Add(helloTime))
		if !hello(buffered.Reader) {
			return target + " was not spoken to in TLS, and a tunnel to any host has to begin with it"
		}
		_ = near.SetReadDeadline(time.Time{})
	}
	var both sync.WaitGroup
	both.Go(func() { pour(far, buffered.Reader) })
	both.Go(func() { pour(near, far) })
	both.Wait()
	return ""
}

// hello reports whether a stream begins with a TLS handshake. It consumes nothing of the
// stream.
func hello(from *bufio.Reader) bool {
	const handshake, version = 0x16, 3
	start, err := from.Peek(2)
	return err == nil && start[0] == handshake && start[1] == version
}

// pour copies from one connection to another until one of them ends. Then it ends the sending
// half of the target or, after an error, the whole target.
func pour(to net.Conn, from io.Reader) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
}

// check refuses an address (ip:port) to which the proxy must not connect.
func (p *Proxy) check(ctx context.Context, address string) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return &outbound.RefusedError{Address: address, Why: "is no address of the internet protocol"}
	}
	addr := target.Addr().Unmap().WithZone("")
	no := func(why string) error { return &outbound.RefusedError{Address: addr.String(), Why: why} }
	loopback := p.cfg.Loopback && !p.cfg.Any
	if why := outbound.Refused(addr, loopback); why != "" {
		if addr.IsLoopback() {
			why = "is this machine's own"
		}
		return no(why)
	}
	own, err := isOwn(addr)
	switch {
	case err != nil:
		return no("could not be told from those of this machine: " + err.Error())
	case own && !loopback:
		return no("is this machine's own")
	}
	for _, server := range p.cfg.Fleet {
		host, port, err := net.SplitHostPort(server)
		if err != nil {
			continue
		}
		// This machine also has servers that do not belong to the fleet, so the port
		// counts. On other hosts of the fleet every port is refused.
		if own && port != fmt.Sprint(target.Port()) {
			continue
		}
		switch at, err := resolve(ctx, host); {
		case err != nil:
			return no("could not be told from those of the fleet: " + err.Error())
		case slices.Contains(at, addr):
			return no("is that of a server of the fleet")
		}
	}
	return nil
}

// isOwn reports whether an address belongs to this machine.
func isOwn(addr netip.Addr) (bool, error) {
	if addr.IsLoopback() {
		return true, nil
	}
	all, err := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	}), err
}

// resolve returns the addresses of a host.
func resolve(ctx context.Context, host string) (all []netip.Addr, err error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	all, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range all {
		all[i] = all[i].Unmap()
	}
	return all, err
}

// Match reports whether a host and port, in lower case, match an entry of a list of hosts:
//
//	example.com        this host, on the ports 80 and 443
//	example.com:8443   this host, on this port
//	*.example.com      every name below it, but not the name itself
func Match(pattern, target string) bool {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return false
	}
	name, wanted, err := net.SplitHostPort(pattern)
	if err != nil {
		name, wanted = strings.Trim(pattern, "[]"), ""
	}
	if wanted == "" && port != "80" && port != "443" || wanted != "" && wanted != port {
		return false
	}
	host, name = strings.TrimSuffix(host, "."), strings.ToLower(name)
	if below, ok := strings.CutPrefix(name, "*"); ok {
		return len(host) > len(below) && strings.HasSuffix(host, below)
	}
	return host == name
}
