package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/messages"
)

// place is where a call is: providers may give an id twice.
type place struct {
	tenant  messages.TenantID
	session messages.SessionID
	batch   messages.BatchID
	index   int
}

func placeOf(l messages.AuditRecord) place { return place{l.Tenant, l.Session, l.Batch, l.Index} }

// tellCall prints all that is on record of one call, or which calls have its id.
func (a *app) tellCall(cfg *config.Config, log *audit.Log, want audit.Filter) error {
	var places []place
	var last []messages.AuditRecord // of each place
	err := log.Read(a.ctx, want, func(e audit.Entry) bool {
		if e.Err != nil {
			return true
		}
		i := slices.Index(places, placeOf(e.Line))
		if i < 0 {
			places, last = append(places, placeOf(e.Line)), append(last, e.Line)
			return true
		}
		last[i] = e.Line
		return true
	})
	switch {
	case err != nil:
		return err
	case len(places) == 0:
		return a.nothingOnRecord()
	case len(places) == 1:
		return a.tellOf(cfg, log, places[0])
	}
	err = a.auditRow(auditHeader)
	for _, l := range last {
		if err == nil {
			err = a.auditRow(auditRow(l))
		}
	}
	a.say("%d calls have this id; --session and --batch say which one is meant", len(places))
	return err
}

// tellOf reads everything about one call, also the lines that do not know its id.
func (a *app) tellOf(cfg *config.Config, log *audit.Log, p place) error {
	var lines []messages.AuditRecord
	err := log.Read(a.ctx, audit.Filter{Tenant: string(p.tenant), Session: p.session, Batch: p.batch}, func(e audit.Entry) bool {
		if e.Err == nil && e.Line.Index == p.index {
			lines = append(lines, e.Line)
		}
		return true
	})
	if err != nil {
		return err
	}
	return a.table(callStory(cfg, lines))
}

// callStory is a page about one call, from its lines in the order in which they were stored.
func callStory(cfg *config.Config, lines []messages.AuditRecord) [][]string {
	end := lines[len(lines)-1] // that tells most: the call's own line, where there is one
	for _, l := range lines {
		if l.Type == messages.AuditCall {
			end = l
		}
	}
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
	page.may("ran", end.Worker != "", "on %s, attempt %d, started %s, queued %s, took %s", clean(end.Worker, 80), end.Attempt, at(end.Started), took3(end.QueueMS), took3(end.DurationMS))
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
	if d == nil {
		p.row("allowed", "nobody was asked: the call did not come that far")
		return
	}
	label := "allowed"
	if d.Effect == "deny" {
		label = "denied"
	}
	p.row(label, "%s", clean(decided(l), 200))
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
