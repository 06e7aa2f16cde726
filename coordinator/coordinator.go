// Package coordinator drives batches: it takes them from the log, plans them, hands their
// calls to the workers, collects the results and replies.
//
//	intake.go -> sessionrun.go -> run.go -> dispatch.go -> collect.go -> reply.go: the usual way
//	toolsets.go     in which queue a job waits for a worker
//	successors.go   which batches behind the head are driven too
//	recover.go      what an earlier driver has left in the journal
//	control.go      aborts and steering
//	close.go        a batch that no driver can bring to its end
//	suspend.go      a batch that only waits for people loses its driver
//	resume.go       a suspended or abandoned batch gets a driver again
//	rested.go       which sessions are suspended, so that their deliveries need no look
//	sweep.go        finds batches whose driver is gone
//
// No coordinator owns a session. Any coordinator may drive the head of a session and, up to
// Config.Lookahead, the batches behind the head. Packages session and batch decide from the
// journal what may start next. Journal records are written by compare-and-set. Two
// coordinators that drive one batch therefore do the same work twice, and cause no harm.
//
// Other packages have these tasks:
//
//	what tools promise                     schemas
//	the tools that workers announced       coordinator/announced
//	requests                               coordinator/handlers, coordinator/approvals
//	definitions that agents were given     coordinator/catalogue
//	notices among coordinators             coordinator/peers
//	the dialects of the providers          coordinator/provider
//	the order of calls                     coordinator/plan
//	the life of a batch                    coordinator/batch
//	which batch of a session to drive      coordinator/session
//	what is durable                        internal/journal
package coordinator

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/toolfleet/toolfleet/coordinator/announced"
	"github.com/toolfleet/toolfleet/coordinator/approvals"
	"github.com/toolfleet/toolfleet/coordinator/catalogue"
	"github.com/toolfleet/toolfleet/coordinator/handlers"
	"github.com/toolfleet/toolfleet/coordinator/metrics"
	"github.com/toolfleet/toolfleet/coordinator/peers"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Coordinator drives batches over one connection.
type Coordinator struct {
	conn      *bus.Conn
	names     wire.Names
	journal   *journal.Journal
	auditLog  *audit.Log
	recorder  *audit.Recorder // writes the audit lines of batches that have ended
	questions *approvals.Service
	announced *announced.Tools
	// catalogues has the tool definitions that were given to agents.
	catalogues *catalogue.Store
	toolsets   *toolsets
	delivered  *delivered
	audience   *bus.Audience // says whether anyone listens to events
	pace       *pace
	cfg        Config
	id         string // workers and peers address this coordinator by this token
	log        *slog.Logger

	runs    *runs // the sessions and batches that this coordinator drives
	peers   *peers.Peers
	resumer *resumer
	// successors limits how many batches behind the heads of their sessions are driven at
	// once, over all sessions.
	successors *semaphore.Weighted
	bodies     *semaphore.Weighted // limits the bytes of the bodies of these batches
	serving    atomic.Bool         // whether this coordinator accepts requests and batches
}

// New returns a coordinator that uses conn. The coordinator sends nothing before Run, and
// never closes conn.
func New(conn *bus.Conn, cfg Config) (*Coordinator, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	auditLog, err := audit.New(conn, cfg.Audit)
	if err != nil {
		return nil, err
	}
	cfg.Metrics.Slots.Set(float64(cfg.Slots))
	c := &Coordinator{
		conn: conn, names: conn.Names(), journal: journal.New(conn), auditLog: auditLog, cfg: cfg, id: rand.Text(), log: cfg.Logger,
		runs: newRuns(cfg.Metrics.Live, cfg.Logger), catalogues: catalogue.NewStore(objects.In(conn), cfg.Logger),
		audience: bus.NewAudience(conn), pace: new(pace),
	}
	c.toolsets = newToolsets(conn, cfg.owners(), cfg.Logger, func() {
		c.announced.WorkersChanged()
		c.runs.moveJobs()
	})
	c.announced = announced.New(conn, announced.Config{
		Unknown: metrics.UnknownTool, Learned: cfg.Metrics.Learned, Served: c.toolsets.serves, Owners: cfg.owners(), Logger: cfg.Logger,
	})
	c.delivered = newDelivered(conn)
	c.recorder = audit.NewRecorder(auditLog, c.journal, audit.RecorderConfig{
		Writer: c.id, Digest: c.announced.Digest, Failed: cfg.Metrics.AuditFailed, User: c.userOf,
	})
	c.peers = peers.New(conn, c.runs, peers.Config{ID: c.id, AckWait: cfg.AckWait, Logger: cfg.Logger})
	c.resumer = newResumer(c, cfg.Slots)
	c.successors, c.bodies = semaphore.NewWeighted(int64(cfg.Slots)), semaphore.NewWeighted(maxAllSuccessors)
	c.questions = approvals.New(conn, auditLog, c.resumer, c.announced, cfg.Metrics, approvals.Config{
		Writer: c.id, Approvers: cfg.Approvers, Tracer: cfg.Tracer, Logger: cfg.Logger,
	})
	return c, nil
}

