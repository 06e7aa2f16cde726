package journal

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// EachOpen calls each for every batch in the log of a tenant and a session ("*" stands for any),
// oldest first, until each returns false. It holds one page of the log at a time. A replica that is
// behind may answer: it may show a batch that has just ended, and miss a new one.
func (j *Journal) EachOpen(ctx context.Context, tenant, session string, each func(Accepted) (more bool)) error {
	filter := j.names.OfSession(wire.VerbBatch, tenant, session) + ".*"
	return j.conn.Scan(ctx, j.names.Stream(bus.Batches), filter, bus.From{}, func(msg bus.Msg) bool {
		a, err := j.Accepted(msg)
		// Skip a message whose subject is not that of a batch: it becomes a dead letter.
		return err != nil || each(a)
	})
}
