package journal

import (
	"context"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal/outcome"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// PlanEntry is a stored plan record.
type PlanEntry struct {
	Seq    uint64
	Record wire.PlanRecord
}

// WritePlan appends a plan record after the one at sequence last. It returns every plan record
// of the batch after last: this one, or those that another coordinator has stored first.
func (j *Journal) WritePlan(
	ctx context.Context, key wire.BatchKey, rec wire.PlanRecord, last uint64,
) ([]PlanEntry, error) {
	body, err := j.encodePlan(ctx, &rec)
	if err != nil {
		return nil, err
	}
	seq, err := j.conn.CompareAndSet(ctx, j.names.Of(wire.VerbPlan, key), nil, body, last)
	answer := answerTo(err)
	if answer == outcome.Stored {
		return []PlanEntry{{seq, rec}}, nil
	}
	all, readErr := j.Plans(ctx, key)
	newer := slices.IndexFunc(all, func(entry PlanEntry) bool { return entry.Seq > last })
	newest := outcome.Newest{Read: readErr == nil}
	if newer >= 0 {
		newest.Seq = all[newer].Seq
	}
	// If an earlier try of this write was stored, the list contains it.
	if outcome.Of(answer, last, newest) == outcome.Overtaken {
		return all[newer:], nil
	}
	return nil, fmt.Errorf("store plan of batch %s: %w", key, undecided(err, readErr))
}

// FirstPlan returns the first plan record of a batch, which has the decisions about every
// call. The error is [bus.ErrNotFound] if no plan record is stored.
func (j *Journal) FirstPlan(ctx context.Context, key wire.BatchKey) (rec wire.PlanRecord, err error) {
	msg, err := j.conn.First(ctx, j.names.Stream(bus.Calls), j.names.Of(wire.VerbPlan, key))
	if err != nil {
		return rec, fmt.Errorf("read the first plan of batch %s: %w", key, err)
	}
	if err := rawjson.Unmarshal(msg.Data, &rec); err != nil {
		return rec, fmt.Errorf("plan record %d of batch %s: %w: %w", msg.Seq, key, bus.ErrCorrupt, err)
	}
	return rec, j.wholePlan(ctx, &rec)
}

// Plans returns every plan record of a batch, in order.
func (j *Journal) Plans(ctx context.Context, key wire.BatchKey) ([]PlanEntry, error) {
	msgs, err := j.conn.All(ctx, j.names.Stream(bus.Calls), j.names.Of(wire.VerbPlan, key))
	if err != nil {
		return nil, fmt.Errorf("read plan of batch %s: %w", key, err)
	}
	plans := make([]PlanEntry, len(msgs))
	for i, msg := range msgs {
		plans[i].Seq = msg.Seq
		if err := rawjson.Unmarshal(msg.Data, &plans[i].Record); err != nil {
			return nil, fmt.Errorf("plan record %d of batch %s: %w: %w", msg.Seq, key, bus.ErrCorrupt, err)
		}
		if err := j.wholePlan(ctx, &plans[i].Record); err != nil {
			return nil, fmt.Errorf("plan record %d of batch %s: %w", msg.Seq, key, err)
		}
	}
	return plans, nil
}
