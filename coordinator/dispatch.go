package coordinator

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// prepare plans the batch, gives the machine what the journal already holds, and starts the
// machine with the event Begin.
func (d *batchRun) prepare(ctx context.Context) error {
	calls, tools, err := d.awaitTools(ctx)
	if err != nil {
		return err
	}
	past, err := d.readPast(ctx)
	// If the journal or a queue holds something of a call, the call may have run already. Such
	// a call must not be refused.
	tools.Kept = func(index int) bool { return past.holds(index) || d.jobs.Holding(index) }
	d.machine = batch.New(plan.With(calls, tools), batch.Config{
		Digest: d.digest, Nonce: rand.Text(), Window: d.cfg.Window,
		FirstPoll: d.firstPoll(), Poll: d.cfg.Poll,
		QueueTimeout: d.cfg.QueueTimeout, Unserved: d.cfg.unservedWait(), Grace: d.cfg.Grace, Poison: d.cfg.Poison, KeepGoing: d.cfg.AfterUnknown == Continue,
		NotAfter: d.conn.Local(ctx, d.notAfter()), Forgets: d.conn.Local(ctx, d.accepted.Stored.Add(3*d.cfg.BatchTTL)), Waits: d.cfg.BatchTTL,
		Timeout: time.Duration(min(d.in.Batch.TimeoutMS, d.cfg.BatchTTL.Milliseconds())) * time.Millisecond,
	})
	d.events.plan = d.machine.Plan
	if err != nil {
		return err
	}
	d.recall(ctx, past)
	if !d.resumed {
		// Publish the start event of one call early. While this coordinator reads the
		// controls, the server answers whether anyone listens to events.
		d.events.starts(min(1, len(d.in.Calls)))
	}
	var controls []batch.Event // read after the records, for the reason that askLeader gives
	err = d.retry(ctx, "reading the controls of the session", func() (err error) {
		controls, err = d.controls(ctx)
		return err
	})
	if err != nil {
		return err // an abort may be among the controls, so nothing starts before they are read
	}
	for _, event := range controls {
		d.machine.Step(time.Now(), event)
	}
	d.sure = d.again
	d.spans.Planned(d.in.Batch, d.machine)
	begin := func() {
		d.step(ctx, batch.Begin{Resumed: d.resumed, Late: d.late, Again: d.again, Jobs: d.jobs.Any()})
	}
	if d.resumed {
		d.spans.Replay(begin)
	} else {
		begin()
	}
	for i := range d.in.Calls {
		d.syncQuestion(ctx, i)
	}
	return nil
}

// firstPoll returns how long after a dispatch the machine reads the journal. It is short if
// another coordinator may have published jobs of the batch: workers send the notices about
// those jobs to that coordinator.
func (d *batchRun) firstPoll() time.Duration {
	soon := min(200*time.Millisecond, d.cfg.Poll)
	if d.again {
		return soon
	}
	return d.pace.firstPoll(soon, d.cfg.Poll)
}

// notAfter returns the time after which no call of the batch starts, by the server's clock.
// The machine adds the time that calls wait for people.
func (d *batchRun) notAfter() time.Time { return d.accepted.Stored.Add(d.cfg.BatchTTL) }

// step gives an event to the machine and carries out the effects in order. If an effect
// causes further events, step gives these to the machine too, until there are none.
func (d *batchRun) step(ctx context.Context, ev batch.Event) {
	events := []batch.Event{ev}
	effects := d.session.step(d, time.Now(), ev)
	for len(effects) > 0 && d.fatal == nil {
		effect := effects[0]
		effects = effects[1:]
		for _, next := range d.perform(ctx, effect) {
			events = append(events, next)
			effects = append(effects, d.session.step(d, time.Now(), next)...)
		}
	}
	for _, ev := range events {
		switch ev := ev.(type) {
		case batch.Recorded:
			d.sure = false
			d.syncQuestion(ctx, ev.Index)
		case batch.Ended:
			d.syncQuestion(ctx, ev.Index)
		}
	}
}

