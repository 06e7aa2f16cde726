package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/spans"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// drive is one batch being driven: the shell around its machine. All but delivery belongs to the
// goroutine of run.
type drive struct {
	*Coordinator
	accepted journal.Accepted
	digest   string
	in       submission.Submission
	machine  *batch.Machine
	log      *slog.Logger
	notices  chan wire.Notice
	nudge    chan struct{}
	began    time.Time
	counters map[int]int // events told, by call
	reply    *messages.Reply
	ended    []messages.Result      // of all calls, whole; nil before
	ran      map[int]audit.Ran      // what records say, by call
	said     []journal.ControlEntry // to the session, when we last looked
	fatal    error                  // why the drive cannot go on
	closed   bool                   // its open calls were ended without the machine
	again    bool                   // jobs of the batch may have been published before
	late     bool                   // another coordinator may have driven the batch before, or does now
	synced   map[int]string         // the state in which a question was last announced, by call
	sure     bool                   // the leader was asked what was said since the newest record that we know
	resting  time.Time              // set: the batch only waits for people, until then at most
	resumed  bool                   // somebody drove the batch before, and left records
	spans    *spans.Batch

	mu       sync.Mutex
	delivery *bus.Delivery // of the batch, if it came by one; guarded by mu
	left     bool          // no longer driven; guarded by mu
	told     bool          // others have heard that it is driven; guarded by mu
}

func (c *Coordinator) newDrive(a journal.Accepted, delivery *bus.Delivery) *drive {
	return &drive{
		Coordinator: c, accepted: a, digest: messages.Digest(a.Body), delivery: delivery, began: time.Now(),
		log:     logfields.Batch(context.Background(), c.log, a.Key), // and the trace, once it has begun
		notices: make(chan wire.Notice, 64), nudge: make(chan struct{}, 1), counters: map[int]int{}, synced: map[int]string{}, ran: map[int]audit.Ran{},
	}
}

// adopt takes over a delivery of the batch that came while it is driven. It is the one that keeps the
// batch from being delivered once more; settling any of them takes the batch out of the log. A delivery of another
// place in the log is of a later batch with the same id, whose first was finished elsewhere: that one waits.
func (d *drive) adopt(delivery *bus.Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left || delivery.Seq != d.accepted.Seq {
		d.settle(d.log, delivery.Nak(d.cfg.Poll))
		return
	}
	d.delivery = delivery
}

// letGo hands an unfinished batch back to the log: at once when we are told to end, when it is to be looked at again
// where it waits for people, else after a while that grows, so that a batch that nobody can drive does not go round
// in circles.
func (d *drive) letGo(ctx context.Context, finished bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	if (d.delivery == nil || d.told) && !finished {
		word := wire.LetGo{}
		switch {
		case !d.resting.IsZero():
			word.AfterMS = d.restFor().Milliseconds()
		case d.delivery != nil:
			word.AfterMS = 1 // the broker brings it again
		}
		d.tellColleagues(wire.Notice{Batch: d.accepted.Key.String(), LetGo: &word, Worker: d.id})
	}
	if d.delivery == nil || d.delivery.Settled() {
		return
	}
	wait := bus.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}.Pause(d.delivery.Delivered)
	switch {
	case ctx.Err() != nil:
		wait = 0
	case !d.resting.IsZero():
		wait = d.restFor()
	}
	d.settle(d.log, d.delivery.Nak(wait))
}

// lookSoon has the driver look into the journal now. It does not wait for it.
func (d *drive) lookSoon() {
	select {
	case d.nudge <- struct{}{}:
	default:
	}
}

func (d *drive) inProgress() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.delivery != nil {
		if err := d.delivery.InProgress(); err != nil {
			d.log.Debug("sign of life not sent", "err", err)
		}
	}
}

// run drives the batch to its reply. It reports whether the batch has left the log; if not, somebody else
// has to go on.
func (d *drive) run(ctx context.Context) (finished bool) {
	ctx = d.beginSpans(ctx)
	defer d.endSpans()
	defer d.stayAlive(ctx)()
	err := d.guard(func() error { return d.untilReply(ctx) })
	if err == nil && d.reply == nil { // it rests
		return false
	}
	end := d.finish
	var refusal *messages.Refusal
	switch {
	case errors.As(err, &refusal):
		err = d.guard(func() error { return d.closeUndecoded(ctx) })
		end = func(ctx context.Context) bool { return d.refuse(ctx, d.in.Batch, refusal) }
	case err != nil:
		err = d.guard(func() error { return d.close(ctx, err) })
	}
	if err == nil {
		err = d.guard(func() error { finished = end(ctx); return nil })
	}
	if err != nil { // what stood in the way may have passed by the next try
		d.log.Warn("batch given back; another driver goes on with it", "err", err)
		d.failSpan(ctx)
	}
	return finished
}

