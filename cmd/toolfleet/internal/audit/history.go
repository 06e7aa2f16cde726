package audit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// callKey identifies a call by its batch and index, because a provider may use the same call id
// twice.
type callKey struct {
	key   wire.BatchKey
	index int
}

// callRun holds the audit lines of one run of a call, in the order in which they were stored.
type callRun struct {
	lines []messages.AuditRecord
	ended bool // the line of type call has come
	asks  bool // at least one line matched the filter
}

// line identifies an audit line. The lines of one batch share a message, so the sequence alone is
// not enough.
type line struct {
	seq   uint64
	index int
}

func lineOf(e audit.Entry) line { return line{e.Seq, e.Line.Index} }

// splitRuns groups audit lines by call, and splits each call into its runs, because a later
// batch may have the id of a batch that ended long before. The line of type call ends a run.
// Later lines about a question of the run still belong to the run.
func splitRuns(entries []audit.Entry, asked map[line]bool) (all []*callRun) {
	newest := map[callKey]*callRun{}
	for _, e := range entries {
		at := callKey{e.Key, e.Line.Index}
		s := newest[at]
		if s == nil || s.ended && !s.takesLate(e.Line) {
			s = &callRun{}
			newest[at], all = s, append(all, s)
		}
		s.lines = append(s.lines, e.Line)
		s.ended = s.ended || e.Line.Type == messages.AuditCall
		s.asks = s.asks || asked[lineOf(e)]
	}
	return all
}

// takesLate reports whether a line still belongs to a run that has ended: it is a refused decision,
// or it is about a question that the run already has.
func (s *callRun) takesLate(l messages.AuditRecord) bool {
	return l.Type == messages.AuditRefused || l.Type != messages.AuditCall && slices.ContainsFunc(s.lines, func(before messages.AuditRecord) bool {
		return l.Approval != "" && l.Approval == before.Approval
	})
}

// printHistory prints the history of one call, or lists the calls if several share the id.
func (c Cmd) printHistory(a *command.App, cfg *config.Config, log *audit.Log, proof proof, want audit.Filter) error {
	found, err := read(a, log, proof, want)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(e audit.Entry) bool { return !c.ended(e.Line) })
	if len(found) == 0 {
		return noLine(a, c.Call)
	}
	asked, key := map[line]bool{}, found[0].Key
	for _, e := range found {
		asked[lineOf(e)] = true
		if e.Key != key {
			return listRuns(a, splitRuns(found, asked))
		}
	}
	all, err := read(a, log, proof, audit.Filter{Key: key}) // some have no call id
	if err != nil {
		return err
	}
	told := 0
	for _, s := range splitRuns(all, asked) {
		if !s.asks { // another call of the same batch
			continue
		}
		if told++; told > 1 {
			err = errors.Join(err, blankLine(a))
		}
		err = errors.Join(err, a.Table(callHistory(cfg, s.lines)))
	}
	return err
}

// listRuns prints the newest line of each run.
func listRuns(a *command.App, all []*callRun) error {
	var lines []messages.AuditRecord
	for _, s := range all {
		lines = append(lines, s.lines[len(s.lines)-1])
	}
	err := printRecords(a, lines)
	a.Say("%d calls have this id; --session and --batch say which one is meant", len(all))
	return err
}

func blankLine(a *command.App) error {
	_, err := fmt.Fprintln(a.Stdout)
	return err
}

func read(a *command.App, log *audit.Log, proof proof, want audit.Filter) (found []audit.Entry, err error) {
	err = log.Read(a.Ctx, want, func(e audit.Entry) bool {
		if e.Line.Doubt = proof.doubt(e); e.Err == nil {
			found = append(found, e)
		}
		return true
	})
	return found, err
}

