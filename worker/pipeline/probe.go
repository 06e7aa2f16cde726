package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// probeTime limits a probe. lastProbeTime is the limit if the worker shuts down or has lost
// its lease.
const (
	probeTime     = 15 * time.Second
	lastProbeTime = 3 * time.Second
)

// probe asks, before the tool starts, whether a lost attempt was applied. If it was, the
// call ends.
func (c *callRun) probe(ctx context.Context) error {
	if !c.grant.Probe {
		return nil
	}
	applied, err := c.wasApplied(ctx, probeTime)
	switch {
	case err != nil && ctx.Err() != nil: // there is no answer: the next attempt probes again
		return c.stopped(ctx, nil)
	case err != nil:
		c.log().Warn("the probe of a lost attempt failed; the outcome of the call is unknown")
		// The error may quote the tool, so it is logged only at the debug level.
		c.log().Debug("the error of the probe of a lost attempt", "err", err)
		return c.unknown("the worker that ran it was lost, and asking whether it was applied failed")
	case applied:
		c.ended = true
	}
	return nil
}

// resolve asks the tool whether a run was applied. It does so for a run that was stopped in
// the middle, and for a run whose failure may be temporary. If the run was applied, the call
// has succeeded. If not, the call has failed and may be tried again.
func (c *callRun) resolve(ctx context.Context, err error) error {
	var f *failure
	if !errors.As(err, &f) || !c.started || c.tool.OnCrash != messages.OnCrashCheckable || f.status != messages.StatusOutcomeUnknown && !f.ask {
		return err
	}
	var stop *wire.Stop
	within := probeTime
	if ctx.Err() != nil && !errors.As(context.Cause(ctx), &stop) {
		within = lastProbeTime
	}
	applied, probeErr := c.wasApplied(context.WithoutCancel(ctx), within)
	switch {
	case probeErr != nil:
		c.log().Warn("the probe of a stopped run failed; the outcome of the call stays as it is")
		// The error may quote the tool, so it is logged only at the debug level.
		c.log().Debug("the error of the probe of a stopped run", "err", probeErr)
		return err
	case applied:
		return nil
	case f.ask:
		f.err.Retryable = true
		return f
	case errors.As(context.Cause(ctx), &stop):
		return fail(messages.StatusAborted, messages.CodeAborted, "%s: %s. It was not applied.", c.job.Tool, stop.Why())
	case ctx.Err() != nil:
		return context.Cause(ctx) // another worker will run it again
	}
	notApplied := fail(messages.StatusTimeout, messages.CodeTimeout,
		"%s was stopped before its end. It was not applied.", c.job.Tool)
	notApplied.err.Retryable = true
	return notApplied
}

// wasApplied asks the tool whether the run was applied. If so, the tool's answer becomes
// the result.
func (c *callRun) wasApplied(ctx context.Context, within time.Duration) (bool, error) {
	prober, ok := c.tool.Runner.(tool.Prober)
	if !ok {
		return false, errors.New("the tool has no probe")
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	own := c.toolCall()
	own.Progress = func(messages.Progress) {}
	a := c.await(ctx, Execute, func() (tool.Output, error) {
		probed, err := prober.Probe(ctx, own)
		if err != nil {
			return tool.Output{}, err
		}
		if !probed.Applied {
			return tool.Output{}, errNotApplied
		}
		return probed.Output, nil
	})
	switch {
	case errors.Is(a.err, errNotApplied):
		return false, nil
	case a.err != nil:
		return false, a.err
	case a.panicked:
		return false, errors.New("the probe broke down")
	}
	output := a.output
	if len(output.Value) == 0 && len(output.Content) == 0 {
		output = tool.Text("Done, by an attempt that was lost before it could answer: a check found it applied. What it gave is not known.")
	}
	outcome, err := c.outcome(output)
	if err != nil {
		return false, err
	}
	c.result.Status = messages.StatusOK
	c.result.Outcome = outcome
	return true, nil
}

// errNotApplied says that a probe found the run not applied.
var errNotApplied = errors.New("not applied")
