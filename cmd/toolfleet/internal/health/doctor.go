// Package health is "toolfleet doctor" and "toolfleet status": it shows the state of a fleet, its
// server and its workers, and says what to do about problems.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/policy"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// DoctorCmd checks the server, the streams and the fleet, and says what to do about each problem.
type DoctorCmd struct {
	daemon.Server
	daemon.Governed
	command.OutputFlags
}

// Help is shown below the command's usage.
func (DoctorCmd) Help() string {
	return `Each line is ok, warn or fail; warn and fail say what to do. The exit status is 1 if any line is fail.`
}

// finding is one line of the report.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warn, fail
	Detail string `json:"detail"`
	Next   string `json:"next,omitempty"` // what to do
}

// examination collects the findings about one fleet.
type examination struct {
	ctx      context.Context
	cfg      *config.Config
	connect  func() (*bus.Conn, error)
	conn     *bus.Conn
	findings []finding
}

func (e *examination) ok(check, format string, args ...any) {
	e.findings = append(e.findings, finding{check, "ok", fmt.Sprintf(format, args...), ""})
}

func (e *examination) warn(check, next, format string, args ...any) {
	e.findings = append(e.findings, finding{check, "warn", fmt.Sprintf(format, args...), next})
}

func (e *examination) fail(check, next, format string, args ...any) {
	e.findings = append(e.findings, finding{check, "fail", fmt.Sprintf(format, args...), next})
}

// Run prints the findings to stdout. It returns an error if one of them is "fail".
func (d DoctorCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	e := &examination{ctx: a.Ctx, cfg: cfg, connect: func() (*bus.Conn, error) { return a.Connect(cfg, nil) }}
	e.examine()
	if d.JSON() {
		err = a.Print(map[string]any{"findings": e.findings})
	} else {
		err = a.Table(findingRows(e.findings))
	}
	for _, f := range e.findings {
		if f.Status == "fail" {
			return errors.Join(err, command.ErrPrinted)
		}
	}
	return err
}

func findingRows(findings []finding) (rows [][]string) {
	for _, f := range findings {
		detail := terminal.Clean(f.Detail, 300)
		if f.Next != "" {
			detail += ". " + f.Next
		}
		rows = append(rows, []string{f.Status, f.Check, detail})
	}
	return rows
}

func (e *examination) examine() {
	e.settings()
	e.approvers()
	conn, err := e.connect()
	if err != nil {
		e.fail("connection", "", "%v", err)
		return
	}
	defer conn.Close()
	e.conn = conn
	e.ok("connection", "connected")
	e.server()
	e.payload()
	e.sync()
	if !e.rights() || !e.streams() {
		return
	}
	e.writable()
	e.room()
	e.consumers()
	e.workers()
	e.sessions()
	e.dead()
}

func (e *examination) settings() {
	if e.cfg.File() != "" {
		e.ok("settings", "from %s", e.cfg.File())
	}
	for _, name := range e.cfg.Strange() {
		e.warn("settings", "See `toolfleet config print` for the names.", "%s is set, and there is no such setting", name)
	}
}

// approvers finds out whether calls that need an approval are refused, because the policy names no
// approvers, or too few.
func (e *examination) approvers() {
	p, err := localtools.Policy(e.cfg, schemas.Rules{})
	if err != nil {
		e.fail("policy", "", "%v", err)
		return
	}
	people := p.Needs()
	asked := permission.Ruling{Permission: messages.Permission{Effect: string(permission.Ask)}, Approvers: people, Ticket: people > 1}
	if lacks := policy.TooFewApprovers(p, asked); lacks != "" {
		e.warn("policy", "Name approvers in the policy file (--policy): `toolfleet approvals key FILE` makes a key and prints the lines.", "a call that the policy asks about %s", lacks)
	}
}

// server checks the server itself. It also compares the clocks: deadlines use this machine's clock,
// and the ages of messages the server's.
func (e *examination) server() {
	asked := time.Now()
	server, err := inspect.Server(e.ctx, e.conn)
	if err != nil {
		e.warn("server", "Servers before 2.11, or a user without the right to ask, do not say; toolfleet is tested with 2.14 and 2.15.", "the server does not tell its version: %v", err)
		return
	}
	e.ok("server", "%s, version %s", server.Name, server.Version)
	if !server.JetStream {
		e.fail("jetstream", "Start nats-server with jetstream enabled, or use `toolfleet nats`.", "JetStream is off")
	} else {
		e.ok("jetstream", "on")
	}
	halfway := asked.Add(time.Since(asked) / 2)
	switch off := server.Time.Sub(halfway).Abs().Round(time.Millisecond); {
	case server.Time.IsZero():
	case off > time.Second:
		e.warn("clock", "Set the clocks of all machines by NTP.", "the clocks of the server and of this machine differ by %v", off)
	default:
		e.ok("clock", "differs from the server's by %v", off)
	}
}

