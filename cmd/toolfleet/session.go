package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// watchedSession is what is shown of a session: a board for each running batch. It is computed from
// events and the times at which they came.
type watchedSession struct {
	batches []*watchedBatch // in the order of their first events
	colour  bool
	live    bool
}

func newWatchedSession(colour, live bool) *watchedSession {
	return &watchedSession{colour: colour, live: live}
}

type watchedBatch struct {
	id    messages.BatchID
	began time.Time // time of its first event, by the sender's clock
	board board
}

// take handles one event and returns the lines to print above the boards.
func (w *watchedSession) take(e messages.Event, now time.Time) string {
	b := w.batch(e)
	if e.Type == messages.EventReply {
		w.forget(b)
		return b.summary(e)
	}
	b.board.apply(e, now)
	if line := b.board.plain(e); line != "" && (!w.live || e.Type == messages.EventAwaiting) {
		return clean(string(b.id), 40) + "  " + line + "\n"
	}
	return ""
}

func (w *watchedSession) batch(e messages.Event) *watchedBatch {
	for _, b := range w.batches {
		if b.id == e.Batch {
			return b
		}
	}
	b := &watchedBatch{id: e.Batch, began: e.Time, board: board{colour: w.colour}}
	w.batches = append(w.batches, b)
	return b
}

func (w *watchedSession) forget(gone *watchedBatch) {
	w.batches = slices.DeleteFunc(w.batches, func(b *watchedBatch) bool { return b == gone })
}

// lines returns the boards of all running batches, each below its batch id.
func (w *watchedSession) lines() []boardLine {
	var lines []boardLine
	for _, b := range w.batches {
		lines = append(append(lines, boardLine{title: string(b.id)}), b.board.lines()...)
	}
	return lines
}

// summary describes an ended batch on one line, with its failures below.
func (b *watchedBatch) summary(e messages.Event) string {
	var failures []string
	bad := 0
	for i, c := range b.board.calls {
		if c.result == nil || c.result.Status == messages.StatusOK {
			continue
		}
		bad++
		line := fmt.Sprintf("  ✗ %3d  %s: %s", i, orDash(c.tool, 64), outcome(c.result))
		if c.result.Failure() {
			line += ": " + because(c.result)
		}
		failures = append(failures, line+"\n")
	}
	mark := "✓"
	text := fmt.Sprintf("%s: %s", e.Status, count(len(b.board.calls), "call"))
	if bad > 0 || e.Status != messages.ReplyCompleted {
		mark = "✗"
	}
	if bad > 0 {
		text += fmt.Sprintf(", %d of them not ok", bad)
	}
	return fmt.Sprintf("%s %s  %s, %s\n%s", mark, clean(string(b.id), 40), text, brief(max(0, e.Time.Sub(b.began))), strings.Join(failures, ""))
}
