package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// errUnplanned: no coordinator has stored a plan that names the call of a job, and the call needs
// one. Such a job was not published by a coordinator, and a call that may change the world does
// not run by it. See plans.names for the calls that need no plan.
var errUnplanned = errors.New("no stored plan names this call, so it is not run")

// maxPlans bounds the plans in memory.
const maxPlans = 512

// plans knows what the stored plans of the newest batches say.
type plans struct {
	read func(ctx context.Context, key wire.BatchKey) (wire.PlanRecord, error)

	mu    sync.Mutex
	known map[wire.BatchKey]wire.PlanRecord // guarded by mu
}

// names returns errUnplanned if the stored plan of the batch does not name the call of a job with
// its tool and input. The version of the tool may be another: a call whose version is gone goes on
// with the one that workers have. Any other error says that the plan cannot be read.
//
// A call that may overlap passes without a stored plan, because coordinators of the version before
// store none for it. The phases still check that its input lets it overlap.
func (p *plans) names(ctx context.Context, key wire.CallKey, job wire.Job) error {
	plan, err := p.of(ctx, key.BatchKey, job.BodyDigest)
	switch {
	case errors.Is(err, bus.ErrNotFound) && job.ConcurrencySafe:
		return nil
	case errors.Is(err, bus.ErrNotFound):
		return fmt.Errorf("%w: its batch has none", errUnplanned)
	case err != nil:
		return err
	case plan.Digest != job.BodyDigest:
		return fmt.Errorf("%w: the plan is of another batch with this id", errUnplanned)
	case key.Index < 0 || key.Index >= len(plan.Calls):
		return fmt.Errorf("%w: the plan has %d calls, and the job is of call %d", errUnplanned, len(plan.Calls), key.Index)
	}
	planned := plan.Calls[key.Index]
	switch {
	case planned.Refused != nil:
		return fmt.Errorf("%w: the plan refuses it", errUnplanned)
	case planned.Tool != job.Tool:
		return fmt.Errorf("%w: the plan has the tool %.80q for call %d, the job %.80q", errUnplanned, planned.Tool, key.Index, job.Tool)
	case planned.InputHash != "" && planned.InputHash != wire.InputHash(job.Input): // plans of the build before have no hash
		return fmt.Errorf("%w: the job has another input than the plan", errUnplanned)
	}
	return nil
}

// of returns the first plan record of a batch. The first record never changes, so it is read once,
// and again only for a later batch with the same id.
func (p *plans) of(ctx context.Context, key wire.BatchKey, digest string) (wire.PlanRecord, error) {
	p.mu.Lock()
	plan, known := p.known[key]
	p.mu.Unlock()
	if known && plan.Digest == digest {
		return plan, nil
	}
	plan, err := p.read(ctx, key)
	if err != nil {
		return plan, err
	}
	plan.Results = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= maxPlans {
		clear(p.known)
	}
	p.known[key] = plan
	return plan, nil
}
