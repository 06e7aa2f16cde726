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

// loadCatalogue reads the catalogue that the batch names. An unknown one is no error: package plan
// says what its calls use.
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

// tools returns what the choice of versions depends on now.
func (d *batchRun) tools(current schemas.Catalog) plan.Tools {
	return plan.Tools{
		Current: current, Named: d.named, Unknown: d.named == nil && d.in.Batch.Catalogue != "", Served: d.toolsets.serves,
	}
}

// awaitTools returns the calls and the tools with which they are planned. While no worker serves a
// tool in any version, workers may be about to come: a batch that names another version than the
// current one waits for them, at most Config.StartWait.
func (d *batchRun) awaitTools(ctx context.Context) ([]messages.ToolCall, plan.Tools, error) {
	wait := time.NewTimer(d.cfg.StartWait)
	defer wait.Stop()
	for over := false; ; {
		current, err := d.catalog.For(ctx, d.in.Calls, d.cfg.StartWait)
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

// freshTools returns what the choice of versions depends on. If a call would not use the version in
// the batch's catalogue, it reads which workers are there: the agent may have got the catalogue
// before this coordinator heard of the version.
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
	tools.Served = func(t schemas.Tool) bool { return fleet.Serves(wanted(t)) }
	return tools
}

// isPlanned reports whether an earlier driver has stored a plan. That plan counts, so there is
// nothing to choose.
func (d *batchRun) isPlanned(ctx context.Context) bool {
	plans, err := d.journal.Plans(ctx, d.accepted.Key)
	return err == nil && len(plans) > 0
}

// toolOf returns the tool that the job of a call asks for. A call of which a record is stored keeps
// the version in it: a worker has claimed that, or a person was asked about it. Otherwise it is the
// one that the last job asked for, as long as a worker has it, and before that the planned version.
// If no worker serves that any more, it is another version that the plan allows.
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
		return wanted(other.Tool)
	}
	return d.planned(index)
}

// lastServed reports whether a worker has the tool that the last job of a call asked for. One that
// drains counts: it may take that job.
func (d *batchRun) lastServed(index int) bool {
	last, has := d.asked[index]
	return has && d.toolsets.board.Fleet().Has(last)
}

// ask returns the tool that a job asks for that is published now.
func (d *batchRun) ask(index int) toolset.Tool {
	tool := d.toolOf(index)
	d.asked[index] = tool
	return tool
}

// goneAfter is how long a version is missed before a call ends for want of it. Workers announce
// themselves every 10 s, and all of them anew after the server was away.
const goneAfter = 10 * time.Second

// gone reports whether no worker has the version of a call any more, and its input does not fit the
// version that is served. It returns what the machine has to know about that.
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

// instead returns the choice of the served version for a call whose planned version no worker
// serves any more. No choice is known if there is no need for one. A call of which something is
// stored keeps its version: a worker may have claimed it, or a person may have agreed to it.
func (d *batchRun) instead(index int) plan.Choice {
	if d.toolsets.board.Fleet().Serves(d.planned(index)) || !d.machine.Fresh(index) {
		return plan.Choice{}
	}
	other := d.tools(d.catalog.Current()).Instead(d.machine.Plan().Calls[index])
	if !d.toolsets.serves(other.Tool) {
		return plan.Choice{}
	}
	return other
}

// planned returns the tool with which a call was planned.
func (d *batchRun) planned(index int) toolset.Tool {
	call := d.machine.Plan().Calls[index]
	return toolset.Tool{Pool: call.Pool, Name: call.PlannedCall.Tool, Digest: call.ToolDigest}
}

// wanted returns a tool as a job asks for it.
func wanted(t schemas.Tool) toolset.Tool {
	return toolset.Tool{Pool: t.Pool, Name: t.Name, Digest: t.Digest}
}
