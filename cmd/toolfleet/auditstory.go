package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/messages"
)

// place is where a call is: providers may give an id twice.
type place struct {
	key   messages.BatchKey
	index int
}

// chapter is what is on record of one run of a call, in the order in which it was stored.
type chapter struct {
	lines []messages.AuditRecord
	ended bool // the call's own line is there
	asks  bool // some of it was asked for
}

// line is where a line is: those of one batch share a message.
type line struct {
	seq   uint64
	index int
}

func lineOf(e audit.Entry) line { return line{e.Seq, e.Line.Index} }

// retell tells apart the calls that lines are about, and for each call its runs: a batch may be given the id of another that
// was finished long before. The line of a call ends its story, but for what comes late about its question.
func retell(entries []audit.Entry, asked map[line]bool) (all []*chapter) {
	newest := map[place]*chapter{}
	for _, e := range entries {
		at := place{e.Key, e.Line.Index}
		s := newest[at]
		if s == nil || s.ended && !s.heardLate(e.Line) {
			s = &chapter{}
			newest[at], all = s, append(all, s)
		}
		s.lines = append(s.lines, e.Line)
		s.ended = s.ended || e.Line.Type == messages.AuditCall
		s.asks = s.asks || asked[lineOf(e)]
	}
	return all
}

// heardLate reports whether a line still belongs to a story that has ended: nobody was asked anew.
func (s *chapter) heardLate(l messages.AuditRecord) bool {
	return l.Type == messages.AuditRefused || l.Type != messages.AuditCall && slices.ContainsFunc(s.lines, func(before messages.AuditRecord) bool {
		return l.Approval != "" && l.Approval == before.Approval
	})
}

// tellCall prints all that is on record of one call, or which calls have its id.
func (c auditCmd) tellCall(a *app, cfg *config.Config, log *audit.Log, want audit.Filter) error {
	found, err := read(a, log, want)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(e audit.Entry) bool { return !c.ended(e.Line) })
	if len(found) == 0 {
		return a.nothingOnRecord(c.Call)
	}
	asked, key := map[line]bool{}, found[0].Key
	for _, e := range found {
		asked[lineOf(e)] = true
		if e.Key != key {
			return a.listStories(retell(found, asked))
		}
	}
	all, err := read(a, log, audit.Filter{Key: key}) // also the lines that do not know its id
	if err != nil {
		return err
	}
	told := 0
	for _, s := range retell(all, asked) {
		if !s.asks { // another call of the same batch
			continue
		}
		if told++; told > 1 {
			err = errors.Join(err, a.blank())
		}
		err = errors.Join(err, a.table(callStory(cfg, s.lines)))
	}
	return err
}

// listStories prints the newest line of each call.
func (a *app) listStories(all []*chapter) error {
	var lines []messages.AuditRecord
	for _, s := range all {
		lines = append(lines, s.lines[len(s.lines)-1])
	}
	err := a.auditLines(lines)
	a.say("%d calls have this id; --session and --batch say which one is meant", len(all))
	return err
}

func (a *app) blank() error {
	_, err := fmt.Fprintln(a.stdout)
	return err
}

func read(a *app, log *audit.Log, want audit.Filter) (found []audit.Entry, err error) {
	err = log.Read(a.ctx, want, func(e audit.Entry) bool {
		if e.Err == nil {
			found = append(found, e)
		}
		return true
	})
	return found, err
}

// callStory is a page about one call, from its lines in the order in which they were stored.
func callStory(cfg *config.Config, lines []messages.AuditRecord) [][]string {
	end := headOf(lines)
	page := &page{}
	page.row("call", "%s of %s", orDash(callName(end), 200), orDash(end.Tool, 80))
	page.row("asked by", "tenant %s, session %s, batch %s, call %d", clean(string(end.Tenant), 80), clean(string(end.Session), 200), clean(string(end.Batch), 200), end.Index)
	page.may("", end.Provider != "", "%s, round %s, accepted %s", clean(string(end.Provider), 40), round(end.Round), at(end.Accepted))
	page.may("tool", end.ToolDigest != "", "%s version %s", clean(cmp.Or(string(end.Kind), "kind unknown"), 20), short(end.ToolDigest))
	page.may("arguments", end.ArgsHash != "", "hash %s", clean(end.ArgsHash, 80))
	for _, name := range messages.SortedKeys(end.Arguments) {
		page.row("", "%s = %s", plainName(clean(name, 80)), clean(jsonText(end.Arguments[name]), 400))
	}
	page.permission(end)
	for _, l := range lines {
		page.event(l)
	}
	label, began := "checked", " at "
	if started(end) {
		label, began = "ran", fmt.Sprintf(", attempt %d, started ", end.Attempt)
	}
	ran := "on " + clean(end.Worker, 80) + began + at(end.Started)
	if end.DurationMS > 0 { // else its worker was lost, and nobody has measured
		ran += fmt.Sprintf(", queued %s, took %s", took3(end.QueueMS), took3(end.DurationMS))
	}
	page.may(label, end.Worker != "", "%s", ran)
	page.may("", end.PhasesMS != messages.PhasesMS{}, "%s", phases(end.PhasesMS))
	if end.Type == messages.AuditCall {
		code := ""
		if end.Code != "" && string(end.Code) != string(end.Status) {
			code = " (" + clean(string(end.Code), 80) + ")"
		}
		page.row("ended", "%s%s at %s", clean(string(end.Status), 40), code, at(end.Time))
	} else {
		page.row("ended", "not yet on record")
	}
	page.may("result", end.ResultHash != "", "hash %s", clean(end.ResultHash, 80))
	page.may("", end.ToolHash != "", "the tool gave another, with the hash %s; a hook replaced it", clean(end.ToolHash, 80))
	page.may("trace", end.TraceID != "", "%s", clean(end.TraceID, 80))
	page.may("", cfg.TraceLink(end.TraceID) != "", "%s", clean(cfg.TraceLink(end.TraceID), 400))
	return page.rows
}

