package journal

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// EachOpen calls each for every batch in the log of a tenant and a session ("*": of any), oldest first, until each says that
// it needs no more. It holds a page of the log at a time. For people: a batch that has just ended may still be shown.
func (j *Journal) EachOpen(ctx context.Context, tenant, session string, each func(Accepted) (more bool)) error {
	filter := j.names.OfSession(messages.VerbBatch, tenant, session) + ".*"
	return j.conn.Scan(ctx, j.names.Stream(bus.Batches), filter, bus.From{}, func(msg bus.Msg) bool {
		a, err := j.Accepted(msg)
		return err != nil || each(a) // one without an address is about to be set aside
	})
}
