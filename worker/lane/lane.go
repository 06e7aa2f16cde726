// Package lane takes jobs from the lanes of a pool (the shared read queue and the sessions' write
// subjects) and brings each to its end:
//
//	delivery -> look into the journal -> run (claim on the way, if it may change the world)
//	         -> store the result -> notify the coordinator -> settle
//
// A call that a person has to allow first is parked. Its question is written to its journal, its
// job is settled, and the worker keeps nothing of it. The coordinator publishes the job again after
// an answer.
//
// A delivery is only a hint to look. Claims and ends stand in the journal, and only there. So a job
// may be delivered twice, late, or to a worker that was thought dead:
//
//   - A call that claims is run by the holder of the newest claim. The holder renews its lease
//     while the tool runs, and kills the tool when it cannot.
//   - A call that does not claim may run twice. Its first stored result counts.
//
// An attempt is released for another when it failed without harm, or when the worker shuts down and
// has to give it up.
//
// Package attempt decides all of this. The lane carries it out: it pulls jobs, tells the machine of
// each attempt what happens, asks the journal, starts the phases and settles. Tools runs the tool.
// The coordinator decides what to start and in which order.
package lane

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	jitter "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Tools runs calls. The worker's pipeline is one.
type Tools interface {
	// Serves returns how the job's tool is served here. ok is false when it is not served, or not
	// under the exact definition that the job was planned with.
	Serves(job wire.Job) (service Service, ok bool)
	// Run takes the call through its phases. prior is the record that the job takes over from, and
	// nil for a call that begins; a frozen input in it stays as it is. Run calls claim once, right
	// before the tool is started, and returns its error. It returns a *call.HandBack for a call
	// that was planned to run beside others and must run alone, and a *call.Ask for a call that a
	// person has to allow first. tell receives events and fills in their ids.
	//
	// When ctx ends with a *wire.Stop as its cause, the call ends as stopped, with a result.
	// With any other cause the worker shuts down or has lost its claim: Run then returns an error
	// if the call may run again or never started.
	Run(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim, tell func(messages.Event)) (messages.Result, error)
}

// Service is what the lane has to know about a tool.
type Service struct {
	Claims bool // it may change the world, so its runs are claimed
	// Attempts bounds the runs of one call, when one failed and another may succeed.
	Attempts int
	Backoff  func(attempt int) (b time.Duration) // the pause after that attempt
}

// Config holds the tunables of a Consumer.
type Config struct {
	Worker string // this worker's name in records and events
	// AckWait is how long the broker waits for a sign of life. It gets one every third of AckWait.
	// Default 10 s.
	AckWait time.Duration
	Lease   time.Duration // how long a claim holds without renewal. Default 10 s
	// Grace is subtracted from a lease here: the tool is dead by then. The coordinator adds a grace
	// of its own before it treats a claim as lapsed. Default 2 s, but at most a fifth of Lease.
	Grace time.Duration
	// ApprovalTTL is how long people have to answer a question. Default 15 min
	ApprovalTTL time.Duration
	// Drain is how long running calls may go on after the context of Run has ended. Default 30 s.
	Drain time.Duration
	// Hurry ends the drain at once when it is closed: running tools are stopped and their calls are
	// given up. May be nil.
	Hurry <-chan struct{}
	// LastWords is how long storing the end of a call may take after the drain. Default 5 s
	LastWords time.Duration
	// Poison is how many deliveries of one job may be lost with their worker before the call fails.
	// Default 5.
	Poison int
	Slots  int          // how many calls of one pool may run here at once. Default 10
	Logger *slog.Logger // nil: silent
	// Observe is called for every call that ended here, in the context of its attempt. May be nil.
	Observe func(ctx context.Context, pool string, r messages.Result)
	// Count is called for each counted event, possibly from many goroutines. May be nil.
	Count func(what Count, pool string)
	// Tracer makes a span for each attempt. Nil: no spans, and the trace context of the delivery is
	// passed on.
	Tracer trace.Tracer
}

