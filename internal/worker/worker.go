// Package worker serves tools over a connection. A worker announces the tools of a registry
// and takes jobs from the lanes of their pools. It takes each call through six phases and
// stores its result.
//
//	lane (pull, claim, keep alive, settle) -> pipeline (validate, semantic check, pre-hooks,
//	permissions, execute, post-hooks) -> tool (the work of the call)
//
// Any number of workers may serve the same tools. The package toolfleet/worker is the API of
// Go programs. `toolfleet worker` serves the tools of a tools file: see [OpenTools].
package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/lane"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/pipeline"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/process"
	"github.com/toolfleet/toolfleet/worker/tool/resultread"
)

// Config holds the settings of a Worker. The zero value works.
type Config struct {
	// Name is in records, events and status. Default: the host's name and a random part.
	Name    string
	Version string // the version of the program, for status
	Slots   int    // calls of one pool that may run at once. Default 10
	// AckWait is how long the broker waits for a sign of life of the worker before it delivers a
	// job again. Default 10 s.
	AckWait time.Duration
	Lease   time.Duration // how long a claim is valid without renewal. Default 10 s
	// Grace is how long before the end of the lease a tool is killed. Default 2 s, but at
	// most a fifth of Lease.
	Grace time.Duration
	// Drain is how long running calls may go on after the context of Run has ended. Default
	// 30 s.
	Drain time.Duration
	Hurry <-chan struct{} // closing it ends the drain at once; may be nil
	// Poison is how many workers may be lost over one job before its call fails. Default 5.
	Poison   int
	Announce time.Duration // time between two presence announcements. Default 10 s
	Hooks    hook.Set      // run before and after each call
	// Rules decides which calls are allowed. The zero value allows everything and has no
	// version. If a coordinator has a policy, a worker without a version takes none of its
	// calls.
	Rules permission.Rules
	// Audit holds the settings of the audit log.
	Audit audit.Config
	// Approvals knows the people whose approval counts. If nil, calls that need an approval
	// are refused.
	Approvals   pipeline.Approvals
	ApprovalTTL time.Duration // how long people have to answer. Default 15 min
	// Tenant is the only tenant whose calls the worker takes, as its identity at the NATS
	// server says. "": all. It announces itself and its tools for that tenant alone.
	Tenant string
	// Pool is the pool of the tools that name none. Default "default".
	Pool      string
	Gaps      map[string][]string // what sandboxes lack, by tool or server; see [Place.Gaps]
	Pools     map[string]int      // limit on calls in flight in the whole fleet, by pool; 0: none
	Provision provision.Config
	// Servers returns the states of the programs and services that bring tools. May be nil.
	Servers func() []wire.ToolServer
	OnReady func()       // called once the worker takes calls. May be nil
	Logger  *slog.Logger // nil: silent
	Metrics *Metrics     // nil: silent
	// Tracer makes the spans of calls. Nil: no spans, but tools and hooks get the trace
	// context of the job.
	Tracer trace.Tracer
	// TraceContent puts the first 16 KiB of arguments and results into spans.
	TraceContent bool
}

// DefaultConfig returns the default settings. The default of Grace depends on Lease.
func DefaultConfig() Config {
	calls := lane.DefaultConfig()
	return Config{
		Slots: calls.Slots, AckWait: calls.AckWait, Lease: calls.Lease, Drain: calls.Drain, Poison: calls.Poison,
		ApprovalTTL: calls.ApprovalTTL, Announce: 10 * time.Second,
	}
}

func (c Config) withDefaults() Config {
	standard := DefaultConfig()
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "worker"
		}
		c.Name = host + "-" + rand.Text()[:6]
	}
	if c.Slots == 0 {
		c.Slots = standard.Slots
	}
	if c.AckWait == 0 {
		c.AckWait = standard.AckWait
	}
	if c.Announce == 0 {
		c.Announce = standard.Announce
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	return c
}

// shared returns the pools whose tools go to Config.Pool instead. A worker of one tenant also
// reads large results in its own pool, because it may take no jobs of another.
func (c Config) shared() []string {
	if c.Tenant == "" {
		return []string{schemas.DefaultPool}
	}
	return []string{schemas.DefaultPool, resultread.Pool}
}

// Worker serves the tools of a registry.
type Worker struct {
	conn     *bus.Conn
	registry *tool.Registry
	cfg      Config
	consumer *lane.Consumer
	queues   []lane.Queues
	present  *presence
	serving  atomic.Bool // the tools are announced and the worker takes jobs
}

