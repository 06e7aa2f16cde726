package worker

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/pipeline"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Try runs the tool once, without a fleet, for tests. Like a worker, it checks the input and
// limits the time and the output. It turns an error or a panic into the text that the model
// reads. It asks nobody for approval, whatever the tool's [Risk].
//
//	result, err := refund.Try(ctx, tool.Call{Input: []byte(`{"order":"A-1001"}`)})
//
// The call may have ids, an Attempt (default 1), a Fence (for a write the default is the
// number of the attempt) and a Progress. Try sets Tool and IdempotencyKey. The key is the same
// for every attempt with the same ids and input. If the tool is [Checkable] and Attempt is
// above 1, the earlier attempt counts as lost. Then Try asks the probe first, and runs the
// tool only if that attempt was not applied.
//
// Try returns an error if there is a mistake in the Tool. If ctx ends, it returns the cause of
// ctx.
func (t Tool) Try(ctx context.Context, c tool.Call) (messages.Result, error) {
	definition, err := t.Definition()
	if err != nil {
		return messages.Result{}, err
	}
	definition.Risk = messages.TierLow
	var registry tool.Registry
	if err := registry.Add(definition, t.runner); err != nil {
		return messages.Result{}, err
	}
	p, err := pipeline.New(pipeline.Config{Registry: &registry})
	if err != nil {
		return messages.Result{}, err
	}
	if c.Input == nil {
		c.Input = json.RawMessage("{}")
	}
	grant := call.Grant{Attempt: max(c.Attempt, 1), Fence: c.Fence}
	grant.Probe = grant.Attempt > 1 && definition.OnCrash == messages.OnCrashCheckable
	if definition.Kind == Write {
		grant.Fence = cmp.Or(c.Fence, uint64(grant.Attempt))
	}
	served, _ := registry.Lookup(definition.Name)
	job := wire.Job{
		Tenant: c.Tenant, Session: c.Session, Batch: c.Batch, Index: c.Index, CallID: c.ID,
		Tool: served.Name, ToolDigest: served.Digest, Kind: definition.Kind, Input: c.Input,
		User: c.User, Labels: c.Labels,
	}
	result, err := p.Run(ctx, job, nil,
		func(context.Context, call.Frozen) (call.Grant, error) { return grant, nil },
		func(e messages.Event) {
			if e.Progress != nil && c.Progress != nil {
				c.Progress(*e.Progress)
			}
		})
	result.Attempt, result.Trail = grant.Attempt, nil
	return result, err
}
