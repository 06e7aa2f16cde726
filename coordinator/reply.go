package coordinator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// assemble makes the reply of the results, which are in call order.
func (d *drive) assemble(ctx context.Context, results []messages.Result) {
	outcomes := make([]messages.Outcome, len(results))
	for i := range results {
		if results[i].Index != i {
			panic(fmt.Sprintf("coordinator: result %d of batch %s is of call %d", i, d.accepted.Key, results[i].Index))
		}
		whole := results[i]
		d.insist(ctx, "fetch a large outcome", func() error {
			err := d.journal.Resolve(ctx, &whole)
			if errors.Is(err, bus.ErrNotFound) || errors.Is(err, bus.ErrCorrupt) {
				d.log.Error("a stored outcome is gone", d.call(i), "err", err)
				return nil // answered as lost
			}
			return err
		})
		outcomes[i] = whole.Outcome
	}
	d.ended = results
	if d.fatal != nil {
		return
	}
	reinjection, err := d.encode(outcomes)
	if err != nil {
		d.log.Error("the results cannot be written in the provider's shape", "err", err)
		d.reply = new(submission.Refused(d.in.Batch, d.digest, &messages.Refusal{Class: messages.ClassInternal, Message: "The results could not be written in the provider's shape. The calls have run."}))
		d.reply.Results = slim(results)
		d.spans.Fail(messages.ClassInternal)
		return
	}
	d.reply = &messages.Reply{
		V: messages.Version, Batch: d.in.Batch.ID, Session: d.in.Batch.Session, Provider: d.in.Batch.Provider,
		Status: messages.ReplyCompleted, Digest: d.digest, Reinjection: reinjection, Results: slim(results), Steering: d.steering(ctx),
		Stop: stopSummary(results),
	}
	for _, r := range results {
		if r.Status == messages.StatusAborted {
			d.reply.Status = messages.ReplyAborted
		}
	}
}

func (d *drive) encode(outcomes []messages.Outcome) (reinjection json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return d.in.Codec.Encode(d.in.Calls, outcomes)
}

// slim is results without what the reinjection holds already, and without what is for the record for people.
func slim(results []messages.Result) []messages.Result {
	out := make([]messages.Result, len(results))
	for i, r := range results {
		out[i] = submission.Slim(r)
	}
	return out
}

// finish stores the reply and puts the calls on record, both at once, tells everybody and takes the batch out of the log. The
// reply that is published is the one that was stored: the server does it.
func (d *drive) finish(ctx context.Context) bool {
	for _, r := range d.reply.Results {
		d.tell(messages.EventResult, r)
	}
	recorded, ending := make(chan error, 1), d.ending()
	go func() {
		recorded <- d.untilDone(ctx, "put the calls on record", func() error { return d.recorder.Write(ctx, d.log, ending) })
	}()
	d.insist(ctx, "store reply", func() error {
		stored, err := d.journal.WriteReply(ctx, d.accepted, *d.reply)
		if err == nil {
			err = d.steerAgain(ctx, stored)
			d.adoptReply(stored)
		}
		return err
	})
	if err := <-recorded; err != nil && d.fatal == nil {
		d.fatal = err
	}
	if d.fatal == nil { // while the next batch of the session waits, so that nothing of it is told before
		d.publish(messages.Event{Type: messages.EventReply, Index: -1, Status: d.reply.Status})
	}
	if !d.leaveLog(ctx) {
		return false
	}
	took := d.sinceAccepted(ctx)
	d.cfg.Metrics.replied(ctx, *d.reply, d.in.Batch.Round, took, d.catalog.fold)
	d.log.Log(ctx, levelOfReply(d.reply.Status), "replied", "status", d.reply.Status, "calls", len(d.reply.Results), "took", took.Round(time.Millisecond))
	return true
}

// adoptReply takes over the status of the stored reply, which another driver may have made.
func (d *drive) adoptReply(stored []byte) {
	if reply, err := decodeReply(stored); err == nil {
		d.reply.Status, d.reply.Error = reply.Status, reply.Error
	}
}

// sinceAccepted is how old the batch is, rests and earlier drives included.
func (d *drive) sinceAccepted(ctx context.Context) time.Duration {
	return max(0, time.Since(d.conn.Local(ctx, d.accepted.Stored)))
}

// leaveLog takes the batch out of the log, unless what had to be stored before could not be. It reports whether it did.
func (d *drive) leaveLog(ctx context.Context) bool {
	if d.fatal == nil {
		d.insist(ctx, "take the batch out of the log", func() error { return d.remove(ctx) })
	}
	if d.fatal != nil {
		d.log.Warn("batch let go at its end", "err", d.fatal)
		d.failSpan(ctx)
	}
	return d.fatal == nil
}

// remove takes the batch out of the log: by the delivery it came with, or by its place there.
func (d *drive) remove(ctx context.Context) error {
	d.mu.Lock()
	delivery := d.delivery
	d.mu.Unlock()
	// An acknowledgement names only a place, which a server that restarted since may have given to another batch.
	if delivery != nil && !d.conn.Before(ctx, d.accepted.Stored) && delivery.AckSync(ctx) == nil {
		return nil
	}
	return d.journal.Remove(ctx, d.accepted)
}