// New returns a worker that uses conn. The caller closes conn after the worker has ended.
// The registry must not change any more. The error joins all mistakes in the config.
func New(conn *bus.Conn, registry *tool.Registry, cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	var errs []error
	record, err := audit.New(conn, cfg.Audit)
	errs = append(errs, err)
	if cfg.Slots < 1 {
		errs = append(errs, errors.New("worker: slots must be positive"))
	}
	if len(registry.Definitions()) == 0 {
		errs = append(errs, errors.New("worker: there is no tool to serve: give a tools file or a root folder"))
	}
	outputs := wholes{objects.In(conn)}
	if resultread.Wanted(registry.Definitions()) {
		registry = registry.Clone() // other workers may use the same registry, over connections of their own
		errs = append(errs, registry.Add(resultread.Promise(), resultread.New(outputs.read)))
	}
	if cfg.Pool != "" {
		moved, err := registry.Moved(cfg.Pool, cfg.shared()...)
		if err == nil {
			registry = moved
		}
		errs = append(errs, err)
	}
	if cfg.Tenant != "" && !messages.IsToken(cfg.Tenant) {
		errs = append(errs, fmt.Errorf("worker: tenant %.80q: want 1 to 64 of [A-Za-z0-9_-]", cfg.Tenant))
	}
	phases, err := pipeline.New(pipeline.Config{
		Registry: registry, MaxInput: conn.MaxPayload(), Hooks: cfg.Hooks, Rules: cfg.Rules, Approvals: cfg.Approvals, Now: conn.Now, Logger: cfg.Logger, Observe: cfg.Metrics.phase,
		Keep: outputs.keep, HookFailed: cfg.Metrics.hookFailed, Decided: cfg.Metrics.decided, Tracer: cfg.Tracer, TraceContent: cfg.TraceContent, Audit: func(ctx context.Context, line messages.AuditRecord) error {
			line.Writer = cfg.Name
			return write(ctx, record, line)
		},
	})
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	w := &Worker{conn: conn, registry: registry, cfg: cfg}
	queues, announced := queuesOf(registry.Definitions(), cfg.Pools)
	w.queues, w.present = queues, newPresence(w, announced)
	mine := &policyCheck{version: cfg.Rules.Version(), log: cfg.Logger}
	w.consumer = lane.New(conn, served{registry, phases, mine}, lane.Config{
		Worker: cfg.Name, AckWait: cfg.AckWait, Lease: cfg.Lease, Grace: cfg.Grace, Drain: cfg.Drain,
		ApprovalTTL: cfg.ApprovalTTL, Hurry: cfg.Hurry, Leave: w.present.leave, Poison: cfg.Poison, Slots: cfg.Slots, Logger: cfg.Logger,
		Observe: cfg.Metrics.ended, Count: cfg.Metrics.count, Tracer: cfg.Tracer,
	})
	return w, nil
}

// Run serves until ctx ends. From then on it takes no more calls and gives the running calls
// Config.Drain to end.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.stayInRights(ctx); err != nil {
		return err
	}
	consumers, err := w.start(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // ctx has ended before Run could start
		}
		return err
	}
	var present sync.WaitGroup
	staying, leave := context.WithCancel(context.WithoutCancel(ctx))
	present.Go(func() { w.present.stay(staying) })
	present.Go(func() { w.cfg.Hooks.Run(staying) })
	present.Go(func() { provision.KeepRemade(staying, w.conn, w.cfg.Provision, consumers...) })
	var pools []string
	for _, q := range w.queues {
		pools = append(pools, q.Pool)
		w.cfg.Metrics.slots.WithLabelValues(q.Pool).Set(float64(w.cfg.Slots))
	}
	w.cfg.Logger.Info("worker is ready", "worker", w.cfg.Name, "pools", pools,
		"tools", len(w.registry.Definitions()), "slots", w.cfg.Slots)
	w.serving.Store(true)
	if w.cfg.OnReady != nil {
		w.cfg.OnReady()
	}
	err = w.consumer.Run(ctx, w.queues)
	w.serving.Store(false)
	leave()
	present.Wait()
	return err
}

// stayInRights drops the queues of toolsets from which this user may not pull. Some users may
// pull only from the queue of a pool. A worker of one tenant is refused if it serves tools in a
// pool of which it may take no jobs at all.
func (w *Worker) stayInRights(ctx context.Context) error {
	mayPull := func(consumer string) bool {
		return w.conn.May(ctx, "$JS.API.CONSUMER.MSG.NEXT."+w.conn.Names().Stream(bus.Jobs)+"."+consumer)
	}
	for i, q := range w.queues {
		if w.cfg.Tenant != "" && !mayPull(q.Pool) {
			return fmt.Errorf("worker: this key takes no jobs of pool %s, in which the worker has tools: name a pool of tenant %s for them, with the setting worker_pool or the key pool of the tools file", q.Pool, w.cfg.Tenant)
		}
		if q.Toolset == "" || mayPull(q.Toolset) {
			continue
		}
		level := slog.LevelWarn
		if w.cfg.Tenant != "" { // its rights are meant so
			level = slog.LevelDebug
		}
		w.cfg.Logger.Log(ctx, level, "this user may only take jobs from the queue of the pool, so the worker gets jobs of tools that it does not serve, and gives them back: let the user pull from every consumer of the stream of jobs",
			"pool", q.Pool, "consumer", q.Toolset)
		w.queues[i].Toolset = ""
		w.present.sharePool(q.Pool)
	}
	return nil
}

