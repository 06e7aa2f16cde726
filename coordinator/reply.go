package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// assemble makes the reply from the results, which are in the order of the calls.
func (d *batchRun) assemble(ctx context.Context, results []messages.Result) {
	outcomes := make([]messages.Outcome, len(results))
	for i := range results {
		if results[i].Index != i {
			panic(fmt.Sprintf("coordinator: result %d of batch %s is of call %d", i, d.accepted.Key, results[i].Index))
		}
		whole := results[i]
		d.insist(ctx, "fetching a large outcome", func() error {
			err := d.journal.Resolve(ctx, &whole)
			if errors.Is(err, bus.ErrNotFound) || errors.Is(err, bus.ErrCorrupt) {
				d.log.Error("a large outcome is missing in the object store; the call is answered without it", d.callAttr(i), "err", err)
				return nil
			}
			return err
		})
		outcomes[i] = whole.Outcome
	}
	d.ended = results
	if d.fatal != nil {
		return
	}
	reinjection, err := d.in.Encode(outcomes)
	if err != nil {
		d.log.Error("the results cannot be written in the provider's form; the batch is refused after it has run", "err", err)
		d.reply = new(submission.Refused(d.in.Batch, d.digest, &messages.Refusal{Class: messages.ClassInternal, Message: "The results could not be written in the provider's shape. The calls have run."}))
		d.reply.Results = submission.SlimAll(results)
		d.spans.Fail(messages.ClassInternal)
		return
	}
	d.reply = new(messages.Reply{
		V: messages.Version, Batch: d.in.Batch.ID, Session: d.in.Batch.Session, Provider: d.in.Batch.Provider,
		Status: messages.ReplyCompleted, Digest: d.digest, Reinjection: reinjection, Results: submission.SlimAll(results), Steering: d.steering(ctx),
		HookSummary: stopSummary(results),
	}.WithAppend())
	for _, r := range results {
		if r.Status == messages.StatusAborted {
			d.reply.Status = messages.ReplyAborted
		}
	}
}

// finish stores the reply and at the same time writes the audit lines. Then it removes the
// batch from the log. The server publishes the stored reply to the agent. finished reports
// whether the batch has left the log.
func (d *batchRun) finish(ctx context.Context) (finished bool) {
	for _, r := range d.reply.Results {
		d.events.result(messages.EventResult, r)
	}
	audited, ending := make(chan error, 1), d.ending()
	go func() {
		audited <- d.retry(ctx, "writing the audit lines", func() error { return d.recorder.Write(ctx, d.log, ending) })
	}()
	d.insist(ctx, "storing the reply", func() error {
		stored, err := d.journal.WriteReply(ctx, d.accepted, *d.reply)
		if err == nil {
			err = d.steerAgain(ctx, stored)
			// end is read from the stored reply, which another driver may have made.
			var end struct {
				Status messages.ReplyStatus
				Error  *messages.Refusal
			}
			if rawjson.Unmarshal(stored, &end) == nil {
				d.reply.Status, d.reply.Error = end.Status, end.Error
			}
		}
		return err
	})
	if d.fatal == nil {
		d.session.over(d)
	}
	if err := <-audited; err != nil && d.fatal == nil {
		d.fatal = err
	}
	if d.fatal == nil {
		d.events.publish(messages.Event{Type: messages.EventReply, Index: -1, Status: d.reply.Status})
	}
	if !d.leaveLog(ctx) {
		return false
	}
	took := max(0, time.Since(d.conn.Local(ctx, d.accepted.Stored)))
	d.cfg.Metrics.Replied(ctx, *d.reply, d.in.Batch.Round, took, d.announced.Fold)
	level := slog.LevelInfo
	if d.reply.Status == messages.ReplyRefused { // refuse has already logged the refusal
		level = slog.LevelDebug
	}
	d.log.Log(ctx, level, "replied", "status", d.reply.Status, "calls", len(d.reply.Results), "took", took.Round(time.Millisecond))
	return true
}

