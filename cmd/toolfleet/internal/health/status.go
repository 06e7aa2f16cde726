package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// StatusCmd is "toolfleet status".
type StatusCmd struct {
	daemon.Server
	command.OutputFlags
}

// fleetStatus is what -o json prints.
type fleetStatus struct {
	Workers []wire.Presence `json:"workers"`
	// Tools has every tool in its current version, followed by the other versions that are served.
	Tools  []schemas.Tool `json:"tools"`
	Pools  []poolStatus   `json:"pools"`
	Queues []queueStatus  `json:"queues"`
	// Differences lists the workers that do not serve the same tools as their pool.
	Differences []toolsetDifference `json:"differences,omitempty"`
	// Coordinators is how many coordinators answer; missing if this user may not ask them.
	Coordinators *int   `json:"coordinators,omitempty"`
	Batches      uint64 `json:"batches"` // accepted and not finished
	Dead         uint64 `json:"dead"`    // messages that could not be processed
	Sync         string `json:"sync"`    // when the server writes to the disk: always, interval, unknown
	// UnsafeSync: the settings accept a server that does not sync always.
	UnsafeSync bool `json:"unsafe_sync"`
}

type poolStatus struct {
	Pool     string `json:"pool"`
	Workers  int    `json:"workers"`
	Slots    int    `json:"slots"`
	Pending  int    `json:"pending"`   // jobs that no worker has taken
	InFlight int    `json:"in_flight"` // jobs that a worker has
	// Unserved counts the pending jobs whose tool no worker has in the planned version.
	Unserved int `json:"unserved"`
	// UnservedTool is the tool of the oldest unserved job.
	UnservedTool string `json:"unserved_tool,omitempty"`
}

// Run prints the state of the fleet to stdout.
func (s StatusCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	var coordinators *int
	var counting sync.WaitGroup
	counting.Go(func() { coordinators = countCoordinators(a.Ctx, conn) })
	status, err := statusOf(a.Ctx, conn)
	counting.Wait()
	if err != nil {
		return err
	}
	status.Coordinators = coordinators
	status.Sync, status.UnsafeSync = conn.SyncMode(a.Ctx), cfg.UnsafeSync
	if s.JSON() {
		return a.Print(status)
	}
	return status.show(a)
}

func statusOf(ctx context.Context, conn *bus.Conn) (s fleetStatus, err error) {
	fleet, err := command.ReadFleet(ctx, conn)
	if err != nil {
		return s, err
	}
	s.Workers, s.Tools = fleet.Workers, fleet.Tools()
	names := conn.Names()
	for stream, into := range map[string]*uint64{bus.Batches: &s.Batches, bus.Dead: &s.Dead} {
		held, err := inspect.Stream(ctx, conn, names.Stream(stream))
		if err != nil {
			return s, err
		}
		*into = held.Messages
	}
	s.Pools = poolsOf(s.Workers, s.Tools)
	s.Differences = toolsetDifferences(s.Workers, fleet)
	s.Queues = queuesOf(s.Workers, fleet)
	for i := range s.Pools {
		p := &s.Pools[i]
		if err := p.count(ctx, conn, s.Queues); err != nil {
			return s, err
		}
	}
	return s, nil
}

// count counts the jobs of a pool, in all and by queue, as the gauges of coordinators do.
func (p *poolStatus) count(ctx context.Context, conn *bus.Conn, queues []queueStatus) error {
	var tokens []string
	for i := range queues {
		q := &queues[i]
		if q.Pool != p.Pool {
			continue
		}
		held, err := inspect.QueueOf(ctx, conn, q.Queue)
		if err != nil {
			return err
		}
		q.Pending, q.InFlight = int(held.Pending), int(held.InFlight)
		tokens = append(tokens, q.Queue)
	}
	all, err := inspect.Pool(ctx, conn, p.Pool, tokens...)
	if err != nil {
		return err
	}
	p.Pending, p.InFlight = int(all.Pending), int(all.InFlight)
	waiting := wire.WaitingQueue(p.Pool)
	unserved, err := inspect.QueueOf(ctx, conn, waiting)
	if p.Unserved = int(unserved.Pending); err != nil || p.Unserved == 0 {
		return err
	}
	var oldest uint64
	for _, filter := range conn.Names().QueueOf(waiting) {
		msg, err := conn.First(ctx, conn.Names().Stream(bus.Jobs), filter)
		if errors.Is(err, bus.ErrNotFound) {
			continue
		}
		var job wire.Job
		if err == nil {
			err = json.Unmarshal(msg.Data, &job)
		}
		if err != nil {
			return fmt.Errorf("read a job of pool %s that waits: %w", p.Pool, err)
		}
		if oldest == 0 || msg.Seq < oldest {
			oldest, p.UnservedTool = msg.Seq, job.Tool
		}
	}
	return nil
}

// waits says which jobs of the pool wait because no worker has their tool, as a sentence without
// its full stop.
func (p poolStatus) waits() string {
	return fmt.Sprintf("pool %s: %s waiting for a tool that no worker serves in the planned version; the oldest is of %s",
		p.Pool, terminal.Count(p.Unserved, "call"), terminal.Clean(p.UnservedTool, 64))
}

