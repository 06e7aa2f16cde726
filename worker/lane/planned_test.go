package lane

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// A damaged plan names no call. A plan that does not name the call is read again for the next
// job, because a batch can get another plan: it runs again under its id once its reply is
// forgotten. A plan that cannot be read for now does not make the job a dead letter.
func TestPlansAreReadAgain(t *testing.T) {
	key := wire.KeyOf("_", "s", "b").Call(0)
	job := wire.Job{Tool: "t"}
	refused := wire.PlanRecord{Calls: []wire.PlannedCall{{Tool: "other"}}}
	fine := wire.PlanRecord{Calls: []wire.PlannedCall{{Tool: "t"}}}
	damaged := fmt.Errorf("calls of a large plan: %w: %w", bus.ErrCorrupt, bus.ErrNotFound)
	away := errors.New("no answer")
	var plan wire.PlanRecord
	var failure error
	reads := 0
	p := plans{known: map[wire.BatchKey]named{}, read: func(context.Context, wire.BatchKey) (wire.PlanRecord, error) {
		reads++
		return plan, failure
	}}
	for i, step := range []struct {
		plan     wire.PlanRecord
		failure  error
		overlaps bool
		want     error
	}{
		{failure: away, want: away},
		{failure: damaged, want: errUnplanned},
		{failure: damaged, overlaps: true, want: errUnplanned},
		{plan: refused, want: errUnplanned},
		{plan: fine},
	} {
		plan, failure, job.ConcurrencySafe = step.plan, step.failure, step.overlaps
		if p.knows(key, job) {
			t.Errorf("step %d: a plan that names the call is known", i)
		}
		if err := p.names(t.Context(), key, job); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
	}
	if !p.knows(key, job) || reads != 5 {
		t.Errorf("after %d reads the plan is not known", reads)
	}
}
