package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/approvals"
	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/catalog"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/peers"
	"github.com/toolfleet/toolfleet/coordinator/spans"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// batchRun is one driver of one batch: the shell around its machine. All fields but those under mu
// are owned by the goroutine of run.
type batchRun struct {
	cfg            Config
	conn           *bus.Conn
	names          wire.Names
	journal        *journal.Journal
	recorder       *audit.Recorder
	questions      *approvals.Service
	catalog        *catalog.Catalog
	peers          *peers.Peers
	runs           *runs
	publishRefusal func(*slog.Logger, journal.Accepted, *messages.Refusal)
	id             string       // of the coordinator
	log            *slog.Logger // has the trace once it has begun; replaced under mu

	accepted journal.Accepted
	digest   string // of the batch's body
	began    time.Time
	in       submission.Submission
	machine  *batch.Machine
	spans    *spans.Batch
	notices  chan wire.Notice // from workers
	nudge    chan struct{}    // look into the journal now

	controlsRead []journal.ControlEntry // the controls of the session, as last read
	// sure: records and controls were read from the leader after the newest known record.
	sure      bool
	resumed   bool // an earlier driver has left records
	again     bool // jobs of the batch may have been published before
	late      bool // another coordinator may have driven the batch before, or drives it now
	counters  map[int]int
	synced    map[int]string    // the state in which a question was last announced, by call
	ran       map[int]audit.Ran // what records say of the newest attempt, by call
	ended     []messages.Result // of all calls, with their outputs; nil: not all have ended
	reply     *messages.Reply
	suspended time.Time // set: the batch only waits for people, until then at most
	closed    bool      // the open calls were ended without the machine
	fatal     error     // why the batch cannot be driven on here

	mu       sync.Mutex
	delivery *bus.Delivery // of the batch; nil: it did not come by one; guarded by mu
	left     bool          // the run has ended; guarded by mu
	told     bool          // peers were told that the batch is driven here; guarded by mu
}

func (c *Coordinator) newRun(a journal.Accepted, delivery *bus.Delivery) *batchRun {
	return &batchRun{
		cfg: c.cfg, conn: c.conn, names: c.names, journal: c.journal, recorder: c.recorder, questions: c.questions,
		catalog: c.catalog, peers: c.peers, runs: c.runs, publishRefusal: c.publishRefusal, id: c.id,
		log:      logfields.Batch(context.Background(), c.log, a.Key),
		accepted: a, digest: messages.Digest(a.Body), delivery: delivery, began: time.Now(),
		notices: make(chan wire.Notice, 64), nudge: make(chan struct{}, 1),
		counters: map[int]int{}, synced: map[int]string{}, ran: map[int]audit.Ran{},
	}
}

// run drives the batch to its reply. finished reports whether the batch has left the log; if not,
// another driver has to go on.
func (d *batchRun) run(ctx context.Context) (finished bool) {
	ctx = d.beginSpans(ctx)
	defer d.endSpans()
	defer d.stayAlive(ctx)()
	err := d.guard(func() error { return d.untilReply(ctx) })
	if err == nil && d.reply == nil { // it is suspended
		return false
	}
	end := d.finish
	var refusal *messages.Refusal
	switch {
	case errors.As(err, &refusal):
		err = d.guard(func() error { return d.closeUndecoded(ctx) })
		end = func(ctx context.Context) bool { return d.refuse(ctx, refusal) }
	case err != nil:
		err = d.guard(func() error { return d.close(ctx, err) })
	}
	if err == nil {
		err = d.guard(func() error { finished = end(ctx); return nil })
	}
	if err != nil { // the obstacle may be gone by the next try
		d.log.Warn("the batch goes back to the broker; another driver goes on with it", "err", err)
		d.failSpan(ctx)
	}
	return finished
}

// untilReply takes the batch through its life until its reply is made (nil, and d.reply is set) or it
// is suspended (nil). The error is a *messages.Refusal if the batch cannot be decoded.
func (d *batchRun) untilReply(ctx context.Context) (err error) {
	if d.in, err = submission.Decode(d.log, d.accepted, d.conn.MaxBody()); err != nil {
		refusal := submission.AsRefusal(err)
		if refusal.Class == messages.ClassSubjectMismatch { // its ids may be those of any batch
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
		if d.suspend(ctx) {
			return nil
		}
		if d.reply != nil || d.fatal != nil { // the read before suspending has found the end
			break
		}
		d.setTimer(timer)
		select {
		case n := <-d.notices:
			d.onNotice(ctx, n)
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

func (d *batchRun) setTimer(timer *time.Timer) {
	wait := time.Hour
	if wake, ok := d.machine.Wake(); ok {
		wait = max(time.Until(wake), 0)
	}
	timer.Reset(wait)
}

// lookSoon has the driver look into the journal now. It does not wait for that.
func (d *batchRun) lookSoon() {
	select {
	case d.nudge <- struct{}{}:
	default:
	}
}

// stayAlive tells the broker and the peers that the batch is driven, until stop is called.
func (d *batchRun) stayAlive(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	d.publishRunning()
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
				d.publishRunning()
			}
		}
	})
	return func() { cancel(); signs.Wait() }
}