// Run drives batches until ctx ends. Then it goes on with the open batches for Config.Drain,
// and hands the unfinished ones back to the broker. Run creates missing streams. It returns an
// error if a setting of an existing stream would break a promise of the fleet.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := provision.Ensure(ctx, c.conn, c.cfg.Provision, provision.BatchesConsumer(c.conn.Names(), c.cfg.AckWait)); err != nil {
		if ctx.Err() != nil {
			return nil // ctx ended before Run could start
		}
		return err
	}
	for subject, on := range map[string]func(bus.Msg){c.names.Notify(c.id): c.runs.onNotice, c.names.Coordinators(): c.peers.OnNotice} {
		unsubscribe, err := c.conn.Subscribe(subject, "", on)
		if err != nil {
			return err
		}
		defer unsubscribe()
	}

	stopListening, err := c.audience.Listen()
	if err != nil {
		return err
	}
	defer stopListening()

	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ctx, stopPulling := context.WithCancel(ctx)
	defer stopPulling()
	defer context.AfterFunc(ctx, func() { c.drain(work, cancel) })()

	var watching sync.WaitGroup
	defer watching.Wait()
	watch, stopWatching := context.WithCancel(work)
	defer stopWatching()
	watched := make(chan error, 2)
	watching.Go(func() { watched <- c.announced.Run(watch) })
	watching.Go(func() { watched <- c.toolsets.run(watch) })
	watching.Go(func() {
		provision.KeepRemade(watch, c.conn, c.cfg.Provision, provision.BatchesConsumer(c.conn.Names(), c.cfg.AckWait))
	})
	for _, ready := range []<-chan struct{}{c.announced.Ready(), c.toolsets.ready} {
		select {
		case <-ready:
		case err := <-watched:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	defer c.conn.OnReconnect(func() { c.runs.Nudge("") })()
	// Make the hash key here: workers need the key too, but they have no right to make it.
	if _, err := c.auditLog.Hasher(ctx); err != nil && ctx.Err() == nil {
		c.log.Warn("the audit log is not ready; no batch ends before it is", "err", err)
	}
	stopServing, err := c.serve(ctx, work)
	if err != nil {
		return err
	}
	c.serving.Store(true)
	watching.Go(func() { c.resumer.resumeAbandoned(watch) })
	watching.Go(func() { c.sweepLog(watch) })
	defer context.AfterFunc(ctx, func() { c.serving.Store(false) })()
	c.log.Info("coordinator is ready", "coordinator", c.id, "slots", c.cfg.Slots, "tools", len(c.announced.All()))

	slots := pull.NewSlots(c.cfg.Slots)
	err = pull.New(c.conn, c.names.Stream(bus.Batches), bus.CoordinatorsConsumer).Run(ctx, slots, func(d *pull.Delivery) {
		c.intake(work, d)
	})
	if err != nil { // the server has revoked this user's access, so begin the drain
		stopPulling()
	}
	_ = slots.Wait(context.WithoutCancel(ctx)) // no error: every driver returns soon after work has ended
	c.resumer.wait(work)
	cancel()
	stopServing()
	return err
}

// drain cancels the work after Config.Drain, or as soon as Config.Hurry is closed.
func (c *Coordinator) drain(work context.Context, cancel func()) {
	drain := time.NewTimer(c.cfg.Drain)
	defer drain.Stop()
	select {
	case <-drain.C:
	case <-c.cfg.Hurry:
	case <-work.Done():
	}
	cancel()
}

// counts reports whether the present approval policy accepts a decision that was stored at
// this time.
func (c *Coordinator) counts(d messages.Decision, at time.Time) bool {
	return c.cfg.Approvers.Check(d, at) == nil
}

// serve answers requests until work ends. It accepts no new request after ctx has ended.
func (c *Coordinator) serve(ctx, work context.Context) (stop func(), err error) {
	h := handlers.New(c.conn, c.resumer, c.announced, c.catalogues, handlers.Config{
		Poll: c.cfg.Poll, BatchTTL: c.cfg.BatchTTL, Refused: c.cfg.Metrics.BatchRefused, Counts: c.counts, Owners: c.cfg.owners(), Logger: c.log,
	})
	return service.Serve(ctx, c.conn, service.Service{
		Name: "toolfleet", Version: "1.0.0", Description: "Runs the tool calls of a model's message.",
		Metadata:  map[string]string{"policy": c.cfg.Policy},
		Endpoints: append(h.Endpoints(work), c.questions.Endpoints(work)...),
	})
}

// Ready reports whether the coordinator accepts batches. It accepts them while it is connected
// to the broker, knows the tools and answers requests.
func (c *Coordinator) Ready() bool { return c.serving.Load() && c.conn.Connected() }

// Gauges returns a collector for the gauges of the whole fleet.
func (c *Coordinator) Gauges() *fleetgauges.Gauges {
	return fleetgauges.New(c.conn, fleetgauges.Config{
		QueueTimeout: c.cfg.QueueTimeout, Logger: c.log, Tools: c.announced.All, Owners: c.cfg.owners(),
	})
}
