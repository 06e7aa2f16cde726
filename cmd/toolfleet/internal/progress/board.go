// Package progress shows what a batch does, computed from its events: a Display redraws a board of
// the calls while they run, a Session does so for every batch of a session, StatusOf says what an
// open batch waits for, and DrawTimeline draws when each call waited and ran. It has no connection.
package progress

import (
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/messages"
)

// board holds the state of a batch's calls, computed from its events and the times at which they
// came. The Display decides where and when it is shown.
type board struct {
	calls  []callState
	names  int // length of the longest tool name, in characters
	colour bool
	decide func(id string) string // returns the command that approves; nil: name none
}

// callState is the state of one call: one line of the board.
type callState struct {
	tool     string
	running  bool
	since    time.Time // start of the attempt; on a live board by this machine's clock
	attempt  int
	progress messages.Progress
	asked    *messages.Pending // the open question, if any
	result   *messages.Result  // nil until the call has ended
	told     bool              // plain has returned the line about the end
}

// apply updates the board with an event that came at the given time. A late event cannot change how
// an ended call is shown.
func (b *board) apply(e messages.Event, now time.Time) {
	if e.Index < 0 || e.Index >= messages.MaxCalls {
		return
	}
	for len(b.calls) <= e.Index {
		b.calls = append(b.calls, callState{})
	}
	c := &b.calls[e.Index]
	if e.Tool != "" {
		c.tool = e.Tool
		b.names = max(b.names, len([]rune(terminal.Clean(c.tool, longestName))))
	}
	switch e.Type {
	case messages.EventRunning:
		c.running, c.since, c.attempt, c.progress, c.asked = true, now, e.Attempt, messages.Progress{}, nil
	case messages.EventAwaiting:
		c.running, c.asked = false, nil
		if e.Approval != nil && e.Approval.State == "" { // otherwise it is answered already
			c.asked = e.Approval
		}
	case messages.EventProgress:
		if e.Progress != nil {
			c.progress = *e.Progress
		}
	case messages.EventEnd, messages.EventResult:
		if e.Result != nil {
			c.result = e.Result
		}
	}
}

// longestName is how many characters of a tool's name a board shows at most.
const longestName = 200

// boardLine is a line of a board before it is drawn. A board may have far more lines than the
// screen, so only the lines that fit are drawn.
type boardLine struct {
	title string // a heading; then board is nil
	board *board
	index int
}

// lines returns one line per call.
func (b *board) lines() []boardLine {
	lines := make([]boardLine, len(b.calls))
	for i := range lines {
		lines[i] = boardLine{board: b, index: i}
	}
	return lines
}

func (l boardLine) mark() string {
	if l.board == nil {
		return ""
	}
	return l.board.calls[l.index].mark()
}

// draw renders the line for a terminal of the given width in characters.
func (l boardLine) draw(now time.Time, width int) string {
	if l.board == nil {
		return terminal.Clip(terminal.Clean(l.title, width-1), width-1)
	}
	b, c := l.board, &l.board.calls[l.index]
	most := min(max(8, width/4), longestName)
	mark, state, rest := c.words(now)
	text := fmt.Sprintf("%s %3d  %-*s  %s", mark, l.index, max(4, min(b.names, most)), terminal.OrDash(c.tool, most), state)
	if rest != "" {
		text += "  " + rest
	}
	return b.paint(*c, terminal.Clip(text, width-1))
}

// mark returns the state of a call as one character.
func (c *callState) mark() string {
	switch {
	case c.result != nil && c.result.Failure():
		return "✗"
	case c.result != nil:
		return "✓"
	case c.running:
		return "▸"
	case c.asked != nil:
		return "?"
	}
	return "·"
}

