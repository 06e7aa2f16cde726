package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/announced"
	"github.com/toolfleet/toolfleet/coordinator/approvals"
	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/catalogue"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/spans"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// batchRun drives one batch: it carries out the effects of the batch's machine. Its fields
// belong to the goroutine of run, except lease, notices and nudge, which other goroutines use
// too.
type batchRun struct {
	cfg            Config
	conn           *bus.Conn
	names          wire.Names
	journal        *journal.Journal
	recorder       *audit.Recorder
	questions      *approvals.Service
	announced      *announced.Tools
	catalogues     *catalogue.Store
	toolsets       *toolsets
	runs           *runs
	pace           *pace
	publishRefusal func(*slog.Logger, journal.Accepted, *messages.Refusal)
	id             string       // of this coordinator
	log            *slog.Logger // has the trace id once the spans have begun

	accepted journal.Accepted
	came     time.Time // when this coordinator received the batch
	digest   string    // of the batch's body
	user     string    // the user of the tenant who asks for the batch; "" if not known
	in       submission.Submission
	// the catalogue that the batch names; nil if the batch names none or an unknown one
	named   *schemas.Catalog
	machine *batch.Machine
	spans   *spans.Batch
	events  *events
	queue   queue
	lease   *lease
	notices chan wire.Notice // from workers
	nudge   chan struct{}    // asks run to read the journal now
	turned  chan struct{}    // signals that the turn of the batch has changed
	waits   atomic.Bool      // the batch waits for an earlier batch, so its machine has not begun
	// workersChanged gets a signal when workers have come or gone. Then jobs may be in the
	// wrong queue.
	workersChanged chan struct{}
	session        *sessionRun
	place          *place // nil for the first batch of the session; owned by the session's run
	finished       bool   // the batch has left the log; set when run has ended

	turn batch.Turn // the newest turn that the machine got

	jobs    *placement.Jobs      // nil until the batch is decoded
	asked   map[int]toolset.Tool // by call: the tool in its last job
	sent    map[int]time.Time    // by call: when its first job was published
	missed  map[int]time.Time    // by call: since when no worker serves its version
	recheck bool                 // whether to check that the jobs are in the right queues

	controlsRead []journal.ControlEntry // the session's controls when they were last read
	// sure means that the records of the batch and the controls of the session were read from
	// the stream's leader, and that nothing new has become known since.
	sure      bool
	first     bool              // no coordinator is known to have driven the batch before this run
	resumed   bool              // an earlier driver has left records
	again     bool              // jobs of the batch may have been published before this run
	late      bool              // another coordinator may drive the batch, or has driven it
	synced    map[int]string    // by call: the last state in which its question was announced
	ran       map[int]audit.Ran // by call: what the records say about its newest attempt
	ended     []messages.Result // the results of all calls, with outputs; nil until all have ended
	reply     *messages.Reply
	suspended time.Time // the latest time to resume a suspended batch; zero if it is not suspended
	closed    bool      // close has ended the open calls
	fatal     error     // why this coordinator cannot continue the batch
}

func (c *Coordinator) newRun(s *sessionRun, a journal.Accepted, delivery *pull.Delivery) *batchRun {
	log := logfields.Batch(context.Background(), c.log, a.Key)
	came := time.Now()
	if delivery != nil {
		came = delivery.Received
	}
	d := &batchRun{
		cfg: c.cfg, conn: c.conn, names: c.names, journal: c.journal, recorder: c.recorder, questions: c.questions,
		announced: c.announced, catalogues: c.catalogues, runs: c.runs, pace: c.pace, publishRefusal: c.publishRefusal, id: c.id,
		log:      log,
		accepted: a, came: came, digest: messages.Digest(a.Body),
		lease:   &lease{peers: c.peers, cfg: c.cfg, id: c.id, accepted: a, log: log, delivery: delivery},
		events:  &events{conn: c.conn, audience: c.audience, subject: c.names.Of(wire.VerbEvent, a.Key), log: log, tenant: messages.TenantID(a.Key.Tenant), counters: map[int]int{}},
		queue:   queue{c.conn, a.Key, c.delivered},
		notices: make(chan wire.Notice, 64), nudge: make(chan struct{}, 1), turned: make(chan struct{}, 1), workersChanged: make(chan struct{}, 1),
		asked: map[int]toolset.Tool{}, sent: map[int]time.Time{}, missed: map[int]time.Time{}, toolsets: c.toolsets, session: s, synced: map[int]string{}, ran: map[int]audit.Ran{},
		user: c.userOf(a),
	}
	d.events.user = d.user
	return d
}

