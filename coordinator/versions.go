package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// loadCatalogue reads the catalogue that the batch names. An unknown catalogue is no error:
// package plan then decides which versions the calls use.
func (d *batchRun) loadCatalogue(ctx context.Context) error {
	digest := d.in.Batch.Catalogue
	if digest == "" || len(d.in.Calls) == 0 {
		return nil
	}
	return d.retry(ctx, "reading the catalogue of the batch", func() error {
		tools, found, err := d.catalogues.Get(ctx, digest)
		if found {
			d.named = &tools
		}
		return err
	})
}

// tools returns what package plan needs to choose the versions of tools.
func (d *batchRun) tools(current schemas.Catalog) plan.Tools {
	return plan.Tools{
		Current: current, Named: d.named, Unknown: d.named == nil && d.in.Batch.Catalogue != "", Served: d.serves,
	}
}

// awaitTools returns the calls and the tools for their plan. A batch may name a version of
// a tool that is not the current one. If no worker serves any version of that tool, awaitTools
// waits for workers, at most Config.StartWait.
func (d *batchRun) awaitTools(ctx context.Context) ([]messages.ToolCall, plan.Tools, error) {
	wait := time.NewTimer(d.cfg.StartWait)
	defer wait.Stop()
	for over := false; ; {
		current, err := d.announced.For(ctx, d.accepted.Key.Tenant, d.in.Calls, d.cfg.StartWait)
		if err != nil {
			return nil, plan.Tools{}, err
		}
		calls, tools := d.in.Routed(current), d.freshTools(ctx, current)
		if over || !slices.ContainsFunc(calls, func(c messages.ToolCall) bool { return tools.Waits(c.Tool()) }) || d.isPlanned(ctx) {
			return calls, tools, nil
		}
		select {
		case <-d.workersChanged:
		case <-d.nudge:
			over = d.unwanted(ctx)
		case <-wait.C:
			over = true
		case <-ctx.Done():
			return nil, plan.Tools{}, ctx.Err()
		}
	}
}

// freshTools is like tools. If a call would get another version than the one in the batch's
// catalogue, it first reads the list of workers again. The agent may know of a new version
// before this coordinator does.
func (d *batchRun) freshTools(ctx context.Context, current schemas.Catalog) plan.Tools {
	tools := d.tools(current)
	if !slices.ContainsFunc(d.in.Routed(current), func(c messages.ToolCall) bool { return tools.Differs(c.Tool(), c.Input) }) {
		return tools
	}
	fleet, err := d.toolsets.read(ctx)
	if err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "the workers cannot be read; versions are chosen by what is known of them", "err", err)
		return tools
	}
	tools.Served = func(t schemas.Tool) bool { return fleet.Serves(wanted(d.accepted.Key.Tenant, t)) }
	return tools
}

// isPlanned reports whether an earlier driver has stored a plan. A stored plan has the
// versions of all calls.
func (d *batchRun) isPlanned(ctx context.Context) bool {
	plans, err := d.journal.Plans(ctx, d.accepted.Key)
	return err == nil && len(plans) > 0
}

// toolOf returns the tool and version that a call's job asks for. It takes the first of these
// that applies:
//
//   - the version in the call's record, which a worker has claimed or a person was asked about
//   - the version in the call's last job, if a worker still has it
//   - another version that the plan allows, if no worker has the planned version any more
//   - the planned version
func (d *batchRun) toolOf(index int) toolset.Tool {
	if digest := d.machine.ToolDigest(index); digest != "" {
		tool := d.planned(index)
		tool.Digest = digest
		return tool
	}
	if d.lastServed(index) {
		return d.asked[index]
	}
	if other := d.instead(index); other.Known && other.Gone == "" {
		return wanted(d.accepted.Key.Tenant, other.Tool)
	}
	return d.planned(index)
}

// lastServed reports whether a worker has the tool of the call's last job. A draining worker
// counts too, because it may take that job.
func (d *batchRun) lastServed(index int) bool {
	last, has := d.asked[index]
	return has && d.toolsets.board.Fleet().Has(last)
}

// ask returns the tool for a job that is about to be published, and remembers it as the
// tool of the call's last job.
func (d *batchRun) ask(index int) toolset.Tool {
	tool := d.toolOf(index)
	d.asked[index] = tool
	return tool
}

// goneAfter is how long a version must have no worker before its calls end. Workers announce
// themselves every 10 s, and again after the server was away. So a worker that was only late
// announces itself within this time.
const goneAfter = 10 * time.Second

// gone reports whether a call has to end: no worker has its version any more, and its input
// does not fit the version that workers have. events are for the machine.
func (d *batchRun) gone(index int) (events []batch.Event, gone bool) {
	why := ""
	if !d.lastServed(index) {
		why = d.instead(index).Gone
	}
	since, missed := d.missed[index]
	switch {
	case why == "" && missed:
		delete(d.missed, index)
		return []batch.Event{batch.Unserved{Index: index}}, false
	case why == "":
		return nil, false
	case !missed:
		d.missed[index] = time.Now()
		return nil, false
	case time.Since(since) < goneAfter:
		return nil, false
	}
	return []batch.Event{batch.Unserved{Index: index, Is: true, Gone: why}}, true
}

// instead returns the version for a call whose planned version no worker has any more. The
// result is not Known if a worker serves the planned version. It is not Known either if the
// journal has a record of the call: then a worker may have claimed the planned version, or a
// person may have agreed to it.
func (d *batchRun) instead(index int) plan.Choice {
	if d.toolsets.board.Fleet().Serves(d.planned(index)) || !d.machine.Fresh(index) {
		return plan.Choice{}
	}
	other := d.tools(d.announced.Of(d.accepted.Key.Tenant)).Instead(d.machine.Plan().Calls[index])
	if !d.serves(other.Tool) {
		return plan.Choice{}
	}
	return other
}

// planned returns the tool and version with which a call was planned.
func (d *batchRun) planned(index int) toolset.Tool {
	call := d.machine.Plan().Calls[index]
	return toolset.Tool{Pool: call.Pool, Name: call.PlannedCall.Tool, Digest: call.ToolDigest, Tenant: d.accepted.Key.Tenant}
}

// serves reports whether a worker that takes new jobs of the batch's tenant has exactly this
// tool.
func (d *batchRun) serves(t schemas.Tool) bool { return d.toolsets.serves(d.accepted.Key.Tenant, t) }

// wanted returns a tool in the form in which jobs of a tenant name it.
func wanted(tenant string, t schemas.Tool) toolset.Tool {
	return toolset.Tool{Pool: t.Pool, Name: t.Name, Digest: t.Digest, Tenant: tenant}
}