// countCoordinators returns how many coordinators answer, or nil if this user may not ask them.
func countCoordinators(ctx context.Context, conn *bus.Conn) *int {
	if !conn.May(ctx, "$SRV.INFO.toolfleet") {
		return nil
	}
	services, err := coordinatorsOf(ctx, conn)
	if err != nil {
		return nil
	}
	n := len(services)
	return &n
}

// poolsOf returns every pool that a worker serves or a tool names, sorted.
func poolsOf(workers []wire.Presence, tools []schemas.Tool) []poolStatus {
	byName := map[string]poolStatus{}
	for _, t := range tools {
		byName[t.Pool] = poolStatus{}
	}
	for _, w := range workers {
		for _, name := range w.Pools {
			p := byName[name]
			p.Workers++
			p.Slots += w.Slots
			byName[name] = p
		}
	}
	pools := []poolStatus{}
	for _, name := range rawjson.SortedKeys(byName) {
		p := byName[name]
		p.Pool = name
		pools = append(pools, p)
	}
	return pools
}

func toolsIn(pool string, tools []schemas.Tool) []schemas.Tool {
	return slices.DeleteFunc(slices.Clone(tools), func(t schemas.Tool) bool { return t.Pool != pool })
}

func (s fleetStatus) show(a *command.App) error {
	now := time.Now()
	workers := [][]string{{"WORKER", "BUSY", "SLOTS", "POOLS", "TOOLS", "UP", "HEARD", "VERSION"}}
	for _, w := range s.Workers {
		workers = append(workers, []string{
			terminal.Clean(w.Worker, 64), fmt.Sprint(w.Busy), fmt.Sprint(w.Slots), strings.Join(w.Pools, ","), fmt.Sprint(len(w.Tools)),
			terminal.Span(w.Seen.Sub(w.Started)), terminal.Span(now.Sub(w.Seen)) + " ago", terminal.Clean(w.Version, 32),
		})
	}
	pools := [][]string{{"POOL", "WORKERS", "SLOTS", "PENDING", "IN FLIGHT", "TOOLS"}}
	for _, p := range s.Pools {
		pools = append(pools, []string{
			p.Pool, fmt.Sprint(p.Workers), fmt.Sprint(p.Slots), fmt.Sprint(p.Pending), fmt.Sprint(p.InFlight), namesOf(toolsIn(p.Pool, s.Tools)),
		})
	}
	tables := [][][]string{workers, pools}
	if len(s.Queues) > len(poolsOf(s.Workers, nil)) { // otherwise a pool has one queue
		queues := [][]string{{"POOL", "TOOLSET", "WORKERS", "PENDING", "IN FLIGHT", "TOOLS"}}
		for _, q := range s.Queues {
			queues = append(queues, []string{q.Pool, q.Queue, few(q.Workers), fmt.Sprint(q.Pending), fmt.Sprint(q.InFlight), few(q.Tools)})
		}
		tables = append(tables, queues)
	}
	for i, rows := range tables {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.Stdout, "\n%s%s\nsync: %s%s\n", s.differ(), s.open(), s.Sync, s.risk())
	return err
}

// differ returns lines about workers that do not serve what calls need. First comes a line for
// each group of workers that get calls of tools that they do not serve, or whose outdated
// tools no worker serves in the planned version. A line for each pool in which calls wait for
// a tool follows. The last line counts the workers whose commands are not wholly confined.
func (s fleetStatus) differ() string {
	var text strings.Builder
	for _, d := range s.Differences {
		if d.Shared || len(d.Unserved) > 0 {
			fmt.Fprintf(&text, "%s (toolfleet doctor)\n", d)
		}
	}
	for _, p := range s.Pools {
		if p.Unserved > 0 && p.Workers > 0 {
			fmt.Fprintf(&text, "%s (toolfleet doctor)\n", p.waits())
		}
	}
	lacking := 0
	for _, w := range s.Workers {
		if len(w.Gaps) > 0 {
			lacking++
		}
	}
	if lacking > 0 {
		fmt.Fprintf(&text, "%s with tools whose commands are not wholly confined (toolfleet doctor)\n", terminal.Count(lacking, "worker"))
	}
	return text.String()
}

// open returns on one line how many coordinators, open batches and dead letters there are.
func (s fleetStatus) open() string {
	var text string
	if s.Coordinators != nil {
		text = terminal.Count(*s.Coordinators, "coordinator") + ", "
	}
	return text + openBatches(s.Batches) + ", " + terminal.Count(int(s.Dead), "dead letter")
}

func openBatches(n uint64) string {
	switch n {
	case 0:
		return "no batch open"
	case 1:
		return "1 batch open (toolfleet batch ls)"
	}
	return fmt.Sprintf("%d batches open (toolfleet batch ls)", n)
}

// risk says what may be lost if the server does not always sync, or if that is not known.
func (s fleetStatus) risk() string {
	var text string
	switch s.Sync {
	case bus.SyncAlways:
		return ""
	case bus.SyncInterval:
		text = ": a power failure may lose accepted batches"
	default:
		text = ": the server does not tell, so a power failure may lose accepted batches"
	}
	if s.UnsafeSync {
		text += "; unsafe_sync accepts that"
	}
	return text
}

// namesOf lists the first few tools.
func namesOf(tools []schemas.Tool) string {
	var names []string
	for _, t := range tools {
		names = append(names, labelOf(t))
	}
	return few(names)
}