// start prepares the worker and returns the consumers from which it pulls. If the server
// allows no more consumers, the worker takes jobs only from the queues of its pools.
func (w *Worker) start(ctx context.Context) (consumers []provision.Consumer, err error) {
	if consumers, err = w.consumers(); err != nil {
		return nil, err
	}
	if err = w.prepare(ctx, consumers); !errors.Is(err, provision.ErrTooManyConsumers) {
		return consumers, err
	}
	w.cfg.Logger.Warn("the worker takes jobs only from the queues of its pools, so it gets jobs of tools that it does not serve, and gives them back: let the workers of a pool serve the same tools, or raise the server's limit of consumers", "err", err)
	for i, q := range w.queues {
		w.queues[i].Toolset = ""
		w.present.sharePool(q.Pool)
	}
	if consumers, err = w.consumers(); err != nil {
		return nil, err
	}
	return consumers, w.prepare(ctx, consumers)
}

// consumers returns the consumers from which the worker pulls. Each pool has up to two:
// the consumer of the pool itself, and the consumer of the worker's toolset.
func (w *Worker) consumers() (consumers []provision.Consumer, err error) {
	for _, q := range w.queues {
		for _, token := range []string{q.Pool, q.Toolset} {
			if token == "" {
				continue
			}
			consumer, err := provision.QueueConsumer(w.conn.Names(), token, w.cfg.AckWait, w.cfg.Pools[q.Pool])
			if err != nil {
				return nil, err
			}
			consumers = append(consumers, consumer)
		}
	}
	return consumers, nil
}

// prepare hides this process from its commands and makes what the server lacks. Then it
// announces the worker, and after that the tools. Because of this order, a call that is
// planned with a new definition finds a worker for it.
func (w *Worker) prepare(ctx context.Context, consumers []provision.Consumer) error {
	if err := process.Shield(); err != nil {
		w.cfg.Logger.Warn("commands may read this worker's environment", "err", err)
	}
	if err := provision.Ensure(ctx, w.conn, w.cfg.Provision, consumers...); err != nil {
		return err
	}
	if err := provision.Patiently(ctx, func(ctx context.Context) error { return w.present.put(ctx) }); err != nil {
		return err
	}
	err := provision.Patiently(ctx, w.announce)
	if err != nil {
		w.present.remove(ctx)
	}
	return err
}

// Ready reports whether the worker takes calls: it is connected, and its tools are announced.
func (w *Worker) Ready() bool { return w.serving.Load() && w.conn.Connected() }

// Busy returns how many calls this worker runs.
func (w *Worker) Busy() int { return w.consumer.Busy() }

// queuesOf returns the queues of the worker, and how to announce them, sorted by pool. A limit
// on a pool is a limit on one consumer. The workers of a pool with a limit therefore share one
// queue.
func queuesOf(promises []schemas.Tool, bounds map[string]int) (queues []lane.Queues, announced map[string]wire.Queue) {
	tools := map[string][]string{}
	for _, t := range promises {
		tools[t.Pool] = append(tools[t.Pool], t.Digest)
	}
	announced = map[string]wire.Queue{}
	for _, pool := range rawjson.SortedKeys(tools) {
		digests := slices.Compact(slices.Sorted(slices.Values(tools[pool])))
		q, token := lane.Queues{Pool: pool}, pool
		if bounds[pool] == 0 {
			token = wire.QueueToken(pool, digests)
			q.Toolset = token
		}
		queues = append(queues, q)
		announced[pool] = wire.Queue{Token: token, Tools: digests}
	}
	return queues, announced
}

// served gives the lane access to the registry and the pipeline.
type served struct {
	registry *tool.Registry
	phases   *pipeline.Pipeline
	policy   *policyCheck
}

// Serves returns how to run a job here. ok is false if the worker does not have the tool in
// the job's definition, or if the policy check refuses the job.
func (s served) Serves(job wire.Job) (service lane.Service, ok bool) {
	t, known := s.registry.Version(job.Tool, job.ToolDigest)
	service = lane.Service{Claims: t.Kind == messages.KindWrite, Attempts: max(t.Retry.Attempts, 1), Backoff: t.Retry.Backoff}
	return service, known && s.policy.fits(job)
}

func (s served) Run(
	ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim, emit func(messages.Event),
) (messages.Result, error) {
	return s.phases.Run(ctx, job, prior, claim, emit)
}

// write stores an audit line that a call waits for. It tries five times in about three
// seconds. A person may have approved the call, and the connection may be lost only for a
// moment.
func write(ctx context.Context, record *audit.Log, line messages.AuditRecord) (err error) {
	for wait := 100 * time.Millisecond; wait < 2*time.Second; wait *= 2 {
		if err = record.Write(ctx, line); err == nil || bus.IsTerminal(err) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return err
}