// words returns the mark of a call, its state, and details.
func (c *callState) words(now time.Time) (mark, state, rest string) {
	mark = c.mark()
	switch {
	case c.result != nil:
		if c.result.Failure() {
			rest = because(c.result)
		}
		return mark, outcome(c.result), rest
	case c.running:
		state = "running " + terminal.Brief(now.Sub(c.since))
		if c.attempt > 1 {
			state += fmt.Sprintf(" (attempt %d)", c.attempt)
		}
		rest = terminal.Clean(c.progress.Text, 200)
		if c.progress.Fraction > 0 {
			rest = strings.TrimSpace(fmt.Sprintf("%2.0f %% %s", 100*min(c.progress.Fraction, 1), rest))
		}
		return mark, state, rest
	case c.asked != nil:
		return mark, "awaiting approval", fmt.Sprintf("%s, %s", terminal.Clean(string(c.asked.Tier), 20), untilExpiry(*c.asked, now))
	}
	return mark, "queued", ""
}

// paint colours the mark of a line by the state of its call.
func (b *board) paint(c callState, line string) string {
	code := "2" // dim, for queued
	switch {
	case !b.colour:
		return line
	case c.result != nil && c.result.Failure():
		code = "31"
	case c.result != nil:
		code = "32"
	case c.running:
		code = "36"
	case c.asked != nil:
		code = "33"
	}
	mark, rest, _ := strings.Cut(line, " ")
	return "\x1b[" + code + "m" + mark + "\x1b[0m " + rest
}

// plain returns the line to print for an event if no board is drawn; "": none. Lines have no
// times except the duration of ended calls, and no progress, so that the length of a log does
// not depend on how long calls take. A batch that resumes after an approval sends the end
// events of its calls again; plain returns a line only for the first.
func (b *board) plain(e messages.Event) string {
	if e.Index < 0 || e.Index >= len(b.calls) {
		return ""
	}
	tool := terminal.OrDash(b.calls[e.Index].tool, 64)
	switch {
	case e.Type == messages.EventRunning:
		return fmt.Sprintf("call %d %s: running", e.Index, tool)
	case e.Type == messages.EventAwaiting && e.Approval != nil:
		return fmt.Sprintf("call %d %s: awaiting approval: %s", e.Index, tool, b.asking(*e.Approval))
	case e.Type == messages.EventEnd && e.Result != nil && !b.calls[e.Index].told:
		b.calls[e.Index].told = true
		line := fmt.Sprintf("call %d %s: %s", e.Index, tool, outcome(e.Result))
		if e.Result.Failure() {
			line += ": " + because(e.Result)
		}
		return line
	}
	return ""
}

// asking returns a question on one line, and the command that answers it.
func (b *board) asking(p messages.Pending) string {
	text := fmt.Sprintf("%s (%s, expires in %s)", terminal.Clean(p.Line, 400), terminal.Clean(string(p.Tier), 20), terminal.Span(p.Expires.Sub(p.Asked)))
	if b.decide != nil {
		text += ": " + b.decide(terminal.ShortID(p.ID))
	}
	return text
}

// untilExpiry says how long people have left to decide.
func untilExpiry(p messages.Pending, now time.Time) string {
	if left := p.Expires.Sub(now); left > 0 {
		return "expires in " + terminal.Span(left)
	}
	return "expired"
}

// Summary returns the last line about a reply.
func Summary(r messages.Reply, elapsed time.Duration) string {
	bad := 0
	for _, result := range r.Results {
		if result.Status != messages.StatusOK {
			bad++
		}
	}
	text := fmt.Sprintf("%s: %s", r.Status, terminal.Count(len(r.Results), "call"))
	if bad > 0 {
		text += fmt.Sprintf(", %d of them not ok", bad)
	}
	return text + ", " + terminal.Brief(elapsed)
}

// outcome returns how a call ended, and how long it took if it ran.
func outcome(r *messages.Result) string {
	if r.DurationMS == 0 {
		return string(r.Status)
	}
	return string(r.Status) + " in " + terminal.Brief(time.Duration(r.DurationMS*float64(time.Millisecond)))
}

// because returns why a call failed, on one line. It leaves out a code that adds nothing to
// the status.
func because(r *messages.Result) string {
	if r.Err == nil {
		return "the tool says that it failed"
	}
	text := r.Err.Message
	if r.Err.Code != messages.CodeToolError && string(r.Err.Code) != string(r.Status) {
		text = string(r.Err.Code) + ": " + text
	}
	return terminal.Clean(text, 160)
}
