package health

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

func (e *examination) workers() {
	fleet, err := command.ReadFleet(e.ctx, e.conn)
	workers, tools := fleet.Workers, fleet.Tools()
	if err != nil {
		e.fail("workers", "", "%v", err)
		return
	}
	if len(workers) == 0 {
		e.fail("workers", "Start `toolfleet worker --tools tools.yaml` or `toolfleet worker --root DIR`.", "there are none")
	} else {
		e.policies(workers)
		e.ok("workers", "%s in %s", terminal.Count(len(workers), "worker"), terminal.Count(len(poolsOf(workers, nil)), "pool"))
	}
	queues := queuesOf(workers, fleet)
	for _, p := range poolsOf(workers, tools) {
		e.pool(p, queues, tools)
	}
	e.toolsets(workers, fleet)
	if several := severalVersions(tools); len(several) > 0 {
		e.ok("versions", "served at the same time, calls use the first unless their batch names another: %s", few(several))
	}
	e.servers(workers)
	e.hooks(workers)
	e.sandboxes(workers)
	e.queues(workers)
}

// servers reports the programs and services of tools that do not run.
func (e *examination) servers(workers []wire.Presence) {
	for _, w := range workers {
		for _, s := range w.Servers {
			if s.Down != "" {
				detail := terminal.Clean(s.Down, 600)
				if s.Printed != "" {
					detail += ". It printed: " + terminal.Clean(strings.ReplaceAll(s.Printed, "\n", " | "), 1000)
				}
				next := cmp.Or(terminal.Clean(s.Advice, 1000), "Start its command by hand on the worker's machine to see what it says: toolfleet sandbox run --tool SERVER -- COMMAND.")
				e.fail("workers", next+" The worker tries again at the next call; without a lock file it has to be restarted.",
					"server %s of worker %s does not run: %s", terminal.Clean(s.Name, 80), terminal.Clean(w.Worker, 80), detail)
			}
			for _, refused := range s.Refused {
				e.warn("workers", "Name the tools that are served under tools, or ask the makers of the server.",
					"server %s: a tool is not served: %s", terminal.Clean(s.Name, 80), terminal.Clean(refused, 300))
			}
		}
	}
}

// hooks reports the hooks that could not run at their last start or call.
func (e *examination) hooks(workers []wire.Presence) {
	const next = "The log of the worker says what there is to mend. No restart is needed then."
	for _, w := range workers {
		for _, h := range w.Hooks {
			report, means := e.fail, "it is a gate, so the calls that it is asked about are refused"
			if h.Class != "gate" {
				report, means = e.warn, "it is an observer, so calls go on without it"
			}
			report("hooks", next, "hook %s of worker %s could not run the last time (%s); %s",
				terminal.Clean(h.Name, 80), terminal.Clean(w.Worker, 80), terminal.Clean(h.Why, 80), means)
		}
	}
}

// sandboxes reports the properties that the sandboxes of commands lack. Tools that lack the
// same share a line.
func (e *examination) sandboxes(workers []wire.Presence) {
	tools := map[string][]string{}
	for _, w := range workers {
		for tool, gaps := range w.Gaps {
			for _, gap := range gaps {
				tools[gap] = append(tools[gap], tool)
			}
		}
	}
	for _, gap := range slices.Sorted(maps.Keys(tools)) {
		names := slices.Compact(slices.Sorted(slices.Values(tools[gap])))
		next := "`toolfleet sandbox explain NAME` on the worker's machine says more."
		if strings.HasPrefix(gap, "network: host") {
			next = "Write sandbox: {network: none} for tools and servers that need no network."
		}
		if strings.HasPrefix(gap, "no sandbox: hooks") {
			next = "Write sandbox: {network: none} beside their commands in the policy file, with the folders that they need in read and state."
		}
		e.warn("sandbox", next, "%s: %s", terminal.Clean(few(names), 100), gap)
	}
}

// manyConsumers is the number of consumers at which doctor warns. The server's default limit
// is 1000.
const manyConsumers = 800

// queues reports problems with the queues of toolsets.
func (e *examination) queues(workers []wire.Presence) {
	for _, s := range splitPools(workers) {
		e.warn("workers", "Give all workers of the pool the same max_in_flight. If they have it, their NATS user may not pull from every consumer, or the server allowed no more consumers: see their logs.", "%s", s)
	}
	jobs, err := inspect.Stream(e.ctx, e.conn, e.conn.Names().Stream(bus.Jobs))
	if err == nil && jobs.Consumers >= manyConsumers {
		e.warn("workers", "Let workers serve the same tools, or set a higher limit of consumers on the server (max_consumers). At the limit, further workers share the queue of their pool.",
			"the stream of jobs has %d consumers, one for each toolset; a server allows 1000 unless it is set otherwise", jobs.Consumers)
	}
}

