// Package fleetgauges shows the state of a whole fleet to Prometheus, as the server knows it:
// pools, streams, open batches, stuck sessions and questions to people.
//
// Every coordinator shows the same values, so scraping one coordinator is enough. A query over
// several coordinators uses max. A value is cached for some seconds. In that time the server
// is asked only once, even if there are several scrapers.
//
// The metrics of a single coordinator or worker are counted in its own package.
package fleetgauges

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Config holds what Gauges have to know about the coordinators.
type Config struct {
	QueueTimeout time.Duration         // how long a call may wait for a worker
	Tools        func() []schemas.Tool // the tools that workers have announced
	Owners       toolset.Owners        // the pools that belong to one tenant
	Logger       *slog.Logger          // nil: silent
}

// Gauges is a collector of the fleet's gauges. Make it with New.
type Gauges struct {
	conn    *bus.Conn
	names   wire.Names
	journal *journal.Journal
	cfg     Config

	// turn is a channel with room for one token. The scrape that has put its token in may use
	// the fields below.
	turn                 chan struct{}
	fleet, people, heads cache
	sweep                *journal.HeadSweep // a sweep of the log that is not complete; nil: none
	stuck                map[string]int     // stuck heads by reason, from the last complete sweep
}

// cache holds the metrics from one query of the server.
type cache struct {
	maxAge  time.Duration
	at      time.Time // the time of the query
	metrics []prometheus.Metric
	up      bool // the query succeeded
}

const (
	scrapeTimeout = 2 * time.Second // how long a scraper may have to wait for the server
	fleetMaxAge   = 5 * time.Second
	peopleMaxAge  = 15 * time.Second // reads the whole index of questions
	headsMaxAge   = 15 * time.Second // reads a part of the log
)

