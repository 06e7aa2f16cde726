// Package clientconn lets programs of this module give package client a connection that they have
// made themselves.
package clientconn

import (
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// Settings is what the options of client.Connect set.
type Settings struct {
	Conn   *bus.Conn // nil: Connect makes one
	Tenant string
	Tracer trace.Tracer
}

// Over is an option of client.Connect: the client uses conn. The connection stays the caller's:
// Client.Close leaves it open. Connect then ignores its connection options and returns no error.
func Over(conn *bus.Conn) func(*Settings) {
	return func(s *Settings) { s.Conn = conn }
}
