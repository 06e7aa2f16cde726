package command

import (
	"context"

	"github.com/toolfleet/toolfleet/client"
	fleetpkg "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
)

// ClientOver returns an agent of a tenant on a connection that stays the caller's.
func ClientOver(conn *bus.Conn, tenant string, options ...client.Option) *client.Client {
	options = append(options, clientconn.Over(conn), client.Tenant(tenant))
	c, err := client.Connect(context.Background(), fleetpkg.Options{}, options...)
	if err != nil {
		panic(err) // never, over a connection
	}
	return c
}
