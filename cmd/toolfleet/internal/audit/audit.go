// Package audit is "toolfleet audit": it lists the lines of the audit log that match its filters,
// or shows the history of one call.
package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
)

// Cmd is "toolfleet audit".
type Cmd struct {
	daemon.Server
	command.OutputFlags
	Call     string   `placeholder:"ID" help:"Call, by the provider's id. Alone: its whole history."`
	Session  string   `placeholder:"ID" help:"Calls of this session."`
	Batch    string   `placeholder:"ID" help:"Calls of this batch."`
	Round    *int     `placeholder:"N" help:"Calls of this round of their session, if the agent numbered it."`
	Tool     string   `placeholder:"NAME" help:"Calls of this tool."`
	Status   []string `xor:"ended" placeholder:"STATUS" help:"Calls that ended so: ok, denied, outcome_unknown... Several separated by commas."`
	Failed   bool     `xor:"ended" help:"Calls that did not end ok."`
	Type     string   `placeholder:"TYPE" help:"Lines of this type: call, batch_refused, approval_asked, approval_decided, decision_refused..."`
	Effect   string   `enum:",allow,ask,deny" default:"" placeholder:"allow|ask|deny" help:"What was decided about the call; ask: a person was asked."`
	Approver string   `placeholder:"NAME" help:"Decisions of this person, and the calls that they approved."`
	Worker   string   `placeholder:"NAME" help:"Calls that ran on this worker."`
	Trace    string   `placeholder:"ID" help:"Lines of this trace."`
	Since    string   `placeholder:"WHEN" help:"Lines that were written since then: 24h ago, or a time such as 2026-01-31T08:00:00Z."`
	Until    string   `placeholder:"WHEN" help:"Lines that were written before then; a time as in --since."`
	Follow   bool     `short:"f" help:"Lines as they are written, from now on or from --since on."`
	Policy   string   `setting:"policy" placeholder:"FILE" help:"Policy file whose approvers the signatures of decisions are checked with [$$TOOLFLEET_POLICY]."`
	Tenant   string   `setting:"tenant" placeholder:"TOKEN" help:"Lines of this tenant. Default: of every tenant [$$TOOLFLEET_TENANT]."`
}

// Help returns the text that --help shows below the command's usage.
func (Cmd) Help() string {
	return `The audit log has a line for each call of each batch that has its reply, refused batches included, and lines about questions,
decisions and starts. It holds no arguments and no results except the fields of audit.include; equal arguments have equal hashes.
A line of a question or decision that may be false is marked: -o json says why in doubt. With a policy the signatures of decisions are checked.
-o json prints each line as a JSON object on a line of its own, which is the export.`
}

// Run prints the matching lines to stdout. No match is a failure.
func (c Cmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	want, err := c.filter(cfg, conn.Now(a.Ctx))
	if err != nil {
		return err
	}
	log, err := audit.New(conn, audit.Config{})
	if err != nil {
		return err
	}
	proof := newProof(a, cfg)
	if c.Call != "" && !c.Follow && !c.JSON() {
		err = c.printHistory(a, cfg, log, proof, want)
	} else {
		err = c.list(a, log, proof, want)
	}
	if errors.Is(err, bus.ErrNoStream) {
		return fmt.Errorf("%w; no fleet has run on this server yet, or --prefix is another", err)
	}
	return err
}

// check refuses statuses and types that no audit line can have: such a filter would never match.
func (c Cmd) check() error {
	statuses := []messages.Status{
		messages.StatusOK, messages.StatusValidationError, messages.StatusSemanticError, messages.StatusHookError, messages.StatusDenied, messages.StatusError,
		messages.StatusTimeout, messages.StatusAborted, messages.StatusSkipped, messages.StatusExpired, messages.StatusUnknownTool, messages.StatusOutcomeUnknown,
	}
	types := []messages.AuditType{
		messages.AuditCall, messages.AuditBatchRefused, messages.AuditAllowed, messages.AuditAsked, messages.AuditDecided, messages.AuditRefused,
		messages.AuditExpired, messages.AuditVoid, messages.AuditGranted,
	}
	for _, status := range c.Status {
		if err := known("--status", messages.Status(status), statuses); err != nil {
			return err
		}
	}
	if c.Follow && c.Until != "" {
		return command.Usagef("--follow goes on for ever, and --until ends: give one of them")
	}
	if c.Round != nil && *c.Round < 1 {
		return command.Usagef("--round %d: rounds count from 1", *c.Round)
	}
	return known("--type", messages.AuditType(c.Type), types)
}

func known[T ~string](flag string, word T, words []T) error {
	if word == "" {
		return nil
	}
	var all []string
	for _, w := range words {
		if w == word {
			return nil
		}
		all = append(all, string(w))
	}
	return command.Usagef("%s %.40q: want one of %s", flag, string(word), strings.Join(all, ", "))
}