func (e *examination) payload() {
	const least = 1 << 20
	if limit := e.conn.MaxPayload(); limit < least {
		e.warn("max_payload", "Set max_payload: 1MB or more; batches and large results are refused beyond it.", "%d bytes", limit)
	} else {
		e.ok("max_payload", "%d bytes", limit)
	}
}

func (e *examination) sync() {
	const how = "Set jetstream { sync_interval: always } on every server."
	accepted := ""
	if e.cfg.UnsafeSync {
		accepted = "; unsafe_sync accepts that"
	}
	switch mode := e.conn.SyncMode(e.ctx); mode {
	case bus.SyncAlways:
		e.ok("sync", "always: what is acknowledged survives a power failure")
	case bus.SyncInterval:
		e.warn("sync", how, "at intervals: a power failure may lose accepted batches%s", accepted)
	default:
		e.warn("sync", "Look for jetstream { sync_interval: always } in its configuration.", "unknown: this server tells only its system account%s", accepted)
	}
}

// rights reports whether this user may read everything that the checks need. The server sends no
// answer to a user without these rights. Without this check, the server would look broken.
func (e *examination) rights() bool {
	// writable sends this request too. Not even coordinators have the right to it.
	subject := "$JS.API.STREAM.MSG.DELETE." + e.conn.Names().Stream(bus.Calls)
	if !e.conn.May(e.ctx, subject) {
		e.fail("rights", "Run it as a user with the right, for example the operator of docs/identities.md.", "this user lacks rights that the checks need, for example to %s", subject)
		return false
	}
	return true
}

// streams reports whether all streams exist.
func (e *examination) streams() bool {
	names := e.conn.Names()
	var missing []string
	for _, name := range []string{
		names.Stream(bus.Batches), names.Stream(bus.Jobs), names.Stream(bus.Calls), names.Stream(bus.Results), names.Stream(bus.Audit),
		names.Stream(bus.Dead), names.Stream(bus.Replies), "KV_" + names.Stream(bus.BucketTools), "KV_" + names.Stream(bus.BucketKeys), "KV_" + names.Stream(bus.BucketWorkers),
		"KV_" + names.Stream(bus.BucketApprovals), "OBJ_" + names.Stream(bus.Objects),
	} {
		switch _, err := inspect.Stream(e.ctx, e.conn, name); {
		case errors.Is(err, bus.ErrNoStream):
			missing = append(missing, name)
		case err != nil:
			e.fail("streams", "Give this user the right to $JS.API.>, or run it as another user.", "%v", err)
			return false
		}
	}
	var lost *provision.LostStream
	if err := provision.Lost(e.ctx, e.conn); errors.As(err, &lost) {
		e.fail("streams", "", "%v", err)
		return false
	}
	if len(missing) > 0 {
		e.fail("streams", "Start `toolfleet coordinator`: it makes them. Is --prefix right?", "missing: %s", strings.Join(missing, ", "))
		return false
	}
	// No stream is missing, so Ensure makes none: it checks them, as it does for every daemon that
	// starts.
	if err := provision.Ensure(e.ctx, e.conn, e.cfg.Provision()); err != nil {
		e.fail("streams", "", "%v", err)
		return false
	}
	e.ok("streams", "present and as needed")
	return true
}

func (e *examination) consumers() {
	info, err := inspect.Consumer(e.ctx, e.conn, e.conn.Names().Stream(bus.Batches), bus.CoordinatorsConsumer)
	if err == nil && info.Waiting > 0 {
		e.ok("coordinators", "taking batches")
		return
	}
	var held inspect.StreamState
	if err == nil || errors.Is(err, bus.ErrNotFound) { // not found: the server has restarted, and no coordinator since
		held, err = inspect.Stream(e.ctx, e.conn, e.conn.Names().Stream(bus.Batches))
	}
	if err != nil {
		e.fail("coordinators", "", "%v", err)
		return
	}
	e.fail("coordinators", "Start `toolfleet coordinator`.", "none is taking batches, %s", openBatches(held.Messages))
}

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

// servers names the programs and services that bring tools and do not run.
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

// hooks names the hooks that could not run when they were last started or asked.
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

// sandboxes reports what the sandboxes of commands lack. Tools with the same lack share a line.
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

// manyConsumers is the number of consumers at which doctor warns. The server's limit is 1000 unless
// it is configured.
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

// toolsets reports workers that serve other tools than the rest of their pool, if calls suffer from
// it.
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

// pool finds jobs that no worker will take. Jobs in flight count too: without workers they are
// delivered again, to none.
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

// answerTime is how long the check waits for coordinators' answers. It always waits that long,
// because it does not know how many coordinators there are.
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

