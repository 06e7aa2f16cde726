package progress

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/messages"
)

// Session shows a board for each running batch of one or more sessions. The boards are computed
// from events and the times at which the events came.
type Session struct {
	batches []*sessionBatch // in the order of their first events
	several bool            // names include the session, and events may be missed
	ended   []batchName     // if several: the last ended batches, whose late events are ignored
	colour  bool
	live    bool
}

// NewSession returns a session without batches. colour allows colours. With live the boards are
// redrawn, so Take leaves out lines that the boards show.
func NewSession(colour, live bool) *Session {
	return &Session{colour: colour, live: live}
}

// NewSessions is NewSession for the live events of several sessions.
func NewSessions(colour, live bool) *Session {
	return &Session{colour: colour, live: live, several: true}
}

// batchName tells a batch from those of other sessions.
type batchName struct {
	session messages.SessionID
	batch   messages.BatchID
}

// mostEnded is how many ended batches are remembered.
const mostEnded = 1000

type sessionBatch struct {
	id    batchName
	title string
	began time.Time // time of its first event, by the sender's clock
	board board
}

// Take handles one event and returns the lines to print above the boards.
func (w *Session) Take(e messages.Event, now time.Time) string {
	switch {
	case e.Type == messages.EventGap:
		w.batches = nil // a batch may have ended unseen
		return "some events were missed\n"
	case slices.Contains(w.ended, batchName{e.Session, e.Batch}):
		return ""
	}
	b := w.batch(e)
	if e.Type == messages.EventReply {
		w.forget(b)
		return b.summary(e)
	}
	b.board.apply(e, now)
	if line := b.board.plain(e); line != "" && (!w.live || e.Type == messages.EventAwaiting) {
		return b.title + "  " + line + "\n"
	}
	return ""
}

func (w *Session) batch(e messages.Event) *sessionBatch {
	for _, b := range w.batches {
		if b.id == (batchName{e.Session, e.Batch}) {
			return b
		}
	}
	b := &sessionBatch{id: batchName{e.Session, e.Batch}, title: terminal.Clean(string(e.Batch), 40), began: e.Time, board: board{colour: w.colour}}
	if w.several {
		b.title = terminal.Clean(string(e.Session), 40) + " " + b.title
	}
	w.batches = append(w.batches, b)
	return b
}

func (w *Session) forget(gone *sessionBatch) {
	if w.several {
		w.ended = append(w.ended, gone.id)
		w.ended = w.ended[max(0, len(w.ended)-mostEnded):]
	}
	w.batches = slices.DeleteFunc(w.batches, func(b *sessionBatch) bool { return b == gone })
}

// lines returns the boards of all running batches, each below its batch id.
func (w *Session) lines() []boardLine {
	var lines []boardLine
	for _, b := range w.batches {
		lines = append(append(lines, boardLine{title: b.title}), b.board.lines()...)
	}
	return lines
}

// summary describes an ended batch on one line, with its failures below.
func (b *sessionBatch) summary(e messages.Event) string {
	var failures []string
	bad := 0
	for i, c := range b.board.calls {
		if c.result == nil || c.result.Status == messages.StatusOK {
			continue
		}
		bad++
		line := fmt.Sprintf("  ✗ %3d  %s: %s", i, terminal.OrDash(c.tool, 64), outcome(c.result))
		if c.result.Failure() {
			line += ": " + because(c.result)
		}
		failures = append(failures, line+"\n")
	}
	mark := "✓"
	text := fmt.Sprintf("%s: %s", e.Status, terminal.Count(len(b.board.calls), "call"))
	if bad > 0 || e.Status != messages.ReplyCompleted {
		mark = "✗"
	}
	if bad > 0 {
		text += fmt.Sprintf(", %d of them not ok", bad)
	}
	return fmt.Sprintf("%s %s  %s, %s\n%s", mark, b.title, text, terminal.Brief(max(0, e.Time.Sub(b.began))), strings.Join(failures, ""))
}