// DefaultConfig returns the values that stand for fields that are zero. The default of Grace
// follows from Lease: see [journal.DefaultGrace].
func DefaultConfig() Config {
	return Config{
		AckWait: provision.DefaultAckWait, Lease: journal.DefaultLease, ApprovalTTL: 15 * time.Minute,
		Drain: 30 * time.Second, LastWords: 5 * time.Second, Poison: journal.DefaultPoison, Slots: 10,
	}
}

func (c Config) withDefaults() Config {
	standard := DefaultConfig()
	def := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	def(&c.AckWait, standard.AckWait)
	def(&c.Lease, standard.Lease)
	def(&c.Grace, journal.DefaultGrace(c.Lease))
	def(&c.ApprovalTTL, standard.ApprovalTTL)
	def(&c.Drain, standard.Drain)
	def(&c.LastWords, standard.LastWords)
	if c.Poison <= 0 {
		c.Poison = standard.Poison
	}
	if c.Slots <= 0 {
		c.Slots = standard.Slots
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

// Consumer takes jobs of the pools it is given. It never has more jobs of a pool at once than
// slots.
type Consumer struct {
	conn    *bus.Conn
	journal *journal.Journal
	tools   Tools
	cfg     Config
	log     *slog.Logger
	busy    atomic.Int64 // calls in hand

	mu     sync.Mutex
	inHand map[*running]struct{} // guarded by mu
	stops  []earlyStop           // of the last AckWait, the oldest first; guarded by mu
}

// earlyStop is a stop that was heard, and when. The job of its call may be on its way to this
// worker.
type earlyStop struct {
	key wire.CallKey
	why wire.Stop
	at  time.Time
}

// maxStops bounds the stops that are kept. Without its stop a read runs to its end for nothing.
const maxStops = 1024

// New makes a consumer that hands jobs to tools.
func New(conn *bus.Conn, tools Tools, cfg Config) *Consumer {
	cfg = cfg.withDefaults()
	return &Consumer{conn: conn, journal: journal.New(conn), tools: tools, cfg: cfg, log: cfg.Logger, inHand: map[*running]struct{}{}}
}

// Busy returns how many calls are in hand now.
func (c *Consumer) Busy() int { return int(c.busy.Load()) }

// Run takes jobs of the pools until ctx ends. It then takes no more and gives the running calls
// Config.Drain to end. After that it stops the rest and gives their calls up for other workers, as
// far as their tools allow.
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
		cancel(attempt.ErrDraining)
	})
	defer stop()
	unsubscribe, err := c.conn.Subscribe(c.conn.Names().All(wire.VerbStop), "", c.stop)
	if err != nil {
		return err
	}
	defer unsubscribe()

	var pullers sync.WaitGroup
	errs := make([]error, len(pools))
	for i, pool := range pools {
		pullers.Go(func() {
			slots := pull.NewSlots(c.cfg.Slots)
			p := pull.New(c.conn, c.conn.Names().Stream(bus.Jobs), pool)
			err := p.Run(ctx, slots, func(d *pull.Delivery) { c.handle(work, pool, d) })
			if err != nil {
				stopPulling()
			}
			errs[i] = errors.Join(err, slots.Wait(context.WithoutCancel(ctx)))
		})
	}
	pullers.Wait()
	return errors.Join(errs...)
}

// handle brings one delivery to its end. A delivery stays unsettled, so that the broker delivers it
// again, only when nothing could be stored or when the call was taken over while it ran here. A
// second delivery of a call that is in hand is left to the attempt that has it.
func (c *Consumer) handle(ctx context.Context, pool string, d *pull.Delivery) {
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
	service, served := c.tools.Serves(job)
	r := c.attempt(pool, job, key, service)
	r.log = c.about(ctx, key, job)
	first := mail{delivery: d, event: attempt.Delivered{
		Count: d.Delivered, Seq: d.Seq, Notify: job.Notify, Served: served, Queued: d.Time, Now: c.conn.Now(ctx),
	}}
	if !served {
		r.mailbox.post(first)
	} else if !c.enter(r, first) {
		return
	}
	r.run(ctx)
}

