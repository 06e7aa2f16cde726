package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Gauges shows the whole fleet as the server knows it, to whoever scrapes. Every coordinator shows the same, so that any
// one of them is enough, and a query takes the max of them. What was seen is good for a while: however many scrapers there are,
// the server is asked once in that time, by one at a time.
type Gauges struct {
	*Coordinator
	turn                 chan struct{} // holds one: whoever has it may use the rest
	fleet, people, heads memory
	sweep                *journal.HeadSweep // through the log, while it is not complete
	stuck                map[string]int     // stuck heads by reason, as the last complete sweep found them
}

// memory is what a look has seen.
type memory struct {
	good time.Duration // how long it counts
	at   time.Time     // when it was seen
	seen []prometheus.Metric
	up   bool
}

const (
	lookWithin   = 2 * time.Second // how long whoever scrapes may be kept waiting by the server
	fleetIsGood  = 5 * time.Second
	peopleIsGood = 15 * time.Second // an index that is read whole
	headsAreGood = 15 * time.Second // a part of the log
)

// Gauges is the gauges of the coordinator's fleet, to be registered once with every registry that shows them.
func (c *Coordinator) Gauges() *Gauges {
	return &Gauges{Coordinator: c, turn: make(chan struct{}, 1), fleet: memory{good: fleetIsGood}, people: memory{good: peopleIsGood}, heads: memory{good: headsAreGood}}
}

func fleetDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	fleetUp       = fleetDesc("toolfleet_fleet_up", "1 when the last look at the server succeeded; without that the other gauges of the fleet are absent.")
	poolPending   = fleetDesc("toolfleet_pool_pending", "Calls that wait for a worker of the pool.", "pool")
	poolInFlight  = fleetDesc("toolfleet_pool_in_flight", "Calls that workers of the pool have in hand.", "pool")
	poolLoad      = fleetDesc("toolfleet_pool_load", "Calls that wait or are in hand: what to scale the pool by.", "pool")
	poolOldest    = fleetDesc("toolfleet_oldest_pending_call_age_seconds", "How long the oldest call that waits for a worker of the pool has waited; 0 when none does.", "pool")
	poolSlots     = fleetDesc("toolfleet_pool_slots", "Calls that the workers of the pool can run at once.", "pool")
	poolWorkers   = fleetDesc("toolfleet_pool_workers", "Workers that serve the pool.", "pool")
	batchesOpen   = fleetDesc("toolfleet_batches_open", "Batches accepted and not finished, those that wait for people included.")
	headsStuck    = fleetDesc("toolfleet_heads_stuck", "Sessions whose oldest open batch does not move although nothing explains it, by reason.", "reason")
	asksPending   = fleetDesc("toolfleet_approvals_pending", "Questions that wait for people, by tier.", "tier")
	asksOldest    = fleetDesc("toolfleet_approvals_oldest_age_seconds", "How long the oldest question of the tier has waited; 0 when none does.", "tier")
	streamBytes   = fleetDesc("toolfleet_stream_bytes", "What a stream holds.", "stream")
	streamHolds   = fleetDesc("toolfleet_stream_messages", "Messages in a stream.", "stream")
	streamAtMost  = fleetDesc("toolfleet_stream_max_bytes", "What a stream may hold, where it is bounded.", "stream")
	shownStreams  = []string{bus.Batches, bus.Jobs, bus.Calls, bus.Results, bus.Audit, bus.Dead, bus.Replies}
	allFleetDescs = []*prometheus.Desc{
		fleetUp, poolPending, poolInFlight, poolLoad, poolOldest, poolSlots, poolWorkers, batchesOpen, headsStuck, asksPending, asksOldest,
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
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	g.renew(ctx, &g.fleet, g.lookAtFleet)
	if g.fleet.up { // else it would be kept waiting in vain
		g.renew(ctx, &g.people, g.lookAtPeople)
		g.renew(ctx, &g.heads, g.lookAtHeads)
	}
	cancel()
	up, seen := g.fleet.up, slices.Clone(g.fleet.seen)
	if up {
		seen = append(append(seen, g.people.seen...), g.heads.seen...)
	}
	<-g.turn
	out <- metric(fleetUp, map[bool]float64{true: 1}[up])
	for _, m := range seen {
		out <- m
	}
}

// renew looks again when what was seen counts no longer. A look that fails shows nothing, for as long as one that does not.
func (g *Gauges) renew(ctx context.Context, m *memory, look func(context.Context) ([]prometheus.Metric, error)) {
	if !m.at.IsZero() && time.Since(m.at) < m.good {
		return
	}
	seen, err := look(ctx)
	if err != nil {
		seen = nil
		if m.up || m.at.IsZero() {
			g.log.Warn("the gauges of the fleet are absent: the server does not answer", "err", err)
		}
	}
	m.seen, m.up, m.at = seen, err == nil, time.Now()
}