// leaveLog removes the batch from the log, and returns true if the batch has left the log. The
// batch stays if the reply or the audit lines could not be stored.
func (d *batchRun) leaveLog(ctx context.Context) bool {
	if d.fatal == nil {
		d.insist(ctx, "taking the batch out of the log", func() error { return d.remove(ctx) })
	}
	if d.fatal != nil {
		d.log.Warn("the end of the batch could not be stored; another driver goes on with it", "err", d.fatal)
		d.failSpan(ctx)
	}
	return d.fatal == nil
}

// remove removes the batch from the log. If the batch has a delivery, it acknowledges the
// delivery. Otherwise it deletes the batch by its sequence.
func (d *batchRun) remove(ctx context.Context) error {
	delivery := d.lease.current()
	// An acknowledgement names only a sequence. After a restart the server may have given
	// the same sequence to another batch.
	if delivery != nil && !d.conn.Before(ctx, d.accepted.Stored) && delivery.AckSync(ctx) == nil {
		return nil
	}
	return d.journal.Remove(ctx, d.accepted)
}

// refuse answers a batch that cannot be run.
func (d *batchRun) refuse(ctx context.Context, refusal *messages.Refusal) (finished bool) {
	d.spans.Fail(refusal.Class)
	if refusal.Class == messages.ClassSubjectMismatch {
		d.publishRefusal(d.log, d.accepted, refusal)
		refused := audit.Ending{Accepted: d.accepted, Refused: refusal.Class}
		d.insist(ctx, "writing the audit line of the refusal", func() error { return d.recorder.Write(ctx, d.log, refused) })
		return d.leaveLog(ctx)
	}
	logfields.Refused(d.log, refusal)
	d.cfg.Metrics.BatchRefused(refusal.Class)
	d.reply = new(submission.Refused(d.in.Batch, d.digest, refusal))
	return d.finish(ctx)
}

// stopSummary returns what the hooks of a batch did, or nil if no hook ran. If a hook asks the
// agent to stop, the summary asks for it too, with the reason of the first such hook.
func stopSummary(results []messages.Result) *messages.StopSummary {
	sum := messages.StopHookSummary{HookInfos: []messages.HookMessage{}, HookErrors: []messages.HookMessage{}}
	for _, r := range results {
		if r.Hooks == nil {
			continue
		}
		sum.HookCount += r.Hooks.Count
		sum.HookInfos = append(sum.HookInfos, r.Hooks.Messages...)
		for _, m := range r.Hooks.Messages {
			if m.Type == messages.HookErrorInExecution || m.Type == messages.HookCancelled {
				sum.HookErrors = append(sum.HookErrors, m)
			}
		}
		if r.Hooks.Stop != "" && !sum.PreventedContinuation {
			sum.PreventedContinuation, sum.StopReason = true, r.Hooks.StopReason
		}
	}
	if sum.HookCount == 0 {
		return nil
	}
	return &messages.StopSummary{StopHookSummary: sum}
}

// ending returns what the audit log needs about this batch. The reply is made by now, but not
// stored.
func (d *batchRun) ending() audit.Ending {
	e := audit.Ending{Accepted: d.accepted, Batch: d.in.Batch, Results: d.reply.Results}
	if d.reply.Error != nil {
		e.Refused = d.reply.Error.Class
	}
	switch {
	case d.closed:
		e.Calls = func(ctx context.Context) ([]audit.Call, error) {
			return d.recorder.Recall(ctx, d.accepted.Key, d.in.Calls, d.ended)
		}
	case d.ended != nil:
		e.Calls = d.ranCalls
	case d.machine != nil: // the batch was given up before all calls had ended
		e.Calls = func(ctx context.Context) ([]audit.Call, error) {
			return d.recorder.Recall(ctx, d.accepted.Key, d.in.Calls, nil)
		}
	}
	return e
}

// ranCalls returns what the audit log needs about the calls of this batch, which have all
// ended.
func (d *batchRun) ranCalls(ctx context.Context) ([]audit.Call, error) {
	calls := make([]audit.Call, len(d.ended))
	for i, r := range d.ended {
		calls[i] = audit.Call{
			Result: r, Input: d.in.Calls[i].Input, ArgsHash: d.ran[i].ArgsHash,
			ToolDigest: cmp.Or(d.ran[i].ToolDigest, d.machine.Plan().Calls[i].ToolDigest),
		}
	}
	return calls, d.recorder.FindInputs(ctx, d.accepted.Key, calls)
}