// untilReply takes the batch through its life until its reply is made (nil, and d.reply is set) or it rests
// (nil). The error is a *messages.Refusal where the batch cannot be decoded.
func (d *drive) untilReply(ctx context.Context) (err error) {
	if d.in, err = submission.Decode(d.log, d.accepted, d.conn.MaxBody()); err != nil {
		refusal := submission.AsRefusal(err)
		if refusal.Class == messages.ClassSubjectMismatch { // its ids are those of another batch, or anything
			d.in.Batch.ID, d.in.Batch.Session = "", ""
		}
		return refusal
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for d.reply == nil && d.fatal == nil {
		if d.rest(ctx) {
			return nil
		}
		if d.reply != nil || d.fatal != nil { // by what the look before resting has found
			break
		}
		d.setTimer(timer)
		select {
		case n := <-d.notices:
			d.heard(ctx, n)
		case <-timer.C:
			d.step(ctx, batch.Tick{})
		case <-d.nudge:
			d.look(ctx)
		case <-ctx.Done():
			d.fatal = ctx.Err()
		}
	}
	return d.fatal
}

// stayAlive tells the broker that the batch is driven, until it is stopped.
func (d *drive) stayAlive(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	d.sayDriven()
	var signs sync.WaitGroup
	signs.Go(func() {
		ticks := time.NewTicker(d.cfg.AckWait / 3)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				d.inProgress()
				d.sayDriven()
			}
		}
	})
	return func() { cancel(); signs.Wait() }
}

