package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

type watchCmd struct {
	server
	shape
	Session string `arg:"" help:"Session whose batches to watch."`
}

// Help is shown below the command's usage.
func (watchCmd) Help() string {
	return `Shows what happens to the batches of a session, each from its beginning, as soon as there is news of it. On a terminal the
running ones are a live board, and one that ends leaves a line and its failures; elsewhere all is lines. With -o json each event
is a JSON object on a line. Ctrl-C ends it.`
}

func (c watchCmd) Run(a *app) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	conn, err := connect(a.ctx, cfg, "toolfleet watch", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	watch := client.Over(conn, cfg.Tenant).Watch
	a.say("watching session %s. Ctrl-C ends it", clean(c.Session, 80))
	if c.json() {
		watching, end := context.WithCancelCause(a.ctx)
		defer end(nil)
		err := watch(watching, messages.SessionID(c.Session), func(e messages.Event) {
			if err := a.print(e); err != nil { // nobody reads on
				end(err)
			}
		})
		if a.ctx.Err() == nil {
			err = cmp.Or(context.Cause(watching), err)
		}
		return err
	}
	screen := *a // what is shown here is what was asked for, so it goes to stdout
	screen.stderr = a.stdout
	d := newDisplay(&screen, false)
	d.quiet.Stop()
	w := &watchedSession{colour: d.board.colour, live: d.live}
	d.mu.Lock()
	d.shows = w.lines
	d.mu.Unlock()
	defer d.close()
	return watch(a.ctx, messages.SessionID(c.Session), func(e messages.Event) {
		d.show(func(now time.Time) string { return w.take(e, now) })
	})
}

// watchedSession is what is shown of a session: a board of each batch that runs. Like a board it is a pure function of events.
type watchedSession struct {
	batches []*watchedBatch // in the order in which they were heard of
	colour  bool
	live    bool
}

type watchedBatch struct {
	id    messages.BatchID
	began time.Time // by the clock of whoever told of it first
	board board
}

// take takes an event that came in at a moment, and returns the lines that it is worth for good.
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

// lines is the boards of all that run, each below the id of its batch.
func (w *watchedSession) lines(now time.Time, width int) []string {
	var lines []string
	for _, b := range w.batches {
		lines = append(lines, clip(clean(string(b.id), width-1), width-1))
		lines = append(lines, b.board.lines(now, width)...)
	}
	return lines
}

// summary is a batch that has ended on one line, and below it what failed.
func (b *watchedBatch) summary(e messages.Event) string {
	var failures []string
	bad := 0
	for i, c := range b.board.calls {
		if c.result == nil || c.result.Status == messages.StatusOK {
			continue
		}
		bad++
		line := fmt.Sprintf("  ✗ %3d  %s: %s", i, clean(c.tool, 64), outcome(c.result))
		if c.result.Failure() {
			line += ": " + because(c.result)
		}
		failures = append(failures, line+"\n")
	}
	mark := "✓"
	text := fmt.Sprintf("%s: %s", e.Status, count(len(b.board.calls), "call"))
	if bad > 0 || e.Status != messages.Completed {
		mark = "✗"
	}
	if bad > 0 {
		text += fmt.Sprintf(", %d of them not ok", bad)
	}
	return fmt.Sprintf("%s %s  %s, %s\n%s", mark, clean(string(b.id), 40), text, brief(max(0, e.Time.Sub(b.began))), strings.Join(failures, ""))
}