func (c Cmd) filter(cfg *config.Config, now time.Time) (audit.Filter, error) {
	f := audit.Filter{
		Session: messages.SessionID(c.Session), Batch: messages.BatchID(c.Batch), Call: messages.CallID(c.Call), Tool: c.Tool,
		Type: messages.AuditType(c.Type), Effect: c.Effect, Approver: c.Approver, Worker: c.Worker, Trace: c.Trace,
	}
	if c.Round != nil {
		f.Round = *c.Round
	}
	if cfg.Given("tenant") {
		f.Tenant = cfg.Tenant
	}
	if len(c.Status) == 1 { // ended checks several statuses
		f.Status = messages.Status(c.Status[0])
	}
	var err error
	if f.Since, err = command.ParseMoment("--since", c.Since, now); err != nil {
		return f, err
	}
	if c.Follow && c.Since == "" {
		f.Since = now
	}
	f.Until, err = command.ParseMoment("--until", c.Until, now)
	return f, err
}

// ended reports whether a line passes --failed and --status.
func (c Cmd) ended(l messages.AuditRecord) bool {
	switch {
	case c.Failed:
		return l.Type == messages.AuditCall && l.Status != messages.StatusOK
	case len(c.Status) > 0:
		return slices.Contains(c.Status, string(l.Status))
	}
	return true
}

// list prints every matching line; with --follow, lines are printed as they arrive.
func (c Cmd) list(a *command.App, log *audit.Log, proof proof, want audit.Filter) error {
	found, unread, doubtful := 0, 0, 0
	table := newTable(a)
	put := table.add
	switch {
	case c.JSON():
		put = func(l messages.AuditRecord) error { return a.PrintLine(l) }
	case c.Follow:
		put = table.now
	}
	take := func(e audit.Entry) error {
		switch {
		case e.Err != nil:
			unread++
			return nil
		case !c.ended(e.Line):
			return nil
		}
		found++
		if e.Line.Doubt = proof.doubt(e); e.Line.Doubt != "" {
			doubtful++
		}
		return put(e.Line)
	}
	err := command.WhileRead(a.Ctx, func(ctx context.Context, wrote func(error)) error {
		if c.Follow {
			return log.Follow(ctx, want, func(e audit.Entry) {
				if ctx.Err() == nil {
					wrote(take(e))
				}
			})
		}
		err := log.Read(ctx, want, func(e audit.Entry) bool {
			err := take(e)
			wrote(err)
			return err == nil
		})
		wrote(table.end())
		return err
	})
	if err != nil {
		return err
	}
	if unread > 0 {
		a.Say("%s could not be read: nobody but coordinators and workers should write to the record", terminal.Count(unread, "message"))
	}
	if doubtful > 0 {
		a.Say("%s may be false; -o json says why in doubt", terminal.Count(doubtful, "line"))
	}
	if found == 0 && !c.Follow {
		return noLine(a, c.Call)
	}
	return nil
}

func noLine(a *command.App, call string) error {
	open := ""
	if call != "" {
		open = fmt.Sprintf(". While its batch is open `toolfleet batch ls --call %s` finds it", terminal.Clean(call, 80))
	}
	a.Say("no line of the audit log matches. A call has a line once its batch has its reply; lines are kept for audit_ttl. Try fewer filters, an earlier --since, or another --tenant%s", open)
	return command.ErrPrinted
}

// uncut is a cell width for cells that are never cut: no cell reaches it.
const uncut = 1 << 24

func cells(l messages.AuditRecord, cuts bool) []string {
	what, took, attempt := string(l.Status), terminal.None, terminal.None
	if l.Type != messages.AuditCall {
		what = string(l.Type)
	}
	if l.Doubt != "" {
		what += " (doubtful)"
	}
	if l.Type == messages.AuditCall && l.DurationMS > 0 { // 0: not measured
		took = took3(l.DurationMS)
	}
	if l.Attempt > 0 {
		attempt = strconv.Itoa(l.Attempt)
	}
	cell := func(text string, most int) string {
		if !cuts {
			most = uncut
		}
		return terminal.OrDash(text, most)
	}
	return []string{
		terminal.Timestamp(l.Time), cell(string(l.Session)+"/"+string(l.Batch), 80), cell(callName(l), 80), cell(l.Tool, 80), cell(what, 40),
		cell(decided(l), 120), took, attempt, cell(l.Worker, 80),
	}
}

func callName(l messages.AuditRecord) string {
	if l.CallID == "" && l.Index >= 0 {
		return "#" + strconv.Itoa(l.Index)
	}
	return string(l.CallID)
}

// took3 formats milliseconds as a duration, rounded to 10 ms if it is 1 s or more, to 100 µs if it
// is 1 ms or more, else to 1 µs.
func took3(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// decided returns who or what decided about a call, in a few words.
func decided(l messages.AuditRecord) string {
	if l.Decision != nil {
		text := string(l.Decision.Verdict) + " by " + l.Decision.By
		if l.Refusal != nil {
			text += ": " + string(l.Refusal.Class)
		}
		return text
	}
	if l.Refusal != nil {
		return string(l.Refusal.Class)
	}
	p := l.Permission
	switch {
	case p == nil:
		return ""
	case len(p.By) > 0 && p.Effect == "deny":
		return "deny by " + strings.Join(p.By, ", ")
	case len(p.By) > 0:
		return "allow by " + strings.Join(p.By, ", ")
	case p.Effect == "ask":
		return "asks: " + p.Rule
	case p.Rule != "":
		return p.Effect + " by " + p.Source + " " + p.Rule
	}
	return p.Effect + " by " + p.Source
}