// userOf returns the user who asks for a batch. It returns "" unless an HTTP server of the
// fleet has signed the name.
func (c *Coordinator) userOf(a journal.Accepted) string {
	header := bus.Header(a.Header).Get(messages.PrincipalHeader)
	if header == "" {
		return ""
	}
	user, err := principal.User(header, messages.Digest(a.Body), messages.TenantID(a.Key.Tenant), c.cfg.HTTPKeys)
	if err != nil {
		logfields.Batch(context.Background(), c.log, a.Key).Warn("the batch says who asks for it, and that is not believed; only its tenant is known", "err", err)
	}
	return user
}

// run drives the batch to its reply. finished reports whether the batch has left the log. If
// finished is false, another driver has to continue.
func (d *batchRun) run(ctx context.Context) (finished bool) {
	ctx = d.beginSpans(ctx)
	defer d.endSpans()
	defer d.lease.keep(ctx)()
	defer func() { d.leaveQueues(ctx, finished) }()
	err := guard(d.log, func() error { return d.untilReply(ctx) })
	if err == nil && d.reply == nil { // the batch is suspended
		return false
	}
	end := d.finish
	var refusal *messages.Refusal
	switch {
	case errors.As(err, &refusal):
		err = guard(d.log, func() error { return d.closeUndecoded(ctx) })
		end = func(ctx context.Context) bool { return d.refuse(ctx, refusal) }
	case err != nil:
		err = guard(d.log, func() error { return d.close(ctx, err) })
	}
	if err == nil {
		err = guard(d.log, func() error { finished = end(ctx); return nil })
	}
	if err != nil { // the next driver may have no such error
		d.log.Warn("the batch goes back to the broker; another driver goes on with it", "err", err)
		d.failSpan(ctx)
	}
	return finished
}

// untilReply drives the batch until d.reply is set or the batch is suspended. If the batch
// cannot be decoded, the error is a *messages.Refusal.
func (d *batchRun) untilReply(ctx context.Context) (err error) {
	if d.in, err = submission.Decode(d.log, d.accepted, d.conn.MaxBody()); err != nil {
		refusal := submission.AsRefusal(err)
		if refusal.Class == messages.ClassSubjectMismatch { // its ids may belong to another batch
			d.in.Batch.ID, d.in.Batch.Session = "", ""
		}
		d.events.in = d.in.Batch
		return refusal
	}
	d.events.in, d.jobs = d.in.Batch, d.newJobs()
	if err := d.loadCatalogue(ctx); err != nil {
		return err
	}
	if err := d.awaitTurn(ctx); err != nil || !d.suspended.IsZero() {
		return err
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
		if d.reply != nil || d.fatal != nil { // suspend may have read something that ends the batch
			break
		}
		wait := time.Hour
		if wake, ok := d.machine.Wake(); ok {
			wait = max(time.Until(wake), 0)
		}
		timer.Reset(wait)
		var act func()
		select {
		case n := <-d.notices:
			act = func() { d.onNotice(ctx, n) }
		case <-timer.C:
			act = func() { d.step(ctx, batch.Tick{}) }
		case <-d.turned: // step itself reads the changed turn
			act = func() { d.step(ctx, batch.Tick{}) }
		case <-d.nudge:
			act = func() { d.look(ctx) }
		case <-d.workersChanged:
			act = func() { d.moveJobs(ctx) }
		case <-d.session.quiet:
			d.suspended = d.session.suspendedUntil()
			return nil
		case <-ctx.Done():
			act = func() { d.fatal = ctx.Err() }
		}
		if !d.session.wake(d) {
			d.suspended = d.session.suspendedUntil()
			return nil
		}
		act()
		if d.recheck && d.reply == nil && d.fatal == nil {
			d.recheck = false
			d.moveJobs(ctx)
		}
	}
	return d.fatal
}