// writable finds streams that refuse every write. After its disk was full, a server refuses writes
// until it is restarted, even if there is room again, and a sender without an acknowledgement does
// not notice. The check deletes a message that does not exist: that changes nothing, and fails for
// the same reason as a write. The streams of records refuse every delete, so the check leaves them
// out. They are on the same disk.
func (e *examination) writable() {
	const never = 1 << 62
	names := e.conn.Names()
	good := true
	for _, stream := range []string{bus.Batches, bus.Jobs, bus.Dead} {
		if err := e.conn.Delete(e.ctx, names.Stream(stream), never); err != nil {
			good = false
			e.fail("writable", "Make room on its disk, then restart the NATS server: it takes no writes before that. Acknowledged messages are kept.", "%v", err)
		}
	}
	if good {
		e.ok("writable", "the streams take writes")
	}
}

// room finds streams that have reached a bound.
func (e *examination) room() {
	names := e.conn.Names()
	for _, stream := range []string{bus.Batches, bus.Jobs, bus.Calls, bus.Results, bus.Audit, bus.Dead, bus.Replies} {
		info, err := inspect.Stream(e.ctx, e.conn, names.Stream(stream))
		if err != nil {
			e.fail("room", "", "%v", err)
			continue
		}
		const raise = "Raise it in the settings of the server's stream, or wait until what is there ends or ages out."
		if most := info.MaxMessages; most > 0 && info.Messages >= uint64(most) {
			e.warn("room", raise, "%s is full: it holds %d messages and max_msgs is %d; further ones are refused", names.Stream(stream), info.Messages, most)
		}
		switch most := info.MaxBytes; {
		case most > 0 && info.Bytes >= uint64(most):
			e.fail("room", raise, "%s is full: it holds %d bytes and max_bytes is %d; it refuses writes, and batches wait for it", names.Stream(stream), info.Bytes, most)
		case most > 0 && float64(info.Bytes) > 0.9*float64(most):
			e.warn("room", raise, "%s is nearly full: it holds %d bytes and max_bytes is %d; a message that does not fit is refused", names.Stream(stream), info.Bytes, most)
		}
	}
}

// stuckSessions is how many stuck sessions are listed by name.
const stuckSessions = 50

// sessions lists sessions whose head has not moved although no record explains that.
func (e *examination) sessions() {
	fleet, err := command.ReadFleet(e.ctx, e.conn)
	sweep := journal.New(e.conn).SweepHeads(fleetgauges.HeadPatience(e.cfg.Coordinators.QueueTimeout, fleet.Tools()))
	for done := false; !done && err == nil; {
		done, err = sweep.Step(e.ctx)
	}
	if err != nil {
		e.fail("sessions", "", "%v", err)
		return
	}
	now := e.conn.Now(e.ctx)
	for i, h := range sweep.Stuck() {
		if i == stuckSessions {
			e.fail("sessions", "`toolfleet batch ls` lists every open batch.", "and %d more", len(sweep.Stuck())-i)
			break
		}
		session, batch := terminal.Clean(string(h.Session), 80), terminal.Clean(string(h.Batch), 80)
		if h.Key.Tenant != messages.OneTenant {
			session += " of tenant " + h.Key.Tenant
		}
		if h.Replied {
			e.fail("sessions", "`toolfleet abort SESSION BATCH` has a coordinator take it out of the log; its reply stays as it is.",
				"session %s stands still: its batch %s has had its reply for %s and is still in the log", session, batch, terminal.Span(now.Sub(h.Since)))
			continue
		}
		e.fail("sessions", "`toolfleet batch get BATCH --session SESSION --timeline` shows how far it came; then restart the coordinators.",
			"session %s stands still: no call of its batch %s has been queued, run or waited for a person for %s", session, batch, terminal.Span(now.Sub(h.Since)))
	}
	if len(sweep.Stuck()) == 0 {
		e.ok("sessions", "none stands still")
	}
}

// newestDead is how many dead letters the report quotes, the newest ones.
const newestDead = 3

func (e *examination) dead() {
	info, err := inspect.Stream(e.ctx, e.conn, e.conn.Names().Stream(bus.Dead))
	var newest []journal.DeadLetterEntry
	if err == nil {
		newest, err = journal.New(e.conn).DeadLetters(e.ctx, newestDead)
	}
	switch {
	case err != nil:
		e.fail("dead letters", "", "%v", err)
	case len(newest) == 0:
		e.ok("dead letters", "none")
	default:
		var reasons []string
		for _, d := range newest {
			reasons = append(reasons, fmt.Sprintf("%d: %s", d.Seq, terminal.Clean(d.Letter.Reason, 80)))
		}
		e.warn("dead letters", "`toolfleet dead ls` lists them, `toolfleet dead drop SEQ` deletes one.",
			"%s could not be processed; the newest: %s", terminal.Count(int(info.Messages), "message"), strings.Join(reasons, "; "))
	}
}