func (d *batchRun) inProgress() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.delivery != nil {
		if err := d.delivery.InProgress(); err != nil {
			d.log.Debug("a sign of life was not sent; without any the broker delivers the batch again", "err", err)
		}
	}
}

// publishRunning tells the peers of a batch that is driven without a delivery of its own: the broker
// will deliver it to one of them.
func (d *batchRun) publishRunning() {
	d.mu.Lock()
	delivered := d.delivery != nil
	d.told = d.told || !delivered
	d.mu.Unlock()
	if !delivered {
		d.peers.PublishRunning(d.accepted.Key.String())
	}
}

// adopt takes over a delivery of the batch that comes while it is driven. The newest delivery is the
// one that keeps the broker from delivering the batch once more; settling any of them takes the batch
// out of the log. A delivery with another sequence is a later batch with the same id, whose first was
// finished elsewhere: it waits.
func (d *batchRun) adopt(delivery *bus.Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left || delivery.Seq != d.accepted.Seq {
		logUnsettled(d.log, delivery.Nak(d.cfg.Poll))
		return
	}
	d.delivery = delivery
}

// letGo hands an unfinished batch back to the broker: at once when this coordinator ends, until it is
// to be looked at again when it is suspended, and otherwise after a pause that grows, so that a batch
// that nobody can drive does not go round in circles.
func (d *batchRun) letGo(ctx context.Context, finished bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	if (d.delivery == nil || d.told) && !finished {
		let := wire.LetGo{}
		switch {
		case !d.suspended.IsZero():
			let.AfterMS = d.suspendedFor().Milliseconds()
		case d.delivery != nil:
			let.AfterMS = 1 // the broker delivers it again
		}
		d.peers.Publish(wire.Notice{Batch: d.accepted.Key.String(), LetGo: &let, Worker: d.id})
	}
	if d.delivery == nil || d.delivery.Settled() {
		return
	}
	wait := bus.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}.Pause(d.delivery.Delivered)
	switch {
	case ctx.Err() != nil:
		wait = 0
	case !d.suspended.IsZero():
		wait = d.suspendedFor()
	}
	logUnsettled(d.log, d.delivery.Nak(wait))
}

// insistLogEvery is the time between two log lines about the same failure.
const insistLogEvery = time.Minute

// insist repeats what must happen before the batch can go on, until it does, ctx ends, or it never can.
// In the last two cases fatal is set.
func (d *batchRun) insist(ctx context.Context, what string, try func() error) {
	if err := d.retry(ctx, what, try); err != nil {
		d.fatal = err
	}
}

// retry is insist for any goroutine.
func (d *batchRun) retry(ctx context.Context, what string, try func() error) error {
	var logged time.Time // the last log line
	return bus.Retry(ctx, bus.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second, OnFailure: func(err error, _ time.Duration) {
		if time.Since(logged) > insistLogEvery {
			d.log.Log(ctx, logfields.RetryLevel(err), what+" failed; trying again", "err", err)
			logged = time.Now()
		}
	}}, try)
}

// beginSpans begins the spans of the batch. Other goroutines read the log under mu.
func (d *batchRun) beginSpans(ctx context.Context) context.Context {
	ctx, d.spans = spans.Begin(ctx, spans.Config{Tracer: d.cfg.Tracer, Names: d.names, Coordinator: d.id, Fold: d.catalog.Fold}, d.accepted)
	if id := tracing.ID(ctx); id != "" {
		d.mu.Lock()
		d.log = d.log.With("trace_id", id)
		d.mu.Unlock()
	}
	return ctx
}

func (d *batchRun) endSpans() {
	end := spans.End{Batch: d.in.Batch, Calls: len(d.in.Calls), Resumed: d.resumed, Suspended: !d.suspended.IsZero()}
	if d.reply != nil && d.fatal == nil {
		end.Status = d.reply.Status
	}
	d.spans.End(end)
}

// failSpan marks the span of a batch that another driver has to go on with, unless the reason is that
// this coordinator ends.
func (d *batchRun) failSpan(ctx context.Context) {
	if ctx.Err() == nil {
		d.spans.Fail(messages.ClassInternal)
	}
}
