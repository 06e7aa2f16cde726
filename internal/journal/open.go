package journal

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// EachOpen calls each for every batch in the log of a tenant and a session ("*" stands for any),
// oldest first, until each returns false. It holds a page of the log at a time. The server that
// answers may be behind: a batch that has just ended may still be shown, and a new one missing.
func (j *Journal) EachOpen(ctx context.Context, tenant, session string, each func(Accepted) (more bool)) error {
	filter := j.names.OfSession(wire.VerbBatch, tenant, session) + ".*"
	return j.conn.Scan(ctx, j.names.Stream(bus.Batches), filter, bus.From{}, func(msg bus.Msg) bool {
		a, err := j.Accepted(msg)
		// A message without an address will be dead-lettered: skip it.
		return err != nil || each(a)
	})
}