func metric(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (g *Gauges) lookAtFleet(ctx context.Context) (seen []prometheus.Metric, err error) {
	asking, ctx := errgroup.WithContext(ctx)
	streams, missing := make([]bus.StreamState, len(shownStreams)), make([]bool, len(shownStreams))
	for i, name := range shownStreams {
		asking.Go(func() (err error) {
			streams[i], err = g.conn.AboutStream(ctx, g.names.Stream(name))
			if errors.Is(err, bus.ErrNoStream) { // the others are all the more of interest
				missing[i], err = true, nil
			}
			return err
		})
	}
	var pools []prometheus.Metric
	asking.Go(func() (err error) {
		pools, err = g.lookAtPools(ctx)
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
		seen = append(seen, metric(streamBytes, float64(s.Bytes), name), metric(streamHolds, float64(s.Messages), name))
		if s.MaxBytes > 0 {
			seen = append(seen, metric(streamAtMost, float64(s.MaxBytes), name))
		}
		if name == bus.Batches {
			seen = append(seen, metric(batchesOpen, float64(s.Messages)))
		}
	}
	return append(seen, pools...), nil
}

// crew is who serves a pool.
type crew struct{ workers, slots int }

func (g *Gauges) lookAtPools(ctx context.Context) (seen []prometheus.Metric, err error) {
	crews, err := g.crews(ctx)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(crews))
	queues := make([]bus.Queue, len(names))
	asking, asked := errgroup.WithContext(ctx)
	for i, pool := range names {
		asking.Go(func() (err error) {
			queues[i], err = g.conn.AboutPool(asked, pool)
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	now := g.conn.Now(ctx)
	for i, pool := range names {
		q := queues[i]
		seen = append(seen,
			metric(poolPending, float64(q.Pending), pool), metric(poolInFlight, float64(q.InFlight), pool),
			metric(poolLoad, float64(q.Pending+q.InFlight), pool), metric(poolOldest, age(now, q.Oldest), pool),
			metric(poolSlots, float64(crews[pool].slots), pool), metric(poolWorkers, float64(crews[pool].workers), pool))
	}
	return seen, nil
}

// crews is every pool that a worker serves or a tool names.
func (g *Gauges) crews(ctx context.Context) (map[string]crew, error) {
	workers, err := g.conn.Values(ctx, g.names.Stream(bus.BucketWorkers))
	if err != nil {
		return nil, err
	}
	crews := map[string]crew{}
	for _, tool := range g.catalog.now().Tools() {
		crews[tool.Pool] = crew{}
	}
	for _, said := range workers {
		var w wire.Presence
		if json.Unmarshal(said, &w) != nil {
			continue
		}
		for _, pool := range w.Pools {
			if messages.IsToken(pool) {
				crews[pool] = crew{crews[pool].workers + 1, crews[pool].slots + w.Slots}
			}
		}
	}
	return crews, nil
}

func (g *Gauges) lookAtPeople(ctx context.Context) (seen []prometheus.Metric, err error) {
	open, err := g.journal.Pending(ctx, "*") // of every tenant
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
		seen = append(seen, metric(asksPending, float64(pending[t]), string(t)), metric(asksOldest, age(now, oldest[t]), string(t)))
	}
	return seen, nil
}

// Reasons why the head of a session is stuck.
const (
	headReplied = "replied" // its reply is stored, and it was not taken out of the log
	headIdle    = "idle"    // no call of it is queued, runs, or waits for a person
)

// lookAtHeads takes a step of a sweep through the log. Until the sweep is complete it shows what the one before has found,
// unless this one has found more.
func (g *Gauges) lookAtHeads(ctx context.Context) (seen []prometheus.Metric, err error) {
	if g.sweep == nil {
		g.sweep = g.journal.SweepHeads(HeadPatience(g.cfg.QueueTimeout, g.catalog.now().Tools()))
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
		seen = append(seen, metric(headsStuck, float64(max(stuck[reason], g.stuck[reason])), reason))
	}
	return seen, nil
}

// HeadPatience is how long the head of a session may stand without a sign where nothing that is stored explains it. Its
// calls may wait for a worker, run once more, or pause between two attempts, and no coordinator looks at a batch that
// rests for up to [restAtMost].
func HeadPatience(queueTimeout time.Duration, tools []schemas.Tool) time.Duration {
	longest := time.Duration(0)
	for _, t := range tools {
		longest = max(longest, t.Timeout()+t.Retry.Backoff(t.Retry.Attempts))
	}
	return queueTimeout + longest + restAtMost + time.Minute
}

// age is how long ago that was, in seconds; 0 of no time at all.
func age(now, then time.Time) float64 {
	if then.IsZero() {
		return 0
	}
	return max(0, now.Sub(then).Seconds())
}