// prepare plans the batch, tells the machine what the journal holds already, and begins.
func (d *drive) prepare(ctx context.Context) error {
	tools, err := d.catalog.planFor(ctx, d.in.Calls, d.cfg.StartWait)
	if err != nil {
		return err
	}
	d.machine = batch.New(plan.New(d.in.Routed(tools), tools), batch.Config{
		Digest: d.digest, Nonce: rand.Text(), Window: d.cfg.Window,
		FirstPoll: min(200*time.Millisecond, d.cfg.Poll), Poll: d.cfg.Poll,
		QueueTimeout: d.cfg.QueueTimeout, Grace: d.cfg.Grace, Poison: d.cfg.Poison, KeepGoing: d.cfg.AfterUnknown == Continue,
		NotAfter: d.conn.Local(ctx, d.notAfter()), Forgets: d.conn.Local(ctx, d.accepted.Stored.Add(3*d.cfg.BatchTTL)), Waits: d.cfg.BatchTTL, Timeout: time.Duration(min(d.in.Batch.TimeoutMS, d.cfg.BatchTTL.Milliseconds())) * time.Millisecond,
	})
	var late bool
	d.resumed, late, err = d.recall(ctx)
	if err != nil {
		return err
	}
	said, err := d.controls(ctx) // after the records: see rest
	if err != nil {
		return err // an abort may have come before the batch: without the controls nothing starts
	}
	for _, event := range said {
		d.machine.Step(d.began, event)
	}
	d.late, d.sure = late, late
	d.spans.Planned(d.in.Batch, d.machine)
	begin := func() { d.step(ctx, batch.Begin{Resumed: d.resumed, Late: late, Again: d.again}) }
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

// notAfter is by the server's clock, and without the time that people were given.
func (d *drive) notAfter() time.Time { return d.accepted.Stored.Add(d.cfg.BatchTTL) }

func (d *drive) setTimer(timer *time.Timer) {
	wait := time.Hour
	if wake, ok := d.machine.Wake(); ok {
		wait = max(time.Until(wake), 0)
	}
	timer.Reset(wait)
}

// step tells the machine and carries out what it wants, in order, and then what it wants because of that.
func (d *drive) step(ctx context.Context, ev batch.Event) {
	heard := []batch.Event{ev}
	wants := d.machine.Step(time.Now(), ev)
	for len(wants) > 0 && d.fatal == nil {
		want := wants[0]
		wants = wants[1:]
		for _, told := range d.perform(ctx, want) {
			heard = append(heard, told)
			wants = append(wants, d.machine.Step(time.Now(), told)...)
		}
	}
	for _, told := range heard {
		switch told := told.(type) {
		case batch.Recorded:
			d.sure = false
			d.syncQuestion(ctx, told.Index)
		case batch.Ended:
			d.syncQuestion(ctx, told.Index)
		}
	}
}

// perform carries out one effect and returns what is to be told of it.
func (d *drive) perform(ctx context.Context, want batch.Effect) []batch.Event {
	switch want := want.(type) {
	case batch.Announce:
		d.announce()
	case batch.Dispatch:
		d.dispatch(ctx, want)
	case batch.StorePlan:
		return d.storePlan(ctx, want)
	case batch.Look:
		return d.lookAll(ctx)
	case batch.End:
		return d.end(ctx, want)
	case batch.Stop:
		d.stop(want)
	case batch.Tell:
		d.spans.EndCall(ctx, want.Result)
		d.tell(messages.EventEnd, want.Result)
	case batch.Finish:
		d.assemble(ctx, want.Results)
	default:
		panic(fmt.Sprintf("coordinator: no way to perform %T", want))
	}
	return nil
}

// dispatch publishes a job and does not wait to hear that it is stored: it is a pointer, and the poll
// publishes it again as long as its call is open. One that is there already is left as it is.
func (d *drive) dispatch(ctx context.Context, want batch.Dispatch) {
	call := d.machine.Plan().Calls[want.Index]
	key := d.accepted.Key.Call(want.Index)
	job := wire.Job{
		V: messages.Version, Tenant: messages.TenantID(key.Tenant), Session: d.in.Batch.Session, Batch: d.in.Batch.ID,
		BodyDigest: d.digest, Index: want.Index, CallID: call.ID, Tool: call.PlannedCall.Tool, ToolDigest: call.ToolDigest,
		Kind: call.Kind, ConcurrencySafe: !want.Exclusive, Input: call.Input, Notify: d.id,
		Dispatch: want.Again, TakeOver: want.TakeOver, Attempt: want.Attempt, QueuedAt: time.Now(), NotAfter: d.notAfter().Add(d.machine.Waits()),
		DeadlineMS: want.Deadline.Milliseconds(), Round: d.in.Batch.Round, Policy: d.cfg.Policy,
	}
	subject := d.names.Lane(want.Exclusive, call.Pool, key)
	header, span := d.spans.SendCall(ctx, call, want)
	defer span.End()
	if err := d.conn.Send(subject, header, rawjson.MustMarshal(job)); err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "job not sent; the poll sends it again", d.call(want.Index), "err", err)
		tracing.Fail(span, string(messages.ClassInternal))
	}
}

// beginSpans begins the spans of the batch. Other goroutines read the log under mu.
func (d *drive) beginSpans(ctx context.Context) context.Context {
	ctx, d.spans = spans.Begin(ctx, spans.Config{Tracer: d.cfg.Tracer, Names: d.names, Coordinator: d.id, Fold: d.catalog.fold}, d.accepted)
	if id := tracing.ID(ctx); id != "" {
		d.mu.Lock()
		d.log = d.log.With("trace_id", id)
		d.mu.Unlock()
	}
	return ctx
}

func (d *drive) endSpans() {
	end := spans.End{Batch: d.in.Batch, Calls: len(d.in.Calls), Resumed: d.resumed, Suspended: !d.resting.IsZero()}
	if d.reply != nil && d.fatal == nil {
		end.Status = d.reply.Status
	}
	d.spans.End(end)
}

// failSpan marks the span of a batch that another driver has to go on with, unless the reason is that
// this coordinator ends.
func (d *drive) failSpan(ctx context.Context) {
	if ctx.Err() == nil {
		d.spans.Fail(messages.ClassInternal)
	}
}

// syncQuestion announces the question of a call while it is open, and withdraws it once it is closed.
// It does so once for each state of the question.
func (d *drive) syncQuestion(ctx context.Context, index int) {
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
		d.publish(messages.Event{Type: messages.EventAwaiting, Index: index, CallID: q.CallID, Tool: q.Tool, Kind: q.Kind, Approval: &pending})
		d.questions.Audit(ctx, key, messages.AuditAsked, *q)
	}
}
