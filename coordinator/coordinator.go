// Package coordinator drives batches: it takes them from the log, plans them, hands their calls to the
// workers, collects what became of them and replies.
//
//	intake.go -> dispatch.go -> collect.go -> reply.go      and recover.go, where a batch was begun before
//	                    rest.go, questions.go               while it only waits for people; approvals.go, where they answer
//
// No coordinator owns a session. Any of them may drive any batch, as long as it is the head of its
// session's log; what may start next is decided by package batch from the records in the journal, which
// are compared-and-set. Two coordinators that drive one batch repeat each other's work at worst.
//
// The package knows what tools promise (schemas), not how they run, and leaves the dialects to provider,
// the order to plan, the life of a batch to batch, and what is durable to internal/journal.
package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator/approvals"
	"github.com/toolfleet/toolfleet/coordinator/handlers"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// Config is the tunables of a Coordinator. The zero value works.
type Config struct {
	Slots        int             // batches driven at once. Default 1024
	Window       int             // calls of one batch dispatched at once. Default 8
	AckWait      time.Duration   // how long the broker waits for a sign of life of a driver. Default 10 s
	Poll         time.Duration   // between looks into the journal of a batch that waits. Default AckWait/3
	QueueTimeout time.Duration   // how long a call may wait for a worker. Default 60 s
	BatchTTL     time.Duration   // past it nothing of a batch is started; the time that people are given to answer is added, up to as much again. Default 1 h
	Grace        time.Duration   // added to a lease before it is held to have lapsed. Default 2 s
	StartWait    time.Duration   // how long a fleet without any tool is waited for. Default 30 s
	Drain        time.Duration   // how long batches may go on after Run was told to end. Default 5 s
	Hurry        <-chan struct{} // ends the drain at once when it is closed. May be nil
	Poison       int             // claims of a call that may be lost with their worker before it is given up. Default 5
	// AfterUnknown says what becomes of the later writes of a batch once the outcome of one is unknown. Default Stop.
	AfterUnknown AfterUnknown
	Approvers    approval.Approvers // whose decisions are taken. Default: nobody's
	Audit        audit.Config       // how lines of the record for people are made
	// Policy is the version of the platform's policy, in every job: a worker without any policy lets go of it. Default: none.
	Policy    string
	Provision bus.Provision
	Logger    *slog.Logger // nil: silent
	Tracer    trace.Tracer // nil: silent; what an agent brings goes through all the same
	Metrics   *Metrics     // nil: silent
}

// AfterUnknown is what becomes of later writes of a batch once the outcome of one is unknown.
type AfterUnknown string

// Stop skips them, so that none builds on what may not have happened. Continue runs them.
const (
	Stop     AfterUnknown = "stop"
	Continue AfterUnknown = "continue"
)

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	if c.Slots == 0 {
		c.Slots = 1024
	}
	if c.Window == 0 {
		c.Window = 8
	}
	def(&c.AckWait, 10*time.Second)
	def(&c.Poll, c.AckWait/3)
	def(&c.QueueTimeout, time.Minute)
	def(&c.BatchTTL, time.Hour)
	def(&c.Grace, 2*time.Second)
	def(&c.StartWait, 30*time.Second)
	def(&c.Drain, 5*time.Second)
	if c.Poison == 0 {
		c.Poison = 5
	}
	if c.AfterUnknown == "" {
		c.AfterUnknown = Stop
	}
	if c.Provision.BatchTTL == 0 {
		c.Provision.BatchTTL = c.BatchTTL
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Tracer = tracing.OrSilent(c.Tracer)
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"slots", c.Slots < 1}, {"window", c.Window < 1}, {"ack_wait", c.AckWait < 0}, {"poll", c.Poll < 0},
		{"queue_timeout", c.QueueTimeout < 0}, {"batch_ttl", c.BatchTTL < 0}, {"grace", c.Grace < 0}, {"poison", c.Poison < 1},
	} {
		if f.bad {
			errs = append(errs, fmt.Errorf("coordinator: %s must be positive", f.name))
		}
	}
	if c.AfterUnknown != Stop && c.AfterUnknown != Continue {
		errs = append(errs, fmt.Errorf("coordinator: after_unknown is %q; want stop or continue", c.AfterUnknown))
	}
	if ttl := c.Provision.ReplyTTL; ttl != 0 && ttl < 3*c.BatchTTL {
		errs = append(errs, fmt.Errorf("coordinator: reply_ttl is %v; it must be at least three times batch_ttl (%v), or a batch could be run again while its records are still there", ttl, c.BatchTTL))
	}
	return errors.Join(errs...)
}

