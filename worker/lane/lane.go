// Package lane takes jobs from the lanes of a pool, the shared read queue and the sessions' write
// subjects, and sees each to its end:
//
//	delivery -> look into the journal -> run (claim on the way, if it may change the world)
//	         -> store the result -> tell the coordinator -> settle
//
// A call that a person has to allow first is parked: the question is written to its journal, the job is settled, and
// nothing of it stays here. The coordinator publishes it again when somebody has answered.
//
// A delivery proves nothing but that somebody should look. What was claimed and what ended stands in the
// journal, and only there. So a job may be delivered twice, late, or to a worker that was thought dead:
// a call that claims is run by the holder of the newest claim, whose lease it renews while it runs and
// without which it kills its tool; a call that does not claim may run twice, and its first stored result
// counts. An attempt that failed without harm, and one that the worker has to give up because it goes away, is
// released for another.
//
// How a tool is run is left to Tools; what to start and in which order, to the coordinator.
package lane

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

// Tools runs calls. The worker's pipeline is one.
type Tools interface {
	// Serves is how the job's tool is served here. Not ok: it is not, or not under the very definition that the job
	// was planned with.
	Serves(job messages.Job) (service Service, ok bool)
	// Run takes the call through its phases. Prior is the record that the job takes over from, nil for a call that
	// begins: an input that is frozen in it stays as it is. Run calls claim, once, right before the tool is started,
	// and passes on its error. A call that must run alone and was planned otherwise is a *HandBack error, and one that
	// a person has to allow first an *Ask error. Tell hears of events and fills in what they are about. When
	// ctx ends the cause is a *messages.Stop where the call shall end aborted; else the worker goes away or has lost
	// its claim: a call that may run again, or never started, then ends with an error.
	Run(ctx context.Context, job messages.Job, prior *messages.CallRecord, claim Claim, tell func(messages.Event)) (messages.Result, error)
}

// Service is what the lane has to know about a tool.
type Service struct {
	Claims   bool                                // its runs are claimed: it may change the world
	Attempts int                                 // runs of one call in all, where one failed and another may do better
	Backoff  func(attempt int) (b time.Duration) // the pause after that attempt
}

// HandBack is the error of a call that was planned to run beside others and must run alone.
type HandBack struct{ ArgsHash, Reason string }

func (h *HandBack) Error() string { return "must run alone: " + h.Reason }

// Ask is the error of a call that a person has to allow before it runs.
type Ask struct {
	Approval messages.Approval // the question, all but when it is asked and when it expires
	Hooks    *messages.Hooks   // what the hooks before the tool did; they are not run again
	ArgsHash string
}

func (a *Ask) Error() string { return "a person has to allow it: " + a.Approval.Rule }

// Claim marks in the journal that the call is now started.
type Claim func(ctx context.Context, want Want) (Held, error)

// Want is what a claim says about the run.
type Want struct {
	ArgsHash string
	Input    json.RawMessage // the frozen input, where it is not the job's
	Hooks    *messages.Hooks // what the hooks before the tool did; they are not run again
	// Permission is what was decided about it.
	Permission *messages.Permission
	OnCrash    messages.OnCrash
	Deadline   time.Duration
}

// Held is a claim that was won, or, for a call that does not claim, how often it was delivered.
type Held struct {
	Attempt int
	Fence   uint64
	Probe   bool // an attempt before this one was lost: ask the tool whether it was applied before running it again
}

// ErrLeaseLost is the cause with which a run is cancelled that can no longer prove its claim.
var ErrLeaseLost = errors.New("the lease on this call could not be renewed")

// ErrDraining is the cause with which a run is cancelled that did not end in the time that a worker has for its end.
var ErrDraining = errors.New("the worker is shutting down")

// errNotMine ends a run whose call turned out to be somebody else's, or over.
var errNotMine = errors.New("the call is claimed by another worker or has ended")