// perform carries out one effect and returns the events that it causes.
func (d *batchRun) perform(ctx context.Context, effect batch.Effect) []batch.Event {
	switch effect := effect.(type) {
	case batch.Announce:
		d.events.starts(len(d.in.Calls))
	case batch.Dispatch:
		return d.dispatch(ctx, effect)
	case batch.StorePlan:
		return d.storePlan(ctx, effect)
	case batch.Look:
		d.recheck = true
		return d.lookAll(ctx)
	case batch.End:
		return d.end(ctx, effect)
	case batch.Stop:
		d.stop(effect)
	case batch.Tell:
		d.jobs.Forget(effect.Result.Index)
		d.spans.EndCall(ctx, effect.Result)
		d.events.result(messages.EventEnd, effect.Result)
	case batch.Finish:
		d.assemble(ctx, effect.Results)
	default:
		panic(fmt.Sprintf("coordinator: no way to perform %T", effect))
	}
	return nil
}

// dispatch publishes a job and does not wait for the acknowledgement. A lost job does no harm:
// while its call is open, the poll publishes the job again. A duplicate does no harm either:
// the broker refuses a job that is already queued.
func (d *batchRun) dispatch(ctx context.Context, want batch.Dispatch) []batch.Event {
	call := d.machine.Plan().Calls[want.Index]
	key := d.accepted.Key.Call(want.Index)
	events, gone := d.gone(want.Index)
	if gone {
		return events
	}
	tool := d.ask(want.Index)
	queue, placed := d.jobs.For(ctx, time.Now(), want.Index)
	// An empty queue means that an older job may still be in another queue. The next poll
	// looks again.
	if events = append(events, placed...); queue == "" {
		return events
	}
	job := wire.Job{
		V: messages.Version, Tenant: messages.TenantID(key.Tenant), Session: d.in.Batch.Session, Batch: d.in.Batch.ID,
		BodyDigest: d.digest, Index: want.Index, CallID: call.ID, Tool: call.PlannedCall.Tool, ToolDigest: tool.Digest,
		Kind: call.Kind, ConcurrencySafe: !want.Exclusive, Input: call.Input, Notify: d.id,
		Dispatch: want.Again, TakeOver: want.TakeOver, Attempt: want.Attempt, QueuedAt: time.Now(), NotAfter: d.notAfter().Add(d.machine.Waits()),
		DeadlineMS: want.Deadline.Milliseconds(), Round: d.in.Batch.Round, Policy: d.cfg.Policy,
		User: d.user, Labels: d.in.Batch.Labels,
		Unwatched: d.events.unwatched(),
	}
	if want.Again == 0 {
		d.sent[want.Index] = job.QueuedAt
	}
	subject := d.names.Lane(want.Exclusive, queue, key)
	header, span := d.spans.SendCall(ctx, call, want)
	defer span.End()
	if err := d.conn.Send(subject, header, wire.Encode(job)); err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "a job was not sent; the next poll sends it again", d.callAttr(want.Index), "err", err)
		tracing.Fail(span, string(messages.ClassInternal))
	}
	return events
}

// syncQuestion lists the question of a call while the question is open, and withdraws it when
// it is closed. It does nothing if it has handled this state of the question before.
func (d *batchRun) syncQuestion(ctx context.Context, index int) {
	q, open := d.machine.Question(index)
	if q == nil {
		return
	}
	state := fmt.Sprint(q.ID, q.Asked.UnixNano(), len(q.Decisions), open)
	if d.synced[index] == state {
		return
	}
	d.synced[index] = state
	key := d.accepted.Key.Call(index)
	if !open {
		d.questions.Withdraw(ctx, key, q.CallID, d.machine.Answer(index))
		return
	}
	if d.questions.List(ctx, key, *q) {
		pending := d.in.ForAgents(*q)
		d.events.publish(messages.Event{Type: messages.EventAwaiting, Index: index, CallID: q.CallID, Tool: q.Tool, Kind: q.Kind, Approval: &pending})
		d.questions.Audit(ctx, key, messages.AuditAsked, *q)
	}
}