// Coordinator drives batches over one connection.
type Coordinator struct {
	conn      *bus.Conn
	journal   *journal.Journal
	auditLog  *audit.Log
	recorder  *audit.Recorder // of batches that have ended
	questions *approvals.Service
	names     wire.Names
	cfg       Config
	id        string // where workers tell us of our batches: a token
	log       *slog.Logger
	catalog   *catalog
	serving   atomic.Bool // the doors are open
	wakes     room        // of the drives of batches that were woken
	orphans   chan string // batches that other coordinators let go

	mu   sync.Mutex
	live map[string]*drive // by batch key, what is driven here; guarded by mu
	// elsewhere is when another coordinator last said that it drives a batch, by batch key; guarded by mu
	elsewhere map[string]time.Time
	forgot    time.Time       // when old words were last dropped; guarded by mu
	waiting   map[errand]bool // of wakers, one for each errand; guarded by mu
}

// New is a coordinator on a connection, which stays the caller's to close.
func New(conn *bus.Conn, cfg Config) (*Coordinator, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	auditLog, err := audit.New(conn, cfg.Audit)
	if err != nil {
		return nil, err
	}
	cfg.Metrics.slots.Set(float64(cfg.Slots))
	c := &Coordinator{
		conn: conn, journal: journal.New(conn), auditLog: auditLog, names: conn.Names(), cfg: cfg, id: rand.Text(),
		log: cfg.Logger, catalog: newCatalog(conn, cfg.Logger, func(t schemas.Tool) { cfg.Metrics.knows(t.Name, t.Kind) }), wakes: make(room, cfg.Slots), orphans: make(chan string, 256), live: map[string]*drive{}, elsewhere: map[string]time.Time{}, waiting: map[errand]bool{},
	}
	c.recorder = audit.NewRecorder(auditLog, c.journal, audit.RecorderConfig{
		Writer: c.id, Failed: cfg.Metrics.auditFailed,
		Digest: func(tool string) string {
			t, _ := c.catalog.Current().Lookup(tool)
			return t.Digest
		},
	})
	c.questions = approvals.New(conn, auditLog, sessions{c}, c.catalog, approvalMetrics{cfg.Metrics}, approvals.Config{
		Writer: c.id, Approvers: cfg.Approvers, Tracer: cfg.Tracer, Logger: cfg.Logger,
	})
	return c, nil
}

// Run drives batches until ctx ends, then lets the live ones end for Config.Drain and hands back the rest.
// It makes the streams that are missing, and refuses to start on ones that would break a promise.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.conn.Provision(ctx, c.cfg.Provision, c.conn.BatchesConsumer(c.cfg.AckWait)); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it began
		}
		return err
	}
	for subject, hear := range map[string]func(bus.Msg){c.names.Notify(c.id): c.notice, c.names.Coordinators(): c.colleague} {
		unsubscribe, err := c.conn.Subscribe(subject, "", hear)
		if err != nil {
			return err
		}
		defer unsubscribe()
	}

	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ctx, stopPulling := context.WithCancel(ctx)
	defer stopPulling()
	defer context.AfterFunc(ctx, func() {
		drain := time.NewTimer(c.cfg.Drain)
		defer drain.Stop()
		select {
		case <-drain.C:
		case <-c.cfg.Hurry:
		case <-work.Done():
		}
		cancel()
	})()

	var watching sync.WaitGroup
	defer watching.Wait()
	watch, stopWatching := context.WithCancel(work)
	defer stopWatching()
	watched := make(chan error, 1)
	watching.Go(func() { watched <- c.catalog.watch(watch) })
	watching.Go(func() { c.conn.KeepRemade(watch, c.cfg.Provision, c.conn.BatchesConsumer(c.cfg.AckWait)) })
	select {
	case <-c.catalog.ready:
	case err := <-watched:
		return err
	case <-ctx.Done():
		return nil
	}
	defer c.conn.OnReconnect(c.nudgeAll)()
	if _, err := c.auditLog.Hasher(ctx); err != nil && ctx.Err() == nil { // workers need its key too, and may not make it
		c.log.Warn("the record for people is not ready; batches wait for it", "err", err)
	}
	stopServing, err := c.serve(ctx, work)
	if err != nil {
		return err
	}
	c.serving.Store(true)
	watching.Go(func() { c.adoptOrphans(watch) })
	watching.Go(func() { c.sweepLog(watch) })
	defer context.AfterFunc(ctx, func() { c.serving.Store(false) })()
	c.log.Info("coordinator is ready", "coordinator", c.id, "slots", c.cfg.Slots, "tools", len(c.catalog.Current().Tools()))

	slots := bus.NewSlots(c.cfg.Slots)
	err = c.conn.Puller(c.names.Stream(bus.Batches), bus.CoordinatorsConsumer).Run(ctx, slots, func(d *bus.Delivery) {
		c.intake(work, d)
	})
	if err != nil { // the server lets us in no longer: the drain begins
		stopPulling()
	}
	_ = slots.Wait(context.WithoutCancel(ctx)) // every driver ends with work at the latest
	c.wakes.fill(work)
	cancel()
	stopServing()
	return err
}