// callHistory renders one run of a call as a table, from its lines in the order in which they were
// stored.
func callHistory(cfg *config.Config, lines []messages.AuditRecord) [][]string {
	end := headOf(lines)
	page := &page{}
	page.row("call", "%s of %s", terminal.OrDash(callName(end), 200), terminal.OrDash(end.Tool, 80))
	asker := ""
	if end.Principal != nil {
		asker = terminal.Clean(end.Principal.User, 80) + " of "
	}
	page.row("asked by", "%stenant %s, session %s, batch %s, call %d", asker, terminal.Clean(string(end.Tenant), 80), terminal.Clean(string(end.Session), 200), terminal.Clean(string(end.Batch), 200), end.Index)
	page.may("", end.Provider != "", "%s, round %s, accepted %s", terminal.Clean(string(end.Provider), 40), round(end.Round), terminal.Timestamp(end.Accepted))
	page.may("tool", end.ToolDigest != "", "%s version %s", terminal.Clean(cmp.Or(string(end.Kind), "kind unknown"), 20), terminal.ShortID(end.ToolDigest))
	page.may("arguments", end.ArgsHash != "", "hash %s", terminal.Clean(end.ArgsHash, 80))
	for _, name := range rawjson.SortedKeys(end.Arguments) {
		page.row("", "%s = %s", terminal.ArgumentName(terminal.Clean(name, 80)), terminal.Clean(terminal.JSONText(end.Arguments[name]), 400))
	}
	page.permission(end)
	doubt := agreed(end, lines)
	page.may("", doubt != "", "that may be false: %s", terminal.Clean(doubt, 200))
	for _, l := range lines {
		page.event(l)
	}
	label, began := "checked", " at "
	if started(end) {
		label, began = "ran", fmt.Sprintf(", attempt %d, started ", end.Attempt)
	}
	ran := "on " + terminal.Clean(end.Worker, 80) + began + terminal.Timestamp(end.Started)
	if end.DurationMS > 0 { // 0: not measured, because the worker was lost
		ran += fmt.Sprintf(", queued %s, took %s", took3(end.QueueMS), took3(end.DurationMS))
	}
	page.may(label, end.Worker != "", "%s", ran)
	page.may("", end.PhasesMS != messages.PhasesMS{}, "%s", phases(end.PhasesMS))
	if end.Type == messages.AuditCall {
		code := ""
		if end.Code != "" && string(end.Code) != string(end.Status) {
			code = " (" + terminal.Clean(string(end.Code), 80) + ")"
		}
		page.row("ended", "%s%s at %s", terminal.Clean(string(end.Status), 40), code, terminal.Timestamp(end.Time))
	} else {
		page.row("ended", "no line yet")
	}
	page.may("result", end.ResultHash != "", "hash %s", terminal.Clean(end.ResultHash, 80))
	page.may("", end.ToolHash != "", "the tool gave another, with the hash %s; a hook replaced it", terminal.Clean(end.ToolHash, 80))
	page.may("trace", end.TraceID != "", "%s", terminal.Clean(end.TraceID, 80))
	page.may("", cfg.TraceLink(end.TraceID) != "", "%s", terminal.Clean(cfg.TraceLink(end.TraceID), 400))
	return page.rows
}

// headOf returns the line that says most about a call: the line of type call, or the newest
// line while the call is open. It skips refused decisions, which anybody may have sent, and
// lines with a doubt: they say nothing certain about the call.
func headOf(lines []messages.AuditRecord) messages.AuditRecord {
	head := lines[0]
	for _, l := range lines {
		switch l.Type {
		case messages.AuditCall:
			return l
		case messages.AuditRefused:
			continue
		}
		if l.Doubt != "" {
			continue
		}
		// Only the lines of workers have a trace id while the call is open.
		l.TraceID = cmp.Or(l.TraceID, head.TraceID)
		head = l
	}
	return head
}

// started reports whether a line shows that the call began to run. A denied call has an attempt but
// only went through the checks.
func started(l messages.AuditRecord) bool {
	switch l.Type {
	case messages.AuditCall:
		return l.Attempt > 0 && l.Status != messages.StatusDenied
	case messages.AuditAllowed, messages.AuditGranted:
		return true
	}
	return false
}

// page builds a table of two columns, a label and a text.
type page struct{ rows [][]string }

func (p *page) row(label, format string, args ...any) {
	p.rows = append(p.rows, []string{label, fmt.Sprintf(format, args...)})
}

