// Package access finds out who sends an HTTP request: the owner of a token or, on this machine, one
// fixed principal.
package access

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Principal is the one who asks.
type Principal struct {
	Tenant string // whose sessions these are
	User   string // who asks for the tenant; "": not known
	// Expires is when the principal may no longer ask; zero: never.
	Expires time.Time
}

// Denied says why a request is refused.
type Denied struct {
	Message string
	Foreign bool // the request is for another host, whoever sends it
}

func (d *Denied) Error() string { return d.Message }

// Unchecked says why it cannot be decided now who sends a request.
type Unchecked struct{ Err error }

func (u *Unchecked) Error() string { return "who asks cannot be checked: " + u.Err.Error() }

// Unwrap returns the cause.
func (u *Unchecked) Unwrap() error { return u.Err }

// Control finds out who asks.
type Control interface {
	// Who returns the sender of a request. The error is a *Denied, or an *Unchecked if a later try
	// may succeed.
	Who(*http.Request) (Principal, error)
}

// Anybody lets everybody in, as one principal.
type Anybody struct{ As Principal }

// Who implements [Control].
func (a Anybody) Who(*http.Request) (Principal, error) { return a.As, nil }

// Here lets everybody in as one principal. It is for an address that only this machine reaches. It
// refuses requests that name another host: a web page could send those through a name that leads to
// this machine (DNS rebinding).
type Here struct{ As Principal }

// Who implements [Control].
func (h Here) Who(r *http.Request) (Principal, error) {
	if !isLocalName(r.Host) {
		return Principal{}, &Denied{Foreign: true, Message: "this server answers for localhost only, and the request names another host"}
	}
	return h.As, nil
}

// isLocalName reports whether the host of a request is this machine.
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
