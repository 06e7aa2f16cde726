package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

type watchCmd struct {
	server
	shape
	Session string `arg:"" help:"Session whose batches to watch."`
	Since   string `placeholder:"WHEN" help:"Begin with the batches that have ended since: 10m ago, or a time such as 2026-01-31T08:00:00Z."`
}

// Help is shown below the command's usage.
func (watchCmd) Help() string {
	return `Shows what happens to the batches of a session, each from its beginning: those that are open, and those that come, and with
--since those that have ended. What happens while the connection is lost is shown once it is back. On a terminal the
running ones are a live board, and one that ends leaves a line and its failures; elsewhere all is lines. Who may see it (as
"toolfleet batch ls" needs it) is told first what is open and what it waits for. With -o json each event is a JSON object on a
line, and nothing else. Ctrl-C ends it.`
}

func (c watchCmd) Run(a *app) error {
	if c.Session == "" {
		return wrong("the session is missing or empty")
	}
	since, err := moment("--since", c.Since, time.Now())
	if err != nil {
		return err
	}
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	screen := *a // the board is this command's data, so it goes to stdout
	screen.stderr = a.stdout
	d := newDisplay(&screen, c.json())
	d.quiet.Stop()
	defer d.close()
	var beside io.Writer = a.stderr
	if d.live && isTerminal(a.stderr) { // stderr is the board's screen
		beside = d
	}
	log, err := a.logger(cfg, beside, "")
	if err != nil {
		return err
	}
	conn, err := connect(a.ctx, cfg, "toolfleet watch", log)
	if err != nil {
		return err
	}
	defer conn.Close()
	agent := agentOver(conn, cfg.Tenant)
	watch := func(ctx context.Context, s messages.SessionID, each func(messages.Event)) error {
		for e, err := range agent.Watch(ctx, s, client.Since(since)) {
			if err != nil {
				return err
			}
			each(e)
		}
		return nil
	}
	a.say("watching session %s. Ctrl-C ends it", clean(c.Session, 80))
	switch list, err := agent.Batches(a.ctx, messages.SessionID(c.Session), client.ListOptions{Since: since}); {
	case errors.Is(err, client.ErrNoFleet):
		a.say("no coordinator answers yet; what happens is shown once one does")
	case err == nil && len(list.Batches) == 0:
		a.say("%s", nothingOpen(list.Newest, time.Now()))
	}
	return whileRead(a.ctx, func(ctx context.Context, wrote func(error)) error {
		if c.json() {
			return watch(ctx, messages.SessionID(c.Session), func(e messages.Event) { wrote(a.print(e)) })
		}
		if !isTerminal(a.stdout) {
			screen.stderr = telling{a.stdout, wrote}
		}
		w := &watchedSession{colour: d.board.colour, live: d.live}
		d.mu.Lock()
		d.shows = w.lines
		d.mu.Unlock()
		ctx, end := context.WithCancel(ctx)
		listed := make(chan struct{})
		var listing sync.WaitGroup
		defer listing.Wait()
		defer end()
		listing.Go(func() {
			defer close(listed)
			list := c.open(ctx, conn, cfg.Tenant)
			d.show(func(now time.Time) string { return standingLines(list, now) })
		})
		return watch(ctx, messages.SessionID(c.Session), func(e messages.Event) {
			<-listed // print the open batches before the first event
			d.show(func(now time.Time) string { return w.take(e, now) })
		})
	})
}

// nothingOpen says why there is nothing to see yet, and how to see the session's last batch.
func nothingOpen(newest *messages.ListedBatch, now time.Time) string {
	if newest == nil {
		return "no batch of it is open, and none has ended lately; what begins is shown"
	}
	ago := max(0, now.Sub(newest.Ended))
	return fmt.Sprintf("no batch of it is open; the last, %s, was %s %s ago, and --since %s shows it. What begins is shown",
		clean(string(newest.Batch), 40), clean(newest.Status, 20), span(ago), sinceText(ago+time.Minute))
}

// sinceText formats a duration for --since, which has no unit for days.
func sinceText(d time.Duration) string {
	if hours := int(d.Hours()); hours >= 48 {
		return fmt.Sprintf("%dh%02dm", hours, int(d.Minutes())%60)
	}
	return span(d)
}

// whileRead runs tell, which prints, until tell returns, ctx ends or a write fails. tell reports
// each write's result to wrote. A closed pipe is no error: the reader has seen enough.
func whileRead(ctx context.Context, tell func(ctx context.Context, wrote func(error)) error) error {
	telling, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := tell(telling, func(err error) {
		if err != nil {
			end(err)
		}
	})
	if ctx.Err() == nil {
		err = cmp.Or(context.Cause(telling), err)
	}
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// telling is a writer that reports the result of each write.
type telling struct {
	io.Writer
	wrote func(error)
}

func (t telling) Write(text []byte) (int, error) {
	n, err := t.Writer.Write(text)
	t.wrote(err)
	return n, err
}

// open lists the open batches of the session, at most 20. It returns none, without a message, if
// the user may not read them or the fleet does not answer in five times looking.
func (c watchCmd) open(ctx context.Context, conn *bus.Conn, tenant string) []openBatch {
	ctx, cancel := context.WithTimeout(ctx, 5*looking)
	defer cancel()
	if !mayList(ctx, conn) {
		return nil
	}
	list, _, err := newListing(conn).list(ctx, tenant, c.Session, "", 20)
	if err != nil {
		return nil // the events are shown regardless
	}
	return list
}

// watchedSession is what is shown of a session: a board for each running batch. It is computed from
// events and the times at which they came.
type watchedSession struct {
	batches []*watchedBatch // in the order of their first events
	colour  bool
	live    bool
}

type watchedBatch struct {
	id    messages.BatchID
	began time.Time // time of its first event, by the sender's clock
	board board
}

// standingLines returns one line per open batch.
func standingLines(list []openBatch, now time.Time) string {
	var out strings.Builder
	for _, o := range list {
		fmt.Fprintf(&out, "%s  open, accepted %s: %s\n", clean(string(o.Batch), 40), at(o.Accepted), o.text(now))
	}
	return out.String()
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
