// Package clientconn lets the programs of this module make a connection themselves and give it
// to package client.
package clientconn

import (
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// Settings holds what the options of client.Connect have set.
type Settings struct {
	Conn   *bus.Conn // nil: Connect makes one
	Tenant string
	Tracer trace.Tracer
}

// Over is an option of client.Connect: the client uses conn. The caller still owns the
// connection, so Client.Close leaves it open. Connect then ignores its connection options and
// returns no error.
func Over(conn *bus.Conn) func(*Settings) {
	return func(s *Settings) { s.Conn = conn }
}
