package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// errUnplanned says that no stored plan names the call of a job. No coordinator published such
// a job, or its plan is damaged. A call that may change the world does not run without a plan
// that names it.
var errUnplanned = errors.New("no stored plan names this call, so it is not run")

// maxPlans limits the plans in memory.
const maxPlans = 512

// plans keeps in memory which calls the stored plans of the newest batches name.
type plans struct {
	read func(ctx context.Context, key wire.BatchKey) (wire.PlanRecord, error)

	mu    sync.Mutex
	known map[wire.BatchKey]named // guarded by mu
}

// named is what a plan says about the calls of a batch.
type named struct {
	digest string // the digest of the batch
	calls  []namedCall
}

type namedCall struct {
	tool, inputHash string
	refused         bool
}

// knows reports whether a plan in memory names the call of a job.
func (p *plans) knows(key wire.CallKey, job wire.Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan, has := p.known[key.BatchKey]
	return has && plan.lacks(key.Index, job) == nil
}

// names reads the first plan record of a batch. It returns errUnplanned if the record does not
// name the call of the job with its tool and input. The version of the tool may differ: if the
// planned version is gone, the call runs with a version that workers have. Any other error
// says that the plan cannot be read now.
//
// A call that may run beside others passes without a stored plan, because coordinators of the
// previous version of toolfleet store none for it. The phases still check that its input lets
// it run beside others.
func (p *plans) names(ctx context.Context, key wire.CallKey, job wire.Job) error {
	record, err := p.read(ctx, key.BatchKey)
	switch {
	case errors.Is(err, bus.ErrCorrupt):
		return fmt.Errorf("%w: %w", errUnplanned, err)
	case errors.Is(err, bus.ErrNotFound) && job.ConcurrencySafe:
		return nil
	case errors.Is(err, bus.ErrNotFound):
		return fmt.Errorf("%w: its batch has none", errUnplanned)
	case err != nil:
		return err
	}
	plan := named{digest: record.Digest, calls: make([]namedCall, len(record.Calls))}
	for i, c := range record.Calls {
		plan.calls[i] = namedCall{tool: c.Tool, inputHash: c.InputHash, refused: c.Refused != nil}
	}
	if err := plan.lacks(key.Index, job); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= maxPlans {
		clear(p.known)
	}
	p.known[key.BatchKey] = plan
	return nil
}

// lacks returns errUnplanned, with the reason, if the plan does not name the call of a job.
func (n named) lacks(index int, job wire.Job) error {
	switch {
	case n.digest != job.BodyDigest:
		return fmt.Errorf("%w: the plan is of another batch with this id", errUnplanned)
	case index < 0 || index >= len(n.calls):
		return fmt.Errorf("%w: the plan has %d calls, and the job is of call %d", errUnplanned, len(n.calls), index)
	}
	c := n.calls[index]
	switch {
	case c.refused:
		return fmt.Errorf("%w: the plan refuses it", errUnplanned)
	case c.tool != job.Tool:
		return fmt.Errorf("%w: the plan has the tool %.80q for call %d, the job %.80q", errUnplanned, c.tool, index, job.Tool)
	case c.inputHash != "" && c.inputHash != wire.InputHash(job.Input): // hashes are missing in plans of the previous version
		return fmt.Errorf("%w: the job has another input than the plan", errUnplanned)
	}
	return nil
}

// planned returns nil if a stored plan names the call of a job, and errUnplanned if no stored
// plan does. It tries until the plan can be read or ctx ends. Meanwhile it sends signs of
// life: without them, the delivery would count as one whose worker was lost.
func (c *Consumer) planned(ctx context.Context, d *pull.Delivery, key wire.CallKey, job wire.Job) error {
	if c.plans.knows(key, job) {
		return nil
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		tick := time.NewTicker(c.cfg.AckWait / 3)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_ = d.InProgress() // a lost sign of life is sent again at the next tick
			}
		}
	}()
	return bus.Retry(ctx, bus.Backoff{
		First: 100 * time.Millisecond, Most: 5 * time.Second, Jitter: true,
		Again: func(err error) bool { return !errors.Is(err, errUnplanned) },
		OnFailure: func(err error, _ time.Duration) {
			c.about(ctx, key, job).Warn("the plan of a batch cannot be read, so a call waits", "err", err)
		},
	}, func() error { return c.plans.names(ctx, key, job) })
}
