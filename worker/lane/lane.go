// Package lane takes jobs from the lanes of a pool (the shared read queue and the sessions' write
// subjects) and brings each to its end:
//
//	delivery -> look into the journal -> run (claim on the way, if it may change the world)
//	         -> store the result -> notify the coordinator -> settle
//
// A call that needs a person's approval is parked: its question is written to its journal, its job
// is settled, and the worker keeps nothing of it. The coordinator publishes the job again after an
// answer.
//
// A delivery is only a hint to look. Only the journal holds claims and ends. So a job may be
// delivered twice, late, or to a worker that was thought dead:
//
//   - A call that claims is run by the holder of the newest claim. The holder renews its lease
//     while the tool runs, and kills the tool if it cannot.
//   - A call that does not claim may run twice. Its first stored result counts.
//
// An attempt is released for another if it failed without harm, or if the worker shuts down and has
// to give it up.
//
// Package attempt decides all of this, and the lane carries it out: it pulls jobs, tells the
// machine of each attempt what happens, reads and writes the journal, starts the phases and settles
// deliveries. Tools runs the tool. The coordinator decides what to start and in which order.
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
	// Serves returns what the lane has to know about the job's tool. ok is false if this worker
	// does not have the tool, or not exactly in the definition that the job was planned with.
	Serves(job wire.Job) (service Service, ok bool)
	// Run takes the call through its phases. prior is the record from which the job continues, or
	// nil if the call begins; a frozen input in it does not change. Run calls claim once, right
	// before the tool is started, and returns its error. It returns a *call.HandBack for a call
	// that was planned to run beside others and must run alone, and a *call.Ask for a call that
	// needs a person's approval. tell receives events and fills in their ids.
	//
	// If ctx ends with a *wire.Stop as its cause, the call ends as stopped, with a result. With any
	// other cause the worker shuts down or has lost its claim: Run then returns an error if the
	// call may run again or never started.
	Run(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim, tell func(messages.Event)) (messages.Result, error)
}

// Service is what the lane has to know about a tool.
type Service struct {
	Claims bool // the tool may change the world, so its runs are claimed
	// Attempts bounds how many times one call runs, if a run fails and another may succeed.
	Attempts int
	Backoff  func(attempt int) (b time.Duration) // the pause after that attempt
}

// Config holds the settings of a Consumer.
type Config struct {
	Worker string // this worker's name in records and events
	// AckWait is how long the broker waits for a sign of life. The worker sends one every third of
	// it. Default 10 s.
	AckWait time.Duration
	Lease   time.Duration // how long a claim holds without renewal. Default 10 s
	// Grace is how long before the end of its lease a tool is killed. The coordinator adds its own
	// grace before it counts a claim as lapsed. Default 2 s, but at most a fifth of Lease.
	Grace time.Duration
	// ApprovalTTL is how long people have to answer a question. Default 15 min
	ApprovalTTL time.Duration
	// Drain is how long running calls may continue after the context of Run has ended. Default 30
	// s.
	Drain time.Duration
	// Closing Hurry ends the drain at once: running tools are stopped and their calls are given up.
	// May be nil.
	Hurry <-chan struct{}
	// Leave is called when the context of Run has ended. The worker takes jobs until it returns, or
	// until its context ends: at half of Drain, or because of Hurry. May be nil.
	Leave func(ctx context.Context)
	// LastWords is how long storing the end of a call may take after the drain. Default 5 s
	LastWords time.Duration
	// Poison is how many deliveries of one job may be lost with their workers before the call
	// fails. Default 5.
	Poison int
	Slots  int          // how many calls of one pool may run here at once. Default 10
	Logger *slog.Logger // nil: silent
	// Observe is called for every call that ended in this worker, with the context of its attempt.
	// May be nil.
	Observe func(ctx context.Context, pool string, r messages.Result)
	// Count is called for each counted event, possibly from many goroutines. May be nil.
	Count func(what Count, pool string)
	// Tracer makes a span for each attempt. Nil: there are no spans, but the trace context of the
	// delivery is passed on.
	Tracer trace.Tracer
}

// DefaultConfig returns the defaults of the fields. The default of Grace depends on Lease: see
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

// Consumer takes the jobs of pools. It never has more jobs of a pool at once than slots.
type Consumer struct {
	conn    *bus.Conn
	journal *journal.Journal
	tools   Tools
	cfg     Config
	log     *slog.Logger
	// audience publishes events.
	audience   *bus.Audience
	goroutines *spare.Goroutines // of the phases and of open requests; set by Run
	busy       atomic.Int64      // calls that the worker has taken

	mu     sync.Mutex
	inHand map[*running]struct{} // guarded by mu
	stops  []earlyStop           // received during the last AckWait, the oldest first; guarded by mu
}

// earlyStop is a stop for a call that this worker did not have when the stop came. The job of the
// call may still be on its way here.
type earlyStop struct {
	key wire.CallKey
	why wire.Stop
	at  time.Time
}

// maxStops is how many early stops are kept. If one is dropped, a call may run to its end although
// nobody wants its result.
const maxStops = 1024

// New returns a consumer that runs jobs with tools.
func New(conn *bus.Conn, tools Tools, cfg Config) *Consumer {
	cfg = cfg.withDefaults()
	return &Consumer{conn: conn, journal: journal.New(conn), tools: tools, cfg: cfg, log: cfg.Logger, audience: bus.NewAudience(conn), inHand: map[*running]struct{}{}}
}

// Busy returns how many calls the worker has taken and not ended.
func (c *Consumer) Busy() int { return int(c.busy.Load()) }

// Queues says from which queues the jobs of a pool come.
type Queues struct {
	Pool string
	// Toolset is the queue of the tools that are served here; "": the pool has only one queue. With
	// a toolset, the worker also looks at the queue of the pool at intervals, because coordinators
	// of the previous version put their jobs there.
	Toolset string
}

// Run takes jobs from the queues until ctx ends and Config.Leave has returned. It then takes no
// more. When ctx has ended, running calls get Config.Drain to end. After that Run stops the rest
// and gives their calls up for other workers, if their tools allow that.
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

// handle brings one delivery to its end. A second delivery of a call that runs here goes to the
// attempt that runs it. A delivery is left unsettled, so that the broker delivers the job again,
// only if nothing could be stored or if another worker took the call over.
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

// read returns the job in a delivery, and the token of its queue. It returns an error if the job's
// ids are not those of its subject.
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

// enter adds an attempt with its first delivery. If this worker already has an attempt of the same
// call, that attempt takes over the delivery, and enter returns false. This happens if the broker
// delivers a job again although its worker is alive.
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

// forgetStops drops early stops that are older than AckWait: a job that was on its way then has
// arrived. It also drops the oldest ones over maxStops. The caller holds mu.
func (c *Consumer) forgetStops() {
	old := max(len(c.stops)-maxStops, 0)
	for old < len(c.stops) && time.Since(c.stops[old].at) > c.cfg.AckWait {
		old++
	}
	c.stops = slices.Delete(c.stops, 0, old)
}

// leave removes an attempt from inHand and posts Closed to its mailbox. Both happen under mu, as in
// enter, so no delivery comes after Closed.
func (c *Consumer) leave(r *running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inHand, r)
	r.post(attempt.Closed{})
}

// stop ends the run of a call that is no longer wanted.
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

// bury stores a job that no worker can process as a dead letter, with the reason. So it holds up
// nothing, and people can find it.
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
