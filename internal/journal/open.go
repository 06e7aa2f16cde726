package journal

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// EachOpen calls the function each for every batch in the log of a tenant and session ("*"
// means all), oldest first, until each returns false. It keeps one page of the log in memory.
// A replica that is behind may answer: it may have a batch that has just ended, and lack a new
// one.
func (j *Journal) EachOpen(ctx context.Context, tenant, session string, each func(Accepted) (more bool)) error {
	filter := j.names.OfSession(wire.VerbBatch, tenant, session) + ".*"
	return j.conn.Scan(ctx, j.names.Stream(bus.Batches), filter, bus.From{}, func(msg bus.Msg) bool {
		a, err := j.Accepted(msg)
		// A message that is not a batch is left out. A coordinator makes it a dead letter.
		return err != nil || each(a)
	})
}

// Begun reports whether work on a batch has begun: a job is queued or with a worker, the plan
// is stored, or a call has a record or a result. A replica that is behind may answer.
func (j *Journal) Begun(ctx context.Context, key wire.BatchKey) (bool, error) {
	of := func(verb wire.Verb) string { return j.names.Of(verb, key) + ".*" }
	for stream, filters := range map[string][]string{
		bus.Jobs:    j.names.JobsOf(key),
		bus.Calls:   {of(wire.VerbCall), of(wire.VerbHand), j.names.Of(wire.VerbPlan, key)},
		bus.Results: {of(wire.VerbResult)},
	} {
		found, err := j.conn.Glance(ctx, j.names.Stream(stream), filters...)
		if err != nil {
			return false, fmt.Errorf("look whether batch %s has begun: %w", key, err)
		}
		if len(found) > 0 {
			return true, nil
		}
	}
	return false, nil
}
