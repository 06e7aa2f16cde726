// Package outbound makes the HTTP connections of tools. A tools file decides which name a tool
// connects to, but not which address the name has: a resolver, a redirect or a hostile answer can
// point at this machine, its neighbours or the metadata service of a cloud.
//
// Each address is checked after the name was resolved, just before the connection. So a name that
// changes its address between two look-ups gains nothing. Proxies from the environment are not
// used, because a proxy would resolve the name without this check.
package outbound

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// Limits of the phases of a connection. The caller's context limits the whole request.
const (
	connectTime = 5 * time.Second
	tlsTime     = 5 * time.Second
	idleTime    = 30 * time.Second
	maxHeaders  = 64 << 10
)

// Config says which connections are allowed.
type Config struct {
	// Loopback allows connections to this machine.
	Loopback bool
	// Fresh makes a new connection for each request.
	Fresh bool
}

// Transport returns a transport that refuses the addresses of [Refused].
func Transport(cfg Config) *http.Transport {
	dialer := &net.Dialer{
		Timeout: connectTime,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return check(address, cfg.Loopback)
		},
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    tlsTime,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: maxHeaders,
		MaxIdleConnsPerHost:    16,
		// A compressed answer can be a thousand times as long as the bytes that were
		// counted.
		DisableCompression: true,
		DisableKeepAlives:  cfg.Fresh,
		ForceAttemptHTTP2:  true,
	}
}

// check refuses an address of the form ip:port.
func check(address string, loopback bool) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return &RefusedError{Address: address, Why: "is no address of the internet protocol"}
	}
	if why := Refused(target.Addr(), loopback); why != "" {
		return &RefusedError{Address: target.Addr().String(), Why: why}
	}
	return nil
}

// RefusedError says that connections to an address are never made.
type RefusedError struct{ Address, Why string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the address %s %s: toolfleet does not connect to it", e.Address, e.Why)
}

// Prefixes of addresses that contain an IPv4 address, in the last four bytes or from the
// third byte on.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
	compatible = netip.MustParsePrefix("::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

// metadata holds the addresses of metadata services that are not link-local.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // Amazon
	netip.MustParsePrefix("fd20:ce::/32"),       // Google
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
}

// special holds further addresses that never belong to a host.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/32"), // Teredo: the target is hidden in the address
	// Local translators: each network chooses where the IPv4 address is.
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("fec0::/10"), // site-local, out of use
}

// Refused returns why connections to an address are never made, or "".
func Refused(addr netip.Addr, loopback bool) string {
	addr = addr.Unmap().WithZone("")
	switch {
	case !addr.IsValid(), addr.IsUnspecified():
		return "is no host's"
	case addr.IsLoopback():
		if loopback {
			return ""
		}
		return "is this machine's own (`loopback: true` in the tools file allows it)"
	case addr.IsLinkLocalUnicast():
		return "is link-local, where clouds have their metadata service"
	case addr.IsMulticast():
		return "is a multicast address"
	case within(addr, metadata):
		return "belongs to the metadata service of a cloud"
	}
	if inner, ok := embedded(addr); ok {
		if why := Refused(inner, loopback); why != "" {
			return "stands for " + inner.String() + ", which " + why
		}
		return ""
	}
	if within(addr, special) {
		return "is no host's"
	}
	return ""
}

func within(addr netip.Addr, prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// embedded returns the IPv4 address that an IPv6 address contains.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr), translated.Contains(addr), compatible.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:])), true
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}
