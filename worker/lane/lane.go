// Package lane takes jobs from the lanes of a pool and brings each to its end. The lanes
// are subjects: all calls that may run beside others share one, and each session has one
// for calls that must run alone.
//
//	delivery -> look into the journal -> run (claim on the way, if it may change the world)
//	         -> store the result -> notify the coordinator -> settle
//
// A call that needs a person's approval is parked: its question is written to its journal,
// its job is settled, and the worker keeps nothing. After an answer the coordinator
// publishes the job again.
//
// A delivery is only a hint. The claims and ends in the journal decide what happens. A job may
// therefore be delivered twice, late, or to a worker that was taken for dead:
//
//   - If a call needs a claim, the holder of the newest claim runs it. The holder renews its
//     lease while the tool runs, and kills the tool if it cannot renew the lease.
//   - A call that runs without a claim may run twice. The result that is stored first counts.
//
// A worker releases an attempt, so that another one can follow, if the attempt failed without
// harm, or if the worker shuts down and has to give the attempt up.
//
// Package attempt makes all these decisions and the lane carries them out: it pulls jobs,
// gives each attempt's machine its events, reads and writes the journal, starts the phases
// and settles deliveries. Tools runs the phases and the tool. The coordinator decides what
// to start, and in which order.
package lane

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	jitter "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/spare"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Tools runs calls. The worker's pipeline implements it.
type Tools interface {
	// Serves returns what the lane has to know about the job's tool. ok is false if this
	// worker does not have the tool, or has another definition of it than the job was
	// planned with.
	Serves(job wire.Job) (service Service, ok bool)
	// Run takes the call through its phases. prior is the record from which the job
	// continues, or nil for a new call. If prior has a frozen input, that input does not
	// change any more. Run calls claim once, just before it starts the tool, and passes on
	// claim's error. tell receives events and adds their ids.
	//
	// Two errors end a run without a result: *call.HandBack for a call that was planned to
	// run beside others and must run alone, and *call.Ask for a call that needs a person's
	// approval.
	//
	// If ctx ends with a *wire.Stop as its cause, Run returns a result that says so. With
	// any other cause the worker shuts down or has lost its claim. Then Run returns an
	// error if the call never started or may run again.
	Run(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim, tell func(messages.Event)) (messages.Result, error)
}

// Service is what the lane has to know about a tool.
type Service struct {
	Claims bool // the tool may change the world, so its calls are claimed first
	// Attempts limits how many times one call runs, when a run fails and another may
	// succeed.
	Attempts int
	Backoff  func(attempt int) (b time.Duration) // the pause after this attempt
}

// Config holds the settings of a Consumer.
type Config struct {
	Worker string // this worker's name in records and events
	// AckWait is how long the broker waits for a sign of life of a job. The worker sends
	// one every AckWait/3. Default 10 s.
	AckWait time.Duration
	Lease   time.Duration // how long a claim is valid without renewal. Default 10 s
	// Grace is how long before the end of the lease a tool is killed. The coordinator adds
	// a grace of its own before it counts the claim as lapsed. Default 2 s, but at most a
	// fifth of Lease.
	Grace time.Duration
	// ApprovalTTL is how long people have to answer a question. Default 15 min
	ApprovalTTL time.Duration
	// Drain is how long running calls may go on after the context of Run has ended. Default
	// 30 s.
	Drain time.Duration
	// Hurry, if closed, ends the drain at once: the worker stops the running tools and gives
	// their calls up. May be nil.
	Hurry <-chan struct{}
	// Leave is called when the context of Run has ended. The worker takes jobs until Leave
	// returns or Leave's context ends. That context ends after half of Drain, or when Hurry
	// is closed. May be nil.
	Leave func(ctx context.Context)
	// LastWords is how long a worker tries to store the end of a call after the drain.
	// Default 5 s.
	LastWords time.Duration
	// Poison is how many workers may be lost while they have one job, before its call
	// fails. Default 5.
	Poison int
	Slots  int          // how many calls of one pool may run here at once. Default 10
	Logger *slog.Logger // nil: silent
	// Observe is called for each call that has ended in this worker, with the context of
	// its attempt. May be nil.
	Observe func(ctx context.Context, pool string, r messages.Result)
	// Count is called for each counted event, possibly from many goroutines. May be nil.
	Count func(what Count, pool string)
	// Tracer makes a span for each attempt. Nil: there are no spans, but the trace context of the
	// delivery is passed on.
	Tracer trace.Tracer
}

// DefaultConfig returns the default settings. The default of Grace depends on Lease: see
// [journal.DefaultGrace].
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

