package command

import (
	"context"

	"github.com/toolfleet/toolfleet/client"
	fleetpkg "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
)

// ClientOver returns a client of a tenant over a connection. Closing the client leaves the
// connection open.
func ClientOver(conn *bus.Conn, tenant string, options ...client.Option) *client.Client {
	options = append(options, clientconn.Over(conn), client.Tenant(tenant))
	c, err := client.Connect(context.Background(), fleetpkg.Options{}, options...)
	if err != nil {
		panic(err) // never happens for an open connection
	}
	return c
}