// awaitTurn waits until a call of the batch may start. It returns earlier if the session is
// suspended. It also returns if no call should start any more: the batch was aborted or
// steered, or is too old.
func (d *batchRun) awaitTurn(ctx context.Context) error {
	if len(d.in.Calls) == 0 || d.mayStart() {
		return nil
	}
	d.waits.Store(true)
	defer d.waits.Store(false)
	// Tools may still be announced. If they cannot be read, the next poll tries again.
	if _, err := d.announced.For(ctx, d.accepted.Key.Tenant, d.in.Calls, d.cfg.StartWait); err != nil && ctx.Err() != nil {
		return err
	}
	d.session.waits(d, d.beginsSafe())
	if d.unwanted(ctx) {
		return nil
	}
	end := d.conn.Local(ctx, d.notAfter())
	expired := time.NewTimer(time.Until(end))
	defer expired.Stop()
	for !d.mayStart() {
		if time.Now().Before(end) && d.session.rest(d, end) {
			d.suspended = d.session.suspendedUntil()
			return nil
		}
		unwanted := false
		select {
		case <-d.turned:
		case <-d.notices: // about a job of an earlier driver; the journal has the same news
		case <-d.nudge:
			unwanted = d.unwanted(ctx)
			d.session.waits(d, d.beginsSafe())
		case <-d.workersChanged:
			d.session.waits(d, d.beginsSafe())
		case <-expired.C:
			unwanted = true
		case <-d.session.quiet:
			d.suspended = d.session.suspendedUntil()
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		if !d.session.wake(d) {
			d.suspended = d.session.suspendedUntil()
			return nil
		}
		if unwanted {
			return nil
		}
	}
	return nil
}

// unwanted reports whether an abort or a steering message ends calls of the batch. If the
// session's controls cannot be read, it returns false, and the next poll of the session tries
// again.
func (d *batchRun) unwanted(ctx context.Context) bool {
	controls, err := d.controls(ctx)
	if err != nil {
		d.log.Debug("the controls of the session cannot be read; trying again at the next poll", "err", err)
	}
	return err == nil && len(controls) > 0
}

// mayStart reports whether a call of the batch may start, judged by the tools that are
// announced now. The plan itself is made later, when the first call may start.
func (d *batchRun) mayStart() bool {
	switch d.session.turnOf(d) {
	case batch.Everything:
		return true
	case batch.SafeCalls:
		return d.beginsSafe()
	}
	return false
}

// beginsSafe reports whether the first call that is not refused may run beside other calls.
func (d *batchRun) beginsSafe() bool {
	tools := d.announced.Of(d.accepted.Key.Tenant)
	calls := d.in.Routed(tools)
	for i := range calls {
		if p := plan.With(calls[i:i+1], d.tools(tools)).Calls[0]; p.Refused == nil {
			return p.ConcurrencySafe
		}
	}
	return false
}

// lookSoon asks the goroutine that drives the batch to read the journal. It returns at
// once.
func (d *batchRun) lookSoon() {
	select {
	case d.nudge <- struct{}{}:
	default:
	}
}

// insistLogEvery is the time between two log lines about the same failure.
const insistLogEvery = time.Minute

// insist repeats try until it succeeds, ctx ends, or the error is final. In the last two
// cases it sets d.fatal, because the batch cannot go on without this step.
func (d *batchRun) insist(ctx context.Context, what string, try func() error) {
	if err := d.retry(ctx, what, try); err != nil {
		d.fatal = err
	}
}

// retry is like insist, but it returns the error and leaves d.fatal unchanged. Any goroutine
// may use it.
func (d *batchRun) retry(ctx context.Context, what string, try func() error) error {
	var logged time.Time // the last log line
	return bus.Retry(ctx, bus.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second, OnFailure: func(err error, _ time.Duration) {
		if time.Since(logged) > insistLogEvery {
			d.log.Log(ctx, logfields.RetryLevel(err), what+" failed; trying again", "err", err)
			logged = time.Now()
		}
	}}, try)
}

// beginSpans begins the spans of the batch.
func (d *batchRun) beginSpans(ctx context.Context) context.Context {
	ctx, d.spans = spans.Begin(ctx, spans.Config{Tracer: d.cfg.Tracer, Names: d.names, Coordinator: d.id, Fold: d.announced.Fold}, d.accepted)
	if id := tracing.ID(ctx); id != "" {
		d.log = d.log.With("trace_id", id)
		d.events.log = d.log
		d.lease.setLog(d.log)
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

// failSpan marks the span of a batch as failed when another driver has to continue the batch.
// It does nothing if the reason is that this coordinator shuts down.
func (d *batchRun) failSpan(ctx context.Context) {
	if ctx.Err() == nil {
		d.spans.Fail(messages.ClassInternal)
	}
}

// callAttr names a call of the batch in a log line.
func (d *batchRun) callAttr(index int) slog.Attr { return logfields.Attr(d.in.Calls[index].ID, index) }
