// Package health is "toolfleet doctor" and "toolfleet status": it shows the state of a fleet, its
// server and its workers, and says what to do about problems.
package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/policy"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/journal"
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

// Help returns the text that --help shows below the command's usage.
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

// approvers warns if the policy names too few approvers, or none: calls that need an approval
// are then refused.
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

// server checks the server itself. It also compares the clocks of this machine and the server:
// deadlines use this machine's clock, the ages of messages use the server's.
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
	// The check writable sends this request. Operators have the right to it, coordinators have
	// not.
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
	// No stream is missing, so Ensure creates none here. It only checks them, as it does
	// whenever a daemon starts.
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
	if err == nil || errors.Is(err, bus.ErrNotFound) { // not found: no coordinator since the server's restart
		held, err = inspect.Stream(e.ctx, e.conn, e.conn.Names().Stream(bus.Batches))
	}
	if err != nil {
		e.fail("coordinators", "", "%v", err)
		return
	}
	e.fail("coordinators", "Start `toolfleet coordinator`.", "none is taking batches, %s", openBatches(held.Messages))
}

// writable finds streams that refuse every write. A server whose disk was full refuses writes
// until it is restarted, even if there is room again. Senders that want no acknowledgement do
// not notice. The check deletes a message that does not exist: the request changes nothing,
// and fails for the same reason as a write. The check leaves out the streams of records,
// because they refuse every delete; they are on the same disk as the others.
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

// sessions lists stuck sessions: the head has not moved, and no record explains why.
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