// Consumer takes jobs from the queues of pools. It holds at most Config.Slots jobs of a
// pool at once.
type Consumer struct {
	conn    *bus.Conn
	journal *journal.Journal
	tools   Tools
	cfg     Config
	log     *slog.Logger
	plans   plans
	// audience publishes events.
	audience   *bus.Audience
	goroutines *spare.Goroutines // run the phases and the open requests; set by Run
	busy       atomic.Int64      // calls that the worker has taken and not ended

	mu     sync.Mutex
	inHand map[*running]struct{} // guarded by mu
	stops  []earlyStop           // stops of the last AckWait, the oldest first; guarded by mu
}

// earlyStop is a stop that may have come before the job of its call. enter gives it to the
// attempt when the job comes.
type earlyStop struct {
	key wire.CallKey
	why wire.Stop
	at  time.Time
}

// maxStops limits the early stops that are kept. If one is dropped, a call may run to its
// end although nobody wants its result.
const maxStops = 1024

// New returns a consumer that runs jobs with tools.
func New(conn *bus.Conn, tools Tools, cfg Config) *Consumer {
	cfg = cfg.withDefaults()
	records := journal.New(conn)
	return &Consumer{
		conn: conn, journal: records, tools: tools, cfg: cfg, log: cfg.Logger, audience: bus.NewAudience(conn), inHand: map[*running]struct{}{},
		plans: plans{read: records.FirstPlan, known: map[wire.BatchKey]named{}},
	}
}

// Busy returns how many calls the worker has taken and not ended.
func (c *Consumer) Busy() int { return int(c.busy.Load()) }

// Queues says from which queues a pool's jobs come.
type Queues struct {
	Pool string
	// Toolset is the queue for the tools that this worker serves, or "" if the pool has
	// only one queue. With a toolset, the worker also looks at the queue of the pool from
	// time to time, because coordinators of the previous version put their jobs there.
	Toolset string
}

// Run takes jobs from the queues until ctx has ended and Config.Leave has returned. From
// the end of ctx on, running calls have Config.Drain to end. Then Run stops the rest, and
// gives their calls up to other workers where the tools allow that.
func (c *Consumer) Run(ctx context.Context, queues []Queues) error {
	c.goroutines = spare.New()
	defer c.goroutines.End()
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	taking, stopTaking := context.WithCancel(work)
	defer stopTaking()
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
	var leaving sync.WaitGroup
	defer leaving.Wait()
	leaving.Go(func() {
		<-ctx.Done()
		c.leaveQueues(taking)
		stopTaking()
	})
	defer drain()
	unsubscribe, err := c.conn.Subscribe(c.conn.Names().All(wire.VerbStop), "", c.stop)
	if err != nil {
		return err
	}
	defer unsubscribe()
	stopListening, err := c.audience.Listen()
	if err != nil {
		return err
	}
	defer stopListening()

	var pullers sync.WaitGroup
	errs := make([]error, len(queues))
	for i, q := range queues {
		pullers.Go(func() {
			slots := pull.NewSlots(c.cfg.Slots)
			p := pull.New(c.conn, c.conn.Names().Stream(bus.Jobs), cmp.Or(q.Toolset, q.Pool))
			if q.Toolset != "" {
				p.Aside(q.Pool)
			}
			err := p.Run(taking, slots, func(d *pull.Delivery) { c.handle(work, q.Pool, d) })
			if err != nil {
				drain()
				stopTaking()
			}
			errs[i] = errors.Join(err, slots.Wait(context.WithoutCancel(ctx)))
		})
	}
	pullers.Wait()
	return errors.Join(errs...)
}

// leaveQueues calls Config.Leave and waits for it.
func (c *Consumer) leaveQueues(ctx context.Context) {
	if c.cfg.Leave == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Drain/2)
	defer cancel()
	left := make(chan struct{})
	defer close(left)
	go func() {
		select {
		case <-c.cfg.Hurry:
			cancel()
		case <-left:
		}
	}()
	c.cfg.Leave(ctx)
}

