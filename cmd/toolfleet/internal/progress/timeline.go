package progress

import (
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/messages"
)

// axis maps the time span of a picture to a number of characters.
type axis struct {
	from, to time.Time
	width    int
}

// at returns the column of a moment, from 0 to width.
func (x axis) at(t time.Time) int {
	if span := x.to.Sub(x.from); span > 0 {
		return min(max(int(float64(x.width)*float64(t.Sub(x.from))/float64(span)), 0), x.width)
	}
	return 0
}

// stretch is a part of a call's bar with one mark. It lasts until the next stretch or the end
// of the call.
type stretch struct {
	from time.Time
	mark rune
	new  rune // the first character; 0: mark
}

// row is a call in a picture.
type row struct {
	callState
	stage     int
	kind      messages.Kind
	worker    string
	attempts  []attempt
	stretches []stretch
	ended     time.Time
	question  *messages.Pending // the last question about it, open or not
}

// attempt is a start of a call: its time and its worker.
type attempt struct {
	number int
	worker string
	began  time.Time
}

// Marks of a picture.
const (
	waitsMark = '.'
	asksMark  = '?'
	runsMark  = '='
)

// DrawTimeline renders a timeline as text of the given width: a row for each call, with a bar on a
// common time axis, grouped by stage. The heading has the state of the batch, a note about it, and
// a link to its trace.
func DrawTimeline(t messages.Timeline, state, note, link string, now time.Time, width int) string {
	rows, x := rowsOf(t, now)
	var out strings.Builder
	fmt.Fprintf(&out, "batch %s of session %s: %s, %s, %s\n", terminal.Clean(string(t.Batch), 40), terminal.Clean(string(t.Session), 40), state, terminal.Count(len(rows), "call"), terminal.Brief(x.to.Sub(x.from)))
	if !t.Accepted.IsZero() {
		fmt.Fprintf(&out, "accepted %s", t.Accepted.UTC().Format("2006-01-02 15:04:05.000 MST"))
		if t.TraceID != "" {
			fmt.Fprintf(&out, ", trace %s", terminal.Clean(t.TraceID, 32))
		}
		out.WriteByte('\n')
	}
	if link != "" {
		// The link is not cut to the width of the screen, so that it can be followed.
		fmt.Fprintf(&out, "%s\n", terminal.Clean(link, 400))
	}
	if note != "" {
		fmt.Fprintf(&out, "%s\n", terminal.Clean(note, 400))
	}
	if len(rows) == 0 {
		return out.String()
	}
	names := 4
	for _, r := range rows {
		names = max(names, min(16, len([]rune(terminal.Clean(r.tool, 16)))))
	}
	const after = 24 // characters of a row after its bar
	x.width = max(10, width-names-after-11)
	fmt.Fprintf(&out, "\n%*s  0%*s\n", names+6, "", x.width-1, terminal.Brief(x.to.Sub(x.from)))
	stage := -1
	for i, r := range rows {
		if r.stage != stage {
			stage = r.stage
			fmt.Fprintf(&out, "stage %d\n", stage+1) // counted from 1, as in `toolfleet plan`
		}
		mark, how, rest := r.words(x.to)
		fmt.Fprintln(&out, strings.TrimRight(terminal.Clip(fmt.Sprintf("%s %3d %-*s |%-*s| %s", mark, i, names, terminal.OrDash(r.tool, names), x.width, r.bar(x), how), width), " "))
		for _, line := range r.details(rest) {
			fmt.Fprintf(&out, "%*s%s\n", 6, "", terminal.Clip(line, width-6))
		}
	}
	fmt.Fprintf(&out, "\n%c waits  %c waits for a person  %c runs, after the number of a later attempt\n", waitsMark, asksMark, runsMark)
	return out.String()
}

// rowsOf returns the calls of a timeline and its time span, which ends at now while the batch runs.
func rowsOf(t messages.Timeline, now time.Time) (rows []row, x axis) {
	for _, e := range t.Events {
		if x.from.IsZero() {
			x.from, x.to = e.Time, e.Time
		}
		if e.Time.After(x.to) {
			x.to = e.Time
		}
		if e.Index < 0 {
			continue
		}
		for len(rows) <= e.Index {
			rows = append(rows, row{})
		}
		rows[e.Index].take(e)
	}
	if t.Status == messages.BatchRunning && now.After(x.to) {
		x.to = now
	}
	return rows, x
}

