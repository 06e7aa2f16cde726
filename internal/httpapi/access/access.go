// Package access finds out who sends an HTTP request: the owner of a token or, for requests
// from this machine, one fixed principal.
package access

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Principal is the sender of a request, as the API identifies it.
type Principal struct {
	Tenant string // the tenant whose sessions the sender may use
	User   string // the user of the tenant who sends the request; "" if not known
	// Expires is the time from which the principal may send no more requests; zero: never.
	Expires time.Time
}

// Denied says why a request is refused.
type Denied struct {
	Message string
	Foreign bool // the request names another host, so it is refused for every sender
}

func (d *Denied) Error() string { return d.Message }

// Unchecked is the error if the sender of a request cannot be found out at this moment.
type Unchecked struct{ Err error }

func (u *Unchecked) Error() string { return "who asks cannot be checked: " + u.Err.Error() }

// Unwrap returns the cause.
func (u *Unchecked) Unwrap() error { return u.Err }

// Control finds out who sends a request.
type Control interface {
	// Who returns the sender of a request. The error is a *Denied, or an *Unchecked if a later
	// try may succeed.
	Who(*http.Request) (Principal, error)
}

// Anybody accepts every request, as a request of one principal.
type Anybody struct{ As Principal }

// Who implements [Control].
func (a Anybody) Who(*http.Request) (Principal, error) { return a.As, nil }

// Here accepts every request as a request of one principal. It is for an address that only
// this machine reaches. It refuses requests that name another host: a web page could send
// those through a host name that leads to this machine (DNS rebinding).
type Here struct{ As Principal }

// Who implements [Control].
func (h Here) Who(r *http.Request) (Principal, error) {
	if !isLocalName(r.Host) {
		return Principal{}, &Denied{Foreign: true, Message: "this server answers for localhost only, and the request names another host"}
	}
	return h.As, nil
}

// isLocalName reports whether the host that a request names is this machine.
func isLocalName(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// Local reports whether only this machine can reach an address.
func Local(a net.Addr) bool {
	switch a := a.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	}
	return false
}