// New returns the gauges of a fleet. Register them once with every registry that shows
// them. They send nothing before the first scrape.
func New(conn *bus.Conn, cfg Config) *Gauges {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gauges{
		conn: conn, names: conn.Names(), journal: journal.New(conn), cfg: cfg, turn: make(chan struct{}, 1),
		fleet: cache{maxAge: fleetMaxAge}, people: cache{maxAge: peopleMaxAge}, heads: cache{maxAge: headsMaxAge},
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	fleetUp = desc("toolfleet_fleet_up",
		"1 when the last read from the server succeeded; 0 when it failed, and the other gauges of the fleet are absent.")
	poolPending  = desc("toolfleet_pool_pending", "Calls that wait for a worker of the pool.", "pool")
	poolInFlight = desc("toolfleet_pool_in_flight", "Calls that workers of the pool are processing.", "pool")
	poolLoad     = desc("toolfleet_pool_load",
		"Calls that wait or are being processed: scale the pool by this number.", "pool")
	poolOldest = desc("toolfleet_oldest_pending_call_age_seconds",
		"Age of the oldest call that waits for a worker of the pool; 0 when none waits.", "pool")
	poolSlots    = desc("toolfleet_pool_slots", "Calls that the workers of the pool can run at once.", "pool")
	poolWorkers  = desc("toolfleet_pool_workers", "Workers that serve the pool.", "pool")
	poolUnserved = desc("toolfleet_pool_unserved",
		"Calls that wait because no worker serves their tool in the planned version.", "pool")
	poolToolsets = desc("toolfleet_pool_toolsets", "Different sets of tools that workers of the pool serve.", "pool")
	batchesOpen  = desc("toolfleet_batches_open",
		"Batches accepted and not finished, including those that wait for people.")
	headsStuck = desc("toolfleet_heads_stuck",
		"Sessions whose oldest open batch does not move although nothing explains it, by reason.", "reason")
	asksPending = desc("toolfleet_approvals_pending", "Questions that wait for people, by tier.", "tier")
	asksOldest  = desc("toolfleet_approvals_oldest_age_seconds",
		"Age of the oldest question of the tier; 0 when none waits.", "tier")
	streamBytes  = desc("toolfleet_stream_bytes", "Bytes in a stream.", "stream")
	streamHolds  = desc("toolfleet_stream_messages", "Messages in a stream.", "stream")
	streamAtMost = desc("toolfleet_stream_max_bytes",
		"The most bytes that a stream may hold, if it has a limit.", "stream")
	shownStreams  = []string{bus.Batches, bus.Jobs, bus.Calls, bus.Results, bus.Audit, bus.Dead, bus.Replies}
	allFleetDescs = []*prometheus.Desc{
		fleetUp, poolPending, poolInFlight, poolLoad, poolOldest, poolSlots, poolWorkers, poolUnserved, poolToolsets, batchesOpen, headsStuck, asksPending, asksOldest,
		streamBytes, streamHolds, streamAtMost,
	}
)

// Describe implements [prometheus.Collector].
func (g *Gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range allFleetDescs {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (g *Gauges) Collect(out chan<- prometheus.Metric) {
	g.turn <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	g.refresh(ctx, &g.fleet, g.queryFleet)
	if g.fleet.up { // otherwise the other two queries would only time out
		g.refresh(ctx, &g.people, g.queryPeople)
		g.refresh(ctx, &g.heads, g.queryHeads)
	}
	cancel()
	up, metrics := g.fleet.up, slices.Clone(g.fleet.metrics)
	if up {
		metrics = append(append(metrics, g.people.metrics...), g.heads.metrics...)
	}
	<-g.turn
	out <- metric(fleetUp, map[bool]float64{true: 1}[up])
	for _, m := range metrics {
		out <- m
	}
}

// refresh queries the server if the cache is too old. A failed query empties the cache. It is
// repeated after maxAge, like any other query.
func (g *Gauges) refresh(ctx context.Context, c *cache, query func(context.Context) ([]prometheus.Metric, error)) {
	if !c.at.IsZero() && time.Since(c.at) < c.maxAge {
		return
	}
	metrics, err := query(ctx)
	if err != nil {
		metrics = nil
		if c.up || c.at.IsZero() {
			g.cfg.Logger.Warn("the gauges of the fleet are absent, because the NATS server does not answer: check the connection", "err", err)
		}
	}
	c.metrics, c.up, c.at = metrics, err == nil, time.Now()
}

func metric(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (g *Gauges) queryFleet(ctx context.Context) (metrics []prometheus.Metric, err error) {
	asking, ctx := errgroup.WithContext(ctx)
	streams, missing := make([]inspect.StreamState, len(shownStreams)), make([]bool, len(shownStreams))
	for i, name := range shownStreams {
		asking.Go(func() (err error) {
			streams[i], err = inspect.Stream(ctx, g.conn, g.names.Stream(name))
			if errors.Is(err, bus.ErrNoStream) { // the other streams are still shown
				missing[i], err = true, nil
			}
			return err
		})
	}
	var pools []prometheus.Metric
	asking.Go(func() (err error) {
		pools, err = g.queryPools(ctx)
		return err
	})
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	for i, s := range streams {
		name := shownStreams[i]
		if missing[i] {
			continue
		}
		metrics = append(metrics, metric(streamBytes, float64(s.Bytes), name), metric(streamHolds, float64(s.Messages), name))
		if s.MaxBytes > 0 {
			metrics = append(metrics, metric(streamAtMost, float64(s.MaxBytes), name))
		}
		if name == bus.Batches {
			metrics = append(metrics, metric(batchesOpen, float64(s.Messages)))
		}
	}
	return append(metrics, pools...), nil
}

// poolCapacity has the number of workers and slots of a pool, and the queues of its
// toolsets.
type poolCapacity struct {
	workers, slots int
	toolsets       []string
}

func (g *Gauges) queryPools(ctx context.Context) (metrics []prometheus.Metric, err error) {
	capacities, err := g.capacities(ctx)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(capacities))
	queues, unserved := make([]inspect.Queue, len(names)), make([]inspect.Queue, len(names))
	asking, asked := errgroup.WithContext(ctx)
	for i, pool := range names {
		asking.Go(func() (err error) {
			queues[i], err = inspect.Pool(asked, g.conn, pool, capacities[pool].toolsets...)
			if err == nil {
				unserved[i], err = inspect.QueueOf(asked, g.conn, wire.WaitingQueue(pool))
			}
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	now := g.conn.Now(ctx)
	for i, pool := range names {
		q := queues[i]
		metrics = append(metrics,
			metric(poolPending, float64(q.Pending), pool), metric(poolInFlight, float64(q.InFlight), pool),
			metric(poolLoad, float64(q.Pending+q.InFlight), pool), metric(poolOldest, age(now, q.Oldest), pool),
			metric(poolSlots, float64(capacities[pool].slots), pool),
			metric(poolWorkers, float64(capacities[pool].workers), pool),
			metric(poolUnserved, float64(unserved[i].Pending), pool), metric(poolToolsets, float64(len(capacities[pool].toolsets)), pool))
	}
	return metrics, nil
}

// capacities returns every pool that a worker serves or a tool names.
func (g *Gauges) capacities(ctx context.Context) (map[string]poolCapacity, error) {
	workers, err := g.conn.Values(ctx, g.names.Stream(bus.BucketWorkers))
	if err != nil {
		return nil, err
	}
	capacities := map[string]poolCapacity{}
	for _, tool := range g.cfg.Tools() {
		capacities[tool.Pool] = poolCapacity{}
	}
	var present []wire.Presence
	for key, value := range workers {
		w, err := wire.ReadPresence(key, value)
		if err != nil {
			continue
		}
		w, _ = g.cfg.Owners.Bound(w) // the rest counts nowhere in the fleet
		for _, pool := range w.Pools {
			c := capacities[pool]
			c.workers, c.slots = c.workers+1, c.slots+w.Slots
			capacities[pool] = c
		}
		present = append(present, w)
	}
	for _, q := range toolset.New(present).Queues() {
		c := capacities[q.Pool]
		c.toolsets = append(c.toolsets, q.Token)
		capacities[q.Pool] = c
	}
	return capacities, nil
}

func (g *Gauges) queryPeople(ctx context.Context) (metrics []prometheus.Metric, err error) {
	open, err := g.journal.Pending(ctx, "*") // the questions of every tenant
	if err != nil {
		return nil, err
	}
	pending, oldest := map[messages.Tier]int{}, map[messages.Tier]time.Time{}
	for _, q := range open { // the oldest first
		if pending[q.Tier]++; pending[q.Tier] == 1 {
			oldest[q.Tier] = q.Asked
		}
	}
	now := g.conn.Now(ctx)
	for _, t := range messages.Tiers {
		metrics = append(metrics, metric(asksPending, float64(pending[t]), string(t)),
			metric(asksOldest, age(now, oldest[t]), string(t)))
	}
	return metrics, nil
}

// Reasons why the head of a session is stuck.
const (
	headReplied = "replied" // its reply is stored, but it is still in the log
	headIdle    = "idle"    // none of its calls is queued, runs, or waits for a person
)

// queryHeads takes one step of a sweep through the log. While the sweep is not complete, it
// shows for each reason the larger of two numbers: what this sweep has found so far, and what
// the previous sweep found.
func (g *Gauges) queryHeads(ctx context.Context) (metrics []prometheus.Metric, err error) {
	if g.sweep == nil {
		g.sweep = g.journal.SweepHeads(HeadPatience(g.cfg.QueueTimeout, g.cfg.Tools()))
	}
	done, err := g.sweep.Step(ctx)
	if err != nil {
		return nil, err
	}
	stuck := map[string]int{}
	for _, h := range g.sweep.Stuck() {
		if h.Replied {
			stuck[headReplied]++
		} else {
			stuck[headIdle]++
		}
	}
	if done {
		g.sweep, g.stuck = nil, stuck
	}
	for _, reason := range []string{headReplied, headIdle} {
		metrics = append(metrics, metric(headsStuck, float64(max(stuck[reason], g.stuck[reason])), reason))
	}
	return metrics, nil
}

// HeadPatience returns how long the head of a session may show no activity before it counts as
// stuck, if no record gives a reason to wait. In this time its calls may wait for a worker,
// run once more, or pause between two attempts. The time also covers [session.MaxSuspend], for
// which no coordinator looks at a suspended batch.
func HeadPatience(queueTimeout time.Duration, tools []schemas.Tool) time.Duration {
	longest := time.Duration(0)
	for _, t := range tools {
		longest = max(longest, t.Timeout()+t.Retry.Backoff(t.Retry.Attempts))
	}
	return queueTimeout + longest + session.MaxSuspend + time.Minute
}

// age returns the seconds since then, or 0 for the zero time.
func age(now, then time.Time) float64 {
	if then.IsZero() {
		return 0
	}
	return max(0, now.Sub(then).Seconds())
}