// attempt makes the attempt at a job.
func (c *Consumer) attempt(pool string, job wire.Job, key wire.CallKey, service Service) *running {
	machine := attempt.New(attempt.Config{
		Worker: c.cfg.Worker, AckWait: c.cfg.AckWait, Lease: c.cfg.Lease, Grace: c.cfg.Grace, ApprovalTTL: c.cfg.ApprovalTTL,
		LastWords: c.cfg.LastWords, Poison: c.cfg.Poison, MaxPayload: c.conn.MaxPayload(), MaxInline: c.journal.MaxOutcome(),
	}, attempt.Call{
		Job: job, Key: key, Claims: service.Claims, Attempts: service.Attempts, Backoff: service.Backoff,
		Nonce: rand.Text(), Jitter: jitter.Float64(),
	})
	return &running{
		consumer: c, machine: machine, pool: pool, job: job, key: key, began: time.Now(),
		mailbox: mailbox{ready: make(chan struct{}, 1)}, grants: make(chan granted, 1), questions: map[int]context.CancelFunc{},
	}
}

// read returns the job in a delivery. The job's ids must be those of its subject.
func (c *Consumer) read(d *pull.Delivery) (job wire.Job, key wire.CallKey, err error) {
	_, key, err = c.conn.Names().Call(afterPool(d.Subject))
	if err == nil {
		err = json.Unmarshal(d.Data, &job)
	}
	if err == nil && key != wire.KeyOf(string(job.Tenant), job.Session, job.Batch).Call(job.Index) {
		err = errors.New("its ids are not those of its subject")
	}
	return job, key, err
}

// enter takes an attempt in hand with its first delivery. If another attempt of the same call is in
// hand here, that one takes over the delivery and enter returns false: the broker delivered again a
// job that was never lost.
func (c *Consumer) enter(r *running, first mail) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.inHand {
		if other.key == r.key && other.job.TakeOver == r.job.TakeOver && other.job.ConcurrencySafe == r.job.ConcurrencySafe {
			other.mailbox.post(first)
			return false
		}
	}
	r.mailbox.post(first)
	c.forgetStops()
	for _, s := range c.stops {
		if s.key == r.key {
			r.post(attempt.Stopped{Stop: s.why})
		}
	}
	c.inHand[r] = struct{}{}
	return true
}

// forgetStops drops the stops that are too old to be about a job on its way, and those over
// maxStops. The caller holds mu.
func (c *Consumer) forgetStops() {
	old := max(len(c.stops)-maxStops, 0)
	for old < len(c.stops) && time.Since(c.stops[old].at) > c.cfg.AckWait {
		old++
	}
	c.stops = slices.Delete(c.stops, 0, old)
}

// leave takes an attempt out of hand. Every delivery that it has taken over is in its mailbox
// before Closed.
func (c *Consumer) leave(r *running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inHand, r)
	r.post(attempt.Closed{})
}

// stop ends the runs of a call that is no longer wanted.
func (c *Consumer) stop(m bus.Msg) {
	var why wire.Stop
	_, key, err := c.conn.Names().Call(m.Subject)
	if err == nil {
		err = json.Unmarshal(m.Data, &why)
	}
	if err != nil {
		c.log.Warn("a stop that cannot be read", "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.inHand {
		if r.key == key {
			r.post(attempt.Stopped{Stop: why})
		}
	}
	c.forgetStops()
	c.stops = append(c.stops, earlyStop{key, why, time.Now()})
}

// bury writes a job that no worker can process to the dead letters, with the reason, so that it
// blocks nothing and is not forgotten.
func (c *Consumer) bury(ctx context.Context, d *pull.Delivery, reason error) {
	c.log.Error("set aside", "subject", d.Subject, "err", reason)
	if err := c.journal.DeadLetter(ctx, d.Msg, reason.Error()); err != nil {
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
	n := len(parts) - 5 // the position of the pool
	if n < 1 {
		return subject
	}
	return strings.Join(append(parts[:n:n], parts[n+1:]...), ".")
}
