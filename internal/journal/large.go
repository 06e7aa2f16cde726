package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// MaxInline is the size of the largest outcome, in bytes, that is stored in a record. A larger
// outcome goes to the object store.
const MaxInline = 256 << 10

// inline returns the size of the largest body that fits into one message.
func (j *Journal) inline() int { return j.conn.MaxBody() }

// MaxOutcome returns the size of the largest outcome, in bytes, that is stored in a record
// on this server.
func (j *Journal) MaxOutcome() int { return min(MaxInline, j.inline()) }

// Offload moves an outcome that is too large for a record to the object store, and sets the
// result's Ref.
func (j *Journal) Offload(ctx context.Context, result *messages.Result) error {
	if result.Outcome.Fits(j.MaxOutcome()) {
		return nil
	}
	return j.offload(ctx, result)
}

// offload moves an outcome of any size to the object store.
func (j *Journal) offload(ctx context.Context, result *messages.Result) error {
	ref, err := j.objects.Put(ctx, rawjson.MustMarshal(result.Outcome))
	if err != nil {
		return fmt.Errorf("store the large outcome of call %d: %w", result.Index, err)
	}
	result.Outcome, result.Ref = messages.Outcome{}, &ref
	return nil
}

// shrink offloads the largest outcomes until the record with all results fits into a
// message. It returns bus.ErrTooLarge if the record does not fit even without outcomes.
func (j *Journal) shrink(ctx context.Context, results []messages.Result, size func() int) error {
	for size() > j.inline() {
		largest := -1
		for i, r := range results {
			if r.Ref == nil && (largest < 0 || len(r.Output) > len(results[largest].Output)) {
				largest = i
			}
		}
		if largest < 0 {
			return fmt.Errorf("a record of %d bytes without outcomes, with a limit of %d: %w",
				size(), j.inline(), bus.ErrTooLarge)
		}
		if err := j.offload(ctx, &results[largest]); err != nil {
			return err
		}
	}
	return nil
}

// encodePlan returns the body of a plan record. It offloads the planned calls if they need
// more than half of a message. Then it offloads outcomes until the record fits into a message.
func (j *Journal) encodePlan(ctx context.Context, rec *wire.PlanRecord) ([]byte, error) {
	body := wire.Encode(rec)
	if len(body) <= j.inline()/2 {
		return body, nil
	}
	if calls := rawjson.MustMarshal(rec.Calls); len(calls) > j.inline()/2 {
		ref, err := j.objects.Put(ctx, calls)
		if err != nil {
			return nil, fmt.Errorf("store the calls of a large plan: %w", err)
		}
		rec.Calls, rec.CallsRef = nil, &ref
	}
	err := j.shrink(ctx, rec.Results, func() int { return len(wire.Encode(rec)) })
	return wire.Encode(rec), err
}

// wholePlan loads the planned calls if they were offloaded.
func (j *Journal) wholePlan(ctx context.Context, rec *wire.PlanRecord) error {
	if rec.CallsRef == nil {
		return nil
	}
	body, err := j.objects.Get(ctx, *rec.CallsRef)
	if errors.Is(err, bus.ErrNotFound) { // no retry helps: the calls are kept longer than the plan
		return fmt.Errorf("calls of a large plan: %w: %w", bus.ErrCorrupt, err)
	}
	if err != nil {
		return fmt.Errorf("calls of a large plan: %w", err)
	}
	if err := json.Unmarshal(body, &rec.Calls); err != nil {
		return fmt.Errorf("calls of a large plan: %w: %w", bus.ErrCorrupt, err)
	}
	return nil
}

// Resolve loads an offloaded outcome into the result, which keeps its Ref.
func (j *Journal) Resolve(ctx context.Context, result *messages.Result) error {
	if result.Ref == nil {
		return nil
	}
	body, err := j.objects.Get(ctx, *result.Ref)
	if err != nil {
		return fmt.Errorf("outcome of call %d: %w", result.Index, err)
	}
	result.Outcome = messages.Outcome{}
	if err := json.Unmarshal(body, &result.Outcome); err != nil {
		return fmt.Errorf("outcome of call %d in object %s: %w", result.Index, result.Ref.Digest, err)
	}
	return nil
}