func (p *page) may(label string, is bool, format string, args ...any) {
	if is {
		p.row(label, format, args...)
	}
}

// permission adds who or which rule decided about the call, and why.
func (p *page) permission(l messages.AuditRecord) {
	d := l.Permission
	l.Refusal = nil // event shows the refused decision
	switch {
	case d == nil && l.Type == messages.AuditCall && !started(l):
		p.row("decided", "nothing: the call did not come that far")
		return
	case d == nil:
		p.row("decided", "no line says so")
		return
	case d.Effect == "deny", d.Effect == "ask" && l.Status == messages.StatusDenied:
		p.row("denied", "%s", terminal.Clean(decided(l), 200))
	case l.Type == messages.AuditAsked:
		p.row("waits", "for a person since %s", terminal.Timestamp(l.Time))
	case d.Effect == "ask" && len(d.By) == 0:
		p.row("undecided", "%s", terminal.Clean(decided(l), 200))
	// Somebody approved, but the call did not run: a second approver may be missing. So the
	// row says "agreed", not "allowed".
	case d.Effect == "ask" && (!started(l) || l.Status == messages.StatusExpired):
		p.row("agreed", "%s", terminal.Clean(strings.Join(d.By, ", "), 200))
	default:
		p.row("allowed", "%s", terminal.Clean(decided(l), 200))
	}
	var why []string
	for _, w := range [][2]string{{"rule", d.Rule}, {"of", d.Layer}, {"tier", string(d.Tier)}, {"policy", terminal.ShortID(d.Policy)}, {"ticket", d.Ticket}} {
		if w[1] != "" {
			why = append(why, w[0]+" "+terminal.Clean(w[1], 120))
		}
	}
	if d.Edited {
		why = append(why, "with arguments that a person changed")
	}
	p.may("", len(why) > 0, "%s", strings.Join(why, ", "))
}

// event adds one line of the call's history; lines of other types are skipped.
func (p *page) event(l messages.AuditRecord) {
	what := map[messages.AuditType]string{
		messages.AuditAsked: "asked", messages.AuditDecided: "decided", messages.AuditRefused: "not taken", messages.AuditExpired: "nobody decided in time",
		messages.AuditVoid: "void when it was checked again", messages.AuditGranted: "started on what was allowed", messages.AuditAllowed: "started after this line",
	}[l.Type]
	if what == "" {
		return
	}
	if l.Type != messages.AuditAsked && l.Type != messages.AuditGranted && l.Type != messages.AuditAllowed {
		if by := decided(l); l.Decision != nil || l.Refusal != nil {
			what += ": " + terminal.Clean(by, 200)
		}
	}
	if d := l.Decision; d != nil {
		if d.Reason != "" {
			what += fmt.Sprintf(" (%s)", terminal.Clean(d.Reason, 200))
		}
		if d.Ticket != "" {
			what += ", ticket " + terminal.Clean(d.Ticket, 80)
		}
	}
	if l.Original != "" {
		what += ", other arguments: hash " + terminal.Clean(l.ArgsHash, 80) + " in the place of " + terminal.Clean(l.Original, 80)
	}
	if l.Approval != "" && l.Type == messages.AuditAsked {
		what += ", question " + terminal.ShortID(l.Approval)
	}
	if l.Doubt != "" {
		what += "; that may be false: " + l.Doubt
	}
	p.row("", "%s  %s", terminal.Timestamp(l.Time), what)
}

func round(n int) string {
	if n == 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

// phases lists the time that each phase took, in the order in which they run.
func phases(ms messages.PhasesMS) string {
	var said []string
	for _, phase := range []struct {
		name string
		ms   float64
	}{
		{"validate", ms.Validate}, {"semantic", ms.Semantic}, {"pre-hooks", ms.PreHooks},
		{"permissions", ms.Permissions}, {"execute", ms.Execute}, {"post-hooks", ms.PostHooks},
	} {
		if phase.ms > 0 {
			said = append(said, phase.name+" "+took3(phase.ms))
		}
	}
	return strings.Join(said, ", ")
}