// toolsets reports workers that serve other tools than the rest of their pool, if calls are
// delayed or expire for that reason.
func (e *examination) toolsets(workers []wire.Presence, fleet command.Fleet) {
	for _, d := range toolsetDifferences(workers, fleet) {
		if len(d.Unserved) > 0 {
			e.fail("workers", "Restart a worker of the pool with the right tools file: calls are planned with the newest announcement.", "%s", d)
			continue
		}
		if d.Shared {
			e.warn("workers", "They share one queue, because the pool has a bound or they are of an older version. Start every worker of such a pool with the same tools file, or give tools that only some workers serve a pool of their own.", "%s", d)
		}
	}
}

// pool finds jobs that no worker will take. In a pool without workers, jobs in flight count
// too: the server delivers them again, and nobody takes them.
func (e *examination) pool(p poolStatus, queues []queueStatus, tools []schemas.Tool) {
	if err := p.count(e.ctx, e.conn, queues); err != nil {
		e.fail("workers", "", "%v", err)
		return
	}
	switch waiting := p.Pending + p.InFlight; {
	case p.Workers == 0 && waiting > 0:
		e.fail("workers", "Start `toolfleet worker --tools FILE` with a file that has a tool of this pool: "+terminal.Clean(namesOf(toolsIn(p.Pool, tools)), 200)+".",
			"pool %s: %s waiting and no worker that serves it", p.Pool, terminal.Count(waiting, "call"))
	case p.Workers > 0 && p.Unserved > 0:
		e.fail("workers", "Start a worker of the pool with the tools file that has this tool in this version.", "%s", p.waits())
	}
	for _, q := range queues {
		if q.Pool != p.Pool {
			continue
		}
		if _, err := inspect.Consumer(e.ctx, e.conn, e.conn.Names().Stream(bus.Jobs), q.Queue); err != nil {
			e.fail("workers", "Restart a worker of the pool.", "%v", err)
		}
	}
}

// answerTime is how long the check waits for coordinators' answers. It always waits the whole
// time, because it does not know how many coordinators there are.
const answerTime = 500 * time.Millisecond

// coordinatorsOf returns the coordinators of this fleet that answer.
func coordinatorsOf(ctx context.Context, conn *bus.Conn) ([]service.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	all, err := service.Find(ctx, conn, "toolfleet")
	door := conn.Names().EverySession(wire.VerbControl)
	// Coordinators of a fleet with another prefix.
	return slices.DeleteFunc(all, func(s service.Service) bool {
		return !slices.ContainsFunc(s.Endpoints, func(at service.Endpoint) bool { return at.Subject == door })
	}), err
}

// policies compares the versions of the policy among workers and coordinators.
func (e *examination) policies(workers []wire.Presence) {
	const next = "Give every worker and coordinator the same policy file (--policy)."
	services, err := coordinatorsOf(e.ctx, e.conn)
	if err != nil {
		e.warn("policy", "Give this user the right to $SRV.>, or run it as another user.", "the coordinators do not say by which one they decide: %v", err)
	}
	theirs, ours := map[string]bool{}, map[string]bool{}
	for _, s := range services {
		theirs[s.Metadata["policy"]] = true
	}
	ungoverned := 0
	for _, w := range workers {
		ours[w.Policy] = true
		if w.Policy == "" {
			ungoverned++
		}
	}
	platforms := maps.Clone(theirs)
	for version := range ours {
		platforms[wire.PlatformPolicy(version)] = true
	}
	switch {
	case ungoverned > 0 && len(theirs) > 0 && !theirs[""]:
		e.fail("policy", next, "%s without a policy: they take no calls, because the coordinators have one", terminal.Count(ungoverned, "worker"))
	case len(theirs) > 1:
		e.warn("policy", next+" Some coordinators take a decision about a call, and others refuse it.", "the coordinators have %d different policies", len(theirs))
	case len(theirs) > 0 && len(platforms) > 1:
		e.warn("policy", next, "workers decide by another policy than the coordinators have")
	case len(ours) > 1:
		e.warn("policy", next+" A call that was approved under one policy is asked about again under another.", "the workers decide by %d different policies", len(ours))
	case ours[""]:
		e.ok("policy", "none")
	default:
		e.ok("policy", "the same for all")
	}
}
