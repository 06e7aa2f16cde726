package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
)

type watchCmd struct {
	daemon.Server
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
		return usagef("the session is missing or empty")
	}
	since, err := moment("--since", c.Since, time.Now())
	if err != nil {
		return err
	}
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	d := newDisplay(a.stdout, c.json()) // the board is this command's data, so it goes to stdout
	d.expectNothing()
	defer d.close()
	var beside io.Writer = a.stderr
	if d.isLive() && isTerminal(a.stderr) { // stderr is the board's screen
		beside = d
	}
	log, err := a.logger(cfg, beside, "")
	if err != nil {
		return err
	}
	conn, err := daemon.Connect(a.ctx, cfg, "toolfleet watch", log)
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
			d.setOutput(telling{a.stdout, wrote})
		}
		w := newWatchedSession(colours(a.stdout), d.isLive())
		d.showSession(w)
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

// standingLines returns one line per open batch.
func standingLines(list []openBatch, now time.Time) string {
	var out strings.Builder
	for _, o := range list {
		fmt.Fprintf(&out, "%s  open, accepted %s: %s\n", clean(string(o.Batch), 40), at(o.Accepted), o.text(now))
	}
	return out.String()
}