// refuse answers a batch that cannot be run.
func (d *drive) refuse(ctx context.Context, b messages.Batch, refusal *messages.Refusal) bool {
	d.spans.Fail(refusal.Class)
	if refusal.Class == messages.ClassSubjectMismatch {
		d.refuseAside(d.log, d.accepted, refusal)
		refused := audit.Ending{Accepted: d.accepted, Refused: refusal.Class}
		d.insist(ctx, "put the refusal on record", func() error { return d.recorder.Write(ctx, d.log, refused) })
		return d.leaveLog(ctx)
	}
	logRefusal(d.log, refusal)
	d.cfg.Metrics.refused(refusal.Class)
	d.in.Batch = b
	d.reply = new(submission.Refused(b, d.digest, refusal))
	return d.finish(ctx)
}

// announce tells the start of every call, before anything runs.
func (d *drive) announce() {
	for _, call := range d.machine.Plan().Calls {
		d.publish(messages.Event{
			Type: messages.EventStart, Index: call.Index, CallID: call.ID, Tool: call.PlannedCall.Tool, Kind: call.Kind, Stage: call.Stage,
		})
	}
}

func (d *drive) tell(kind messages.EventType, r messages.Result) {
	r = submission.Slim(r)
	d.publish(messages.Event{Type: kind, Index: r.Index, CallID: r.CallID, Tool: r.Tool, Kind: r.Kind, Attempt: r.Attempt, Worker: r.Worker, Result: &r})
}

func (d *drive) publish(e messages.Event) {
	d.counters[e.Index]++
	e.V, e.Session, e.Batch = messages.Version, d.in.Batch.Session, d.in.Batch.ID
	e.Counter, e.Time = d.counters[e.Index], time.Now()
	if d.machine != nil && e.Index >= 0 {
		e.Stage = d.machine.Plan().Calls[e.Index].Stage
	}
	header := bus.Header{messages.EventHeader: {string(e.Type)}}
	if err := d.conn.Publish(d.names.Of(wire.VerbEvent, d.accepted.Key), header, rawjson.MustMarshal(e)); err != nil {
		d.log.Debug("event lost", "type", e.Type, "err", err)
	}
}

// stopSummary is what the hooks of a batch did, by its results in call order; nil when none of its calls met one. The
// agent is asked to stop where one hook wants it, and told the first one's reason.
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

// ending is what the audit log gets of this batch, whose reply is made.
func (d *drive) ending() audit.Ending {
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
	case d.machine != nil: // given up in the middle
		e.Calls = func(ctx context.Context) ([]audit.Call, error) {
			return d.recorder.Recall(ctx, d.accepted.Key, d.in.Calls, nil)
		}
	}
	return e
}

// ranCalls is what is known of the calls of this batch, which all have ended.
func (d *drive) ranCalls(ctx context.Context) ([]audit.Call, error) {
	calls := make([]audit.Call, len(d.ended))
	for i, r := range d.ended {
		calls[i] = audit.Call{
			Result: r, Input: d.in.Calls[i].Input, ArgsHash: d.ran[i].ArgsHash,
			ToolDigest: cmp.Or(d.ran[i].ToolDigest, d.machine.Plan().Calls[i].ToolDigest),
		}
	}
	return calls, d.recorder.FindInputs(ctx, d.accepted.Key, calls)
}

// auditReplied writes the audit lines of a batch whose reply is stored already. The driver that stored
// the reply may have got no further.
func (c *Coordinator) auditReplied(ctx context.Context, log *slog.Logger, a journal.Accepted, stored []byte) error {
	body, err := c.journal.FullReply(ctx, stored)
	if errors.Is(err, bus.ErrNotFound) || errors.Is(err, bus.ErrCorrupt) {
		log.Error("a large reply is missing in the object store; its audit lines are made from the journal", "err", err)
		body, err = stored, nil
	}
	if err != nil {
		return err
	}
	reply, err := decodeReply(body)
	if err != nil {
		return err
	}
	written, err := c.auditLog.Written(ctx, a.Key, a.Seq, a.Stored, len(reply.Results))
	if err != nil || written {
		return err
	}
	in, _ := submission.Decode(log, a, c.conn.MaxBody()) // a refused batch as far as it can be read
	e := audit.Ending{Accepted: a, Batch: in.Batch, Results: reply.Results, Calls: func(ctx context.Context) ([]audit.Call, error) {
		if len(reply.Results) == 0 {
			return c.recorder.Recall(ctx, a.Key, in.Calls, nil)
		}
		return c.recorder.Recall(ctx, a.Key, in.Calls, reply.Results)
	}}
	if reply.Error != nil {
		e.Refused = reply.Error.Class
	}
	log.Info("the audit lines of a batch are written after its reply")
	return c.recorder.Write(ctx, log, e)
}