// serve answers requests. No request is taken after ctx has ended; one that is being answered may go on
// until work ends.
func (c *Coordinator) serve(ctx, work context.Context) (stop func(), err error) {
	h := handlers.New(c.conn, sessions{c}, c.catalog, handlers.Config{
		Poll: c.cfg.Poll, BatchTTL: c.cfg.BatchTTL, Refused: c.cfg.Metrics.refused, Logger: c.log,
	})
	return c.conn.Serve(ctx, bus.Service{
		Name: "toolfleet", Version: "1.0.0", Description: "Runs the tool calls of a model's message.",
		Metadata:  map[string]string{"policy": c.cfg.Policy},
		Endpoints: append(h.Endpoints(work), c.questions.Endpoints(work)...),
	})
}

// sessions is what request handlers may ask of the coordinator.
type sessions struct{ c *Coordinator }

func (s sessions) Resume(ctx context.Context, tenant, session string) {
	s.c.wake(ctx, tenant, session, nil)
}

func (s sessions) ResumeSuspended(ctx context.Context, tenant, session string) {
	s.c.wake(ctx, tenant, session, s.c.waitsForPeople)
}

// Ready reports whether batches are taken: the connection is up, the tools are known, the doors are open.
func (c *Coordinator) Ready() bool { return c.serving.Load() && c.conn.Connected() }

// Gauges returns a collector of the gauges of the whole fleet.
func (c *Coordinator) Gauges() *fleetgauges.Gauges {
	return fleetgauges.New(c.conn, fleetgauges.Config{
		QueueTimeout: c.cfg.QueueTimeout, Logger: c.log, Tools: func() []schemas.Tool { return c.catalog.Current().Tools() },
	})
}

// enter makes d the driver of its batch here, unless there is one: then it is returned, and has a look, for it may be
// about to rest.
func (c *Coordinator) enter(d *drive) (other *drive) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := d.accepted.Key.String()
	if other := c.live[key]; other != nil {
		other.lookSoon()
		return other
	}
	c.live[key] = d
	c.cfg.Metrics.live.Set(float64(len(c.live)))
	return nil
}

func (c *Coordinator) leave(d *drive) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key := d.accepted.Key.String(); c.live[key] == d {
		delete(c.live, key)
	}
	c.cfg.Metrics.live.Set(float64(len(c.live)))
}

func (c *Coordinator) driving(key wire.BatchKey) *drive {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[key.String()]
}

func (c *Coordinator) nudgeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.live {
		d.lookSoon()
	}
}

// notice passes a worker's word on to the driver of the batch. A hint for nobody is dropped.
func (c *Coordinator) notice(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil {
		c.log.Warn("a notice that cannot be read", "err", err)
		return
	}
	c.mu.Lock()
	d := c.live[n.Batch]
	c.mu.Unlock()
	if d == nil {
		return
	}
	select {
	case d.notices <- n:
	default: // the poll will find it
	}
}