// headOf is what is known of a call: its own line tells all of it, and of one that is open its newest line does. A decision that
// was not taken tells nothing of the call, for anybody may have sent it.
func headOf(lines []messages.AuditRecord) messages.AuditRecord {
	head := lines[0]
	for _, l := range lines {
		switch l.Type {
		case messages.AuditCall:
			return l
		case messages.AuditRefused:
			continue
		}
		l.TraceID = cmp.Or(l.TraceID, head.TraceID) // which only workers know while a call is open
		head = l
	}
	return head
}

// started reports whether a call was begun, by a line about it: what is denied has only been looked at.
func started(l messages.AuditRecord) bool {
	switch l.Type {
	case messages.AuditCall:
		return l.Attempt > 0 && l.Status != messages.StatusDenied
	case messages.AuditAllowed, messages.AuditGranted:
		return true
	}
	return false
}

// page is rows of a label and a text.
type page struct{ rows [][]string }

func (p *page) row(label, format string, args ...any) {
	p.rows = append(p.rows, []string{label, fmt.Sprintf(format, args...)})
}

func (p *page) may(label string, is bool, format string, args ...any) {
	if is {
		p.row(label, format, args...)
	}
}

// permission is who or what decided that the call may run, or not, and by what.
func (p *page) permission(l messages.AuditRecord) {
	d := l.Permission
	l.Refusal = nil // is about people's word, and stands below
	switch {
	case d == nil && l.Type == messages.AuditCall && !started(l):
		p.row("decided", "nothing: the call did not come that far")
		return
	case d == nil:
		p.row("decided", "nothing is on record")
		return
	case d.Effect == "deny", d.Effect == "ask" && l.Status == messages.StatusDenied:
		p.row("denied", "%s", clean(decided(l), 200))
	case l.Type == messages.AuditAsked:
		p.row("waits", "for a person since %s", at(l.Time))
	case d.Effect == "ask" && len(d.By) == 0:
		p.row("undecided", "%s", clean(decided(l), 200))
	case d.Effect == "ask" && (!started(l) || l.Status == messages.StatusExpired): // where two have to agree, one may have
		p.row("agreed", "%s", clean(strings.Join(d.By, ", "), 200))
	default:
		p.row("allowed", "%s", clean(decided(l), 200))
	}
	var why []string
	for _, w := range [][2]string{{"rule", d.Rule}, {"of", d.Layer}, {"tier", string(d.Tier)}, {"policy", short(d.Policy)}, {"ticket", d.Ticket}} {
		if w[1] != "" {
			why = append(why, w[0]+" "+clean(w[1], 120))
		}
	}
	if d.Edited {
		why = append(why, "with arguments that a person changed")
	}
	p.may("", len(why) > 0, "%s", strings.Join(why, ", "))
}

// event is a line about what happened on the way of a call.
func (p *page) event(l messages.AuditRecord) {
	what := map[messages.AuditType]string{
		messages.AuditAsked: "asked", messages.AuditDecided: "decided", messages.AuditRefused: "not taken", messages.AuditExpired: "nobody decided in time",
		messages.AuditVoid: "void when it was checked again", messages.AuditGranted: "started on what was allowed", messages.AuditAllowed: "started, on record before",
	}[l.Type]
	if what == "" {
		return
	}
	if l.Type != messages.AuditAsked && l.Type != messages.AuditGranted && l.Type != messages.AuditAllowed {
		if by := decided(l); l.Decision != nil || l.Refusal != nil {
			what += ": " + clean(by, 200)
		}
	}
	if d := l.Decision; d != nil {
		if d.Reason != "" {
			what += fmt.Sprintf(" (%s)", clean(d.Reason, 200))
		}
		if d.Ticket != "" {
			what += ", ticket " + clean(d.Ticket, 80)
		}
	}
	if l.Original != "" {
		what += ", other arguments: hash " + clean(l.ArgsHash, 80) + " in the place of " + clean(l.Original, 80)
	}
	if l.Approval != "" && l.Type == messages.AuditAsked {
		what += ", question " + short(l.Approval)
	}
	p.row("", "%s  %s", at(l.Time), what)
}

func round(n int) string {
	if n == 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

// phases is what each phase took, in the order in which they come.
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
