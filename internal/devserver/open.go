package devserver

import (
	"fmt"
	"net"

	"github.com/nats-io/nats-server/v2/server"
)

// guarded returns an error if other machines can reach a server that has no users.
func guarded(o Options, opts *server.Options, addr string) error {
	if addr == "" || o.Open || asks(opts) || local(addr) {
		return nil
	}
	return fmt.Errorf("other machines reach %s, and the server asks nobody who they are, so each of them could run every tool: "+
		"`toolfleet identities new` makes identities for `toolfleet nats --nats-config`, 127.0.0.1 is for this machine alone, and --open lets everybody in", addr)
}

// asks reports whether the server has users, so that every client must authenticate.
func asks(o *server.Options) bool {
	if o.NoAuthUser != "" {
		return false
	}
	return len(o.Nkeys)+len(o.Users)+len(o.TrustedOperators)+len(o.TrustedKeys) > 0 || o.Username != "" || o.Authorization != "" || o.AuthCallout != nil
}

// local reports whether an address can be reached from this machine only.
func local(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	ips, err := net.LookupIP(host)
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false
		}
	}
	return err == nil && len(ips) > 0
}