// handle brings one delivery to its end. If this worker already has an attempt of the same
// call, that attempt gets the delivery. handle leaves a delivery unsettled, so that the
// broker delivers the job again, in three cases only: the plan could not be read, nothing
// could be stored, or another worker has taken the call over.
func (c *Consumer) handle(ctx context.Context, pool string, d *pull.Delivery) {
	c.busy.Add(1)
	defer c.busy.Add(-1)
	c.cfg.Count(Taken, pool)
	defer c.cfg.Count(Left, pool)
	if d.Delivered > 1 {
		c.cfg.Count(Redelivered, pool)
	}
	queue, job, key, err := c.read(d)
	if err != nil {
		c.bury(ctx, d, fmt.Errorf("a job that cannot be read: %w", err))
		return
	}
	ctx = tracing.Extract(ctx, d.Header)
	service, served := c.tools.Serves(job)
	if served && service.Claims {
		err := c.planned(ctx, d, key, job)
		if errors.Is(err, errUnplanned) {
			c.bury(ctx, d, err)
		}
		if err != nil { // else ctx has ended, and the broker delivers the job to another worker
			return
		}
	}
	r := c.attempt(pool, job, key, service)
	r.log = c.about(ctx, key, job)
	now := c.conn.Now(ctx)
	if job.Unwatched {
		c.audience.Quiet(r.events, time.Now().Add(-now.Sub(d.Time)))
	}
	first := mail{delivery: d, event: attempt.Delivered{
		Count: d.Delivered, Seq: d.Seq, Queue: queue, Notify: job.Notify, Served: served, Queued: d.Time, Now: now,
	}}
	if !served {
		r.mailbox.post(first)
	} else if !c.enter(r, first) {
		return
	}
	r.run(ctx)
}

// attempt returns a new attempt at a job.
func (c *Consumer) attempt(pool string, job wire.Job, key wire.CallKey, service Service) *running {
	machine := attempt.New(attempt.Config{
		Worker: c.cfg.Worker, AckWait: c.cfg.AckWait, Lease: c.cfg.Lease, Grace: c.cfg.Grace, ApprovalTTL: c.cfg.ApprovalTTL,
		LastWords: c.cfg.LastWords, Poison: c.cfg.Poison, MaxPayload: c.conn.MaxPayload(), MaxInline: c.journal.MaxOutcome(),
	}, attempt.Call{
		Job: job, Key: key, Claims: service.Claims, Attempts: service.Attempts, Backoff: service.Backoff,
		Nonce: rand.Text(), Jitter: jitter.Float64(),
	})
	return &running{
		consumer: c, machine: machine, pool: pool, job: job, key: key, events: c.conn.Names().Of(wire.VerbEvent, key.BatchKey), began: time.Now(),
		mailbox: mailbox{ready: make(chan struct{}, 1)}, grants: make(chan granted, 1), questions: map[int]context.CancelFunc{},
	}
}

// read returns the job of a delivery and the token of its queue. It returns an error if the
// ids in the job differ from those in its subject.
func (c *Consumer) read(d *pull.Delivery) (queue string, job wire.Job, key wire.CallKey, err error) {
	queue, key, err = c.conn.Names().Job(d.Subject)
	if err == nil {
		err = rawjson.Unmarshal(d.Data, &job)
	}
	if err == nil && key != wire.KeyOf(string(job.Tenant), job.Session, job.Batch).Call(job.Index) {
		err = errors.New("its ids are not those of its subject")
	}
	return queue, job, key, err
}

// enter adds an attempt and posts its first delivery. If this worker already has an attempt
// of the same call, that attempt gets the delivery and enter returns false. This happens
// when the broker delivers a job again although its worker is alive.
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

// forgetStops drops early stops that are older than AckWait, because a job that was on its
// way then has arrived by now. It also drops the oldest ones if there are more than
// maxStops. The caller holds mu.
func (c *Consumer) forgetStops() {
	old := max(len(c.stops)-maxStops, 0)
	for old < len(c.stops) && time.Since(c.stops[old].at) > c.cfg.AckWait {
		old++
	}
	c.stops = slices.Delete(c.stops, 0, old)
}

// leave removes an attempt from inHand and posts Closed to its mailbox. Like enter it does
// so under mu, so no delivery follows Closed.
func (c *Consumer) leave(r *running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inHand, r)
	r.post(attempt.Closed{})
}

// stop handles a Stop message: it stops the run of a call whose result nobody wants any more.
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

// bury stores a job that no worker can process as a dead letter, with the reason. Then the
// job blocks no other, and people can find it.
func (c *Consumer) bury(ctx context.Context, d *pull.Delivery, reason error) {
	c.log.Error("a job that cannot be processed becomes a dead letter: see `toolfleet dead ls`", "subject", d.Subject, "err", reason)
	if err := c.journal.DeadLetter(ctx, d.Msg, reason.Error()); err != nil {
		c.log.Error("the dead letter could not be stored; the broker delivers the job again", "subject", d.Subject, "err", err)
		return
	}
	c.settle(c.log, d.Term(reason.Error()))
}

func (c *Consumer) settle(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("delivery not settled; it will come again and be found done", "err", err)
	}
}