// Config is the tunables of a Consumer.
type Config struct {
	Worker  string        // our name in records and events
	AckWait time.Duration // how long the broker waits for a sign of life; one is given every third of it. Default 10 s
	Lease   time.Duration // how long a claim holds without renewal. Default 10 s
	// Grace is subtracted from a lease on our side (and added on the others'): the tool is dead by then. Default 2 s
	Grace time.Duration
	// ApprovalTTL is how long people have to answer a question. Default 15 min
	ApprovalTTL time.Duration
	Drain       time.Duration // how long running calls may go on after Run was told to end. Default 30 s
	// Hurry ends the drain at once when it is closed: running tools are stopped and their calls given up. May be nil.
	Hurry <-chan struct{}
	// LastWords is how long it may take to store what became of a call after the drain. Default 5 s
	LastWords time.Duration
	Poison    int          // deliveries of one job that may be lost with their worker before it is given up. Default 5
	Slots     int          // how many calls of one pool may run here at once. Default 10
	Logger    *slog.Logger // nil: silent
	// Observe is told of every call that was brought to an end here, in the context of its attempt. May be nil.
	Observe func(ctx context.Context, pool string, r messages.Result)
	// Count is told of what is worth being counted. It may be called from many goroutines. May be nil.
	Count func(what Count, pool string)
	// Tracer makes a span for each attempt. Nil: none, and the context of whoever asked is handed on.
	Tracer trace.Tracer
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	def(&c.AckWait, 10*time.Second)
	def(&c.Lease, 10*time.Second)
	def(&c.Grace, min(2*time.Second, c.Lease/5))
	def(&c.ApprovalTTL, 15*time.Minute)
	def(&c.Drain, 30*time.Second)
	def(&c.LastWords, 5*time.Second)
	if c.Poison <= 0 {
		c.Poison = 5
	}
	if c.Slots <= 0 {
		c.Slots = 10
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		c.Observe = func(context.Context, string, messages.Result) {}
	}
	if c.Count == nil {
		c.Count = func(Count, string) {}
	}
	return c
}

// Consumer takes jobs of the pools it is given, never more of one at once than it has slots.
type Consumer struct {
	conn    *bus.Conn
	journal *journal.Journal
	tools   Tools
	cfg     Config
	log     *slog.Logger
	busy    atomic.Int64 // calls in hand

	mu     sync.Mutex
	inHand map[*attempt]struct{} // guarded by mu
}

// New is a consumer that hands jobs to tools.
func New(conn *bus.Conn, tools Tools, cfg Config) *Consumer {
	cfg = cfg.withDefaults()
	return &Consumer{conn: conn, journal: journal.New(conn), tools: tools, cfg: cfg, log: cfg.Logger, inHand: map[*attempt]struct{}{}}
}

// Busy is how many calls are in hand now.
func (c *Consumer) Busy() int { return int(c.busy.Load()) }

// Run takes jobs of the pools until ctx ends. Then it takes no more, gives the running ones Config.Drain
// to end, stops those that have not, and gives their calls up for others to take, as far as their tools allow.
func (c *Consumer) Run(ctx context.Context, pools []string) error {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	ctx, stopPulling := context.WithCancel(ctx)
	defer stopPulling()
	ended := make(chan struct{})
	defer close(ended)
	stop := context.AfterFunc(ctx, func() {
		c.log.Info("draining", "calls", c.Busy(), "for", c.cfg.Drain)
		drain := time.NewTimer(c.cfg.Drain)
		defer drain.Stop()
		select {
		case <-drain.C:
		case <-c.cfg.Hurry:
		case <-ended:
		}
		cancel(ErrDraining)
	})
	defer stop()
	unsubscribe, err := c.conn.Subscribe(c.conn.Names().All(messages.VerbStop), "", c.stop)
	if err != nil {
		return err
	}
	defer unsubscribe()

	var pullers sync.WaitGroup
	errs := make([]error, len(pools))
	for i, pool := range pools {
		pullers.Go(func() {
			slots := bus.NewSlots(c.cfg.Slots)
			p := c.conn.Puller(c.conn.Names().Stream(bus.Jobs), pool)
			err := p.Run(ctx, slots, func(d *bus.Delivery) { c.handle(work, pool, d) })
			if err != nil {
				stopPulling()
			}
			errs[i] = errors.Join(err, slots.Wait(context.WithoutCancel(ctx)))
		})
	}
	pullers.Wait()
	return errors.Join(errs...)
}

