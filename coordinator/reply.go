package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/bus"
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
		d.failTrace(messages.ClassInternal)
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
		recorded <- d.untilDone(ctx, "put the calls on record", func() error { return d.putOnRecord(ctx, d.log, ending) })
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
		d.stuck(ctx)
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
	d.failTrace(refusal.Class)
	if refusal.Class == messages.ClassSubjectMismatch {
		d.refuseAside(d.log, d.accepted, refusal)
		refused := ending{accepted: d.accepted, class: refusal.Class, calls: noCalls}
		d.insist(ctx, "put the refusal on record", func() error { return d.putOnRecord(ctx, d.log, refused) })
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