func (r *row) take(e messages.Event) {
	switch e.Type {
	case messages.EventStart:
		r.tool, r.kind, r.stage = e.Tool, e.Kind, e.Stage
		r.stretches = append(r.stretches, stretch{from: e.Time, mark: waitsMark})
	case messages.EventAwaiting:
		r.question, r.running = e.Approval, false
		if r.asked = nil; e.Approval != nil && e.Approval.State == "" {
			r.asked = e.Approval
		}
		r.stretches = append(r.stretches, stretch{from: e.Time, mark: asksMark})
	case messages.EventRunning:
		r.running, r.since, r.attempt, r.worker = true, e.Time, e.Attempt, e.Worker
		r.attempts = append(r.attempts, attempt{e.Attempt, e.Worker, e.Time})
		s := stretch{from: e.Time, mark: runsMark}
		if e.Attempt > 1 && e.Attempt < 10 {
			s.new = rune('0' + e.Attempt)
		}
		r.stretches = append(r.stretches, s)
	case messages.EventEnd:
		r.result, r.ended = e.Result, e.Time
		if e.Worker != "" {
			r.worker = e.Worker
		}
	}
}

// bar draws the life of a call. Each stretch gets at least one character.
func (r row) bar(x axis) string {
	out := []rune(strings.Repeat(" ", x.width))
	for i, s := range r.stretches {
		until := x.to
		if !r.ended.IsZero() {
			until = r.ended
		}
		if i+1 < len(r.stretches) {
			until = r.stretches[i+1].from
		}
		from := min(x.at(s.from), x.width-1)
		for at := from; at < max(x.at(until), from+1); at++ {
			out[at] = s.mark
		}
		if s.new != 0 {
			out[from] = s.new
		}
	}
	return string(out)
}

// details returns the lines below a call's bar: attempts, decision, and the given rest.
func (r row) details(rest string) (lines []string) {
	for i, a := range r.attempts {
		line := "from " + clock(a.began)
		if len(r.attempts) > 1 || a.number > 1 {
			line = fmt.Sprintf("attempt %d ", a.number) + line
		}
		switch {
		case i+1 < len(r.attempts):
			line += ", given up before " + clock(r.attempts[i+1].began) + ","
		case !r.ended.IsZero():
			line += " to " + clock(r.ended)
		}
		if a.worker != "" {
			line += " on " + terminal.Clean(a.worker, 40)
		}
		lines = append(lines, line)
	}
	if len(r.attempts) == 0 && r.worker != "" {
		lines = append(lines, "on "+terminal.Clean(r.worker, 40))
	}
	if decision := r.decision(); decision != "" {
		lines = append(lines, decision)
	}
	if rest != "" {
		lines = append(lines, rest)
	}
	return lines
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// decision returns what was decided about a call, and by whom; "": no rule or person decided.
func (r row) decision() string {
	if r.result != nil && r.result.Permission != nil {
		p := r.result.Permission
		words := map[string]string{"allow": "allowed", "deny": "denied", "ask": "allowed"}
		text, known := words[p.Effect]
		if p.Source == "default" || !known {
			return ""
		}
		by := p.Source
		if len(p.By) > 0 {
			by = strings.Join(p.By, ", ")
		} else if p.Effect == "ask" {
			return "asked, and not answered" + byRule(p.Rule)
		}
		if p.Edited {
			text += " with other arguments"
		}
		return text + " by " + terminal.Clean(by, 40) + byRule(p.Rule)
	}
	q := r.question
	if q == nil {
		return ""
	}
	state := "asked"
	if q.State != "" {
		state = terminal.Clean(q.State, 20)
	}
	if len(q.Agreed) > 0 {
		state += " by " + terminal.Clean(strings.Join(q.Agreed, ", "), 40)
	}
	return state + byRule(q.Rule)
}

func byRule(rule string) string {
	if rule == "" {
		return ""
	}
	return " (" + terminal.Clean(rule, 40) + ")"
}