// handle sees one delivery to its end. It is settled on every path but one: when nothing could be stored, or the call
// runs elsewhere, the broker shall deliver it again.
func (c *Consumer) handle(ctx context.Context, pool string, d *bus.Delivery) {
	c.busy.Add(1)
	defer c.busy.Add(-1)
	c.cfg.Count(Taken, pool)
	defer c.cfg.Count(Left, pool)
	if d.Delivered > 1 {
		c.cfg.Count(Redelivered, pool)
	}
	job, key, err := c.read(d)
	if err != nil {
		c.bury(ctx, d, fmt.Errorf("a job that cannot be read: %w", err))
		return
	}
	ctx = tracing.Extract(ctx, d.Header)
	log := c.about(ctx, key, job)
	service, served := c.tools.Serves(job)
	a := &attempt{
		Consumer: c, log: log, pool: pool, d: d, job: job, key: key, service: service, nonce: rand.Text(), runs: job.Attempt + d.Delivered, notify: job.Notify, began: time.Now(),
	}
	switch {
	case !served:
		c.settle(log, a.bounce(ctx))
		return
	case c.conn.Now(ctx).After(job.NotAfter):
		c.settle(log, d.Term("the batch outlived its time"))
		return
	}
	a.waited = max(c.conn.Now(ctx).Sub(d.Time), 0)
	if job.DeadlineMS > 0 { // the time of the batch went on meanwhile
		a.job.DeadlineMS = max(job.DeadlineMS-a.waited.Milliseconds(), 1)
	}
	a.running, a.cancel = context.WithCancelCause(ctx)
	defer a.cancel(nil)
	a.kept, a.lapse = context.WithCancel(context.WithoutCancel(ctx))
	defer a.lapse()
	if !c.enter(a) {
		return
	}
	settle, err := a.run(ctx)
	newest := c.leave(a)
	if err != nil {
		a.log.Error("call not brought to an end here", "err", err)
	}
	if settle != nil {
		c.settle(a.log, settle(newest))
	}
}

// read is the job in a delivery.
func (c *Consumer) read(d *bus.Delivery) (job messages.Job, key messages.CallKey, err error) {
	_, key, err = c.conn.Names().Call(afterPool(d.Subject))
	if err == nil {
		err = json.Unmarshal(d.Data, &job)
	}
	if err == nil && key != messages.KeyOf(string(job.Tenant), job.Session, job.Batch).Call(job.Index) {
		err = errors.New("its ids are not those of its subject")
	}
	return job, key, err
}

// enter takes an attempt in hand. One of the same call that is in hand already takes its delivery instead: the broker
// has delivered again what was never lost.
func (c *Consumer) enter(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.inHand {
		if other.key == a.key && other.job.TakeOver == a.job.TakeOver && other.job.ConcurrencySafe == a.job.ConcurrencySafe {
			other.mu.Lock()
			other.d, other.notify = a.d, a.job.Notify
			other.mu.Unlock()
			return false
		}
	}
	c.inHand[a] = struct{}{}
	return true
}

// leave gives an attempt out of hand, and is the delivery that is to be settled.
func (c *Consumer) leave(a *attempt) *bus.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inHand, a)
	return a.delivery()
}

// stop ends the runs of a call that nobody wants any more.
func (c *Consumer) stop(m bus.Msg) {
	why := &messages.Stop{}
	_, key, err := c.conn.Names().Call(m.Subject)
	if err == nil {
		err = json.Unmarshal(m.Data, why)
	}
	if err != nil {
		c.log.Warn("a stop that cannot be read", "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := range c.inHand {
		if a.key == key {
			a.cancel(why)
		}
	}
}

// bury sets aside what nobody can process, with its reason, so that it blocks nothing and is not forgotten.
func (c *Consumer) bury(ctx context.Context, d *bus.Delivery, reason error) {
	c.log.Error("set aside", "subject", d.Subject, "err", reason)
	if err := c.journal.Bury(ctx, d.Msg, reason.Error()); err != nil {
		c.log.Error("could not be set aside; it will come again", "subject", d.Subject, "err", err)
		return
	}
	c.settle(c.log, d.Term(reason.Error()))
}

func (c *Consumer) settle(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("delivery not settled; it will come again and be found done", "err", err)
	}
}

// afterPool takes the pool out of a job's subject: <prefix>.read.<pool>.<t>.<s>.<b>.<i>.
func afterPool(subject string) string {
	parts := strings.Split(subject, ".")
	n := len(parts) - 5 // where the pool stands
	if n < 1 {
		return subject
	}
	return strings.Join(append(parts[:n:n], parts[n+1:]...), ".")
}
