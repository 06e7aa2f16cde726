package batches

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
)

// WatchCmd is "toolfleet watch".
type WatchCmd struct {
	daemon.Server
	command.OutputFlags
	Session *string `arg:"" optional:"" help:"Session whose batches to watch. Default: every session."`
	Since   string  `placeholder:"WHEN" help:"With a session: begin with the batches that have ended since: 10m ago, or a time such as 2026-01-31T08:00:00Z."`
}

// Help returns the text that --help shows below the command's usage.
func (WatchCmd) Help() string {
	return `Shows the events of the batches of a session, each from its beginning: of open batches, of new ones, and with --since of ended
ones. Events during a lost connection are shown once it is back. On a terminal the running batches are a live board, and a
batch that ends leaves a line and its failures; elsewhere all output is lines. A user with the rights for "toolfleet batch ls"
first sees which batches are open and what they wait for. With -o json each event is a JSON object on a line, and nothing else
is printed. Ctrl-C ends it.

Without a session it shows what happens from now on in all sessions of the tenant. Events during a lost connection are then
missed; a line says so.`
}

// Run shows the events of the session, or of all sessions, until its context ends.
func (c WatchCmd) Run(a *command.App) error {
	switch {
	case c.Session != nil && *c.Session == "":
		return command.Usagef("the session is empty; without one, every session is watched")
	case c.Session == nil && c.Since != "":
		return command.Usagef("--since is for one session: name it")
	}
	since, err := command.ParseMoment("--since", c.Since, time.Now())
	if err != nil {
		return err
	}
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	d := progress.NewDisplay(a.Stdout, c.JSON()) // the board is data, so it goes to stdout
	defer d.Close()
	var beside io.Writer = a.Stderr
	if d.Live() && terminal.IsTerminal(a.Stderr) { // stderr is the board's screen
		beside = d
	}
	log, err := a.Logger(cfg, beside, "")
	if err != nil {
		return err
	}
	conn, err := a.Connect(cfg, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	agent := command.ClientOver(conn, cfg.Tenant)
	if c.Session == nil {
		return c.show(a, conn, cfg.Tenant, d, everySession(a, agent, cfg.Tenant))
	}
	return c.show(a, conn, cfg.Tenant, d, oneSession(a, agent, messages.SessionID(*c.Session), since))
}

// feed calls each for every event until its context ends.
type feed func(ctx context.Context, each func(messages.Event)) error

// oneSession returns the feed of one session. It first prints that it watches the session, and
// says so if there is nothing to show yet.
func oneSession(a *command.App, agent *client.Client, session messages.SessionID, since time.Time) feed {
	a.Say("watching session %s. Ctrl-C ends it", terminal.Clean(string(session), 80))
	switch list, err := agent.Batches(a.Ctx, session, client.ListOptions{Since: since}); {
	case errors.Is(err, client.ErrNoFleet):
		a.Say("no coordinator answers yet; what happens is shown once one does")
	case err == nil && len(list.Batches) == 0:
		a.Say("%s", nothingOpen(list.Newest, time.Now()))
	}
	return func(ctx context.Context, each func(messages.Event)) error {
		for e, err := range agent.Watch(ctx, session, client.WatchSince(since)) {
			if err != nil {
				return err
			}
			each(e)
		}
		return nil
	}
}

// everySession returns the feed of all sessions of the tenant.
func everySession(a *command.App, agent *client.Client, tenant string) feed {
	return func(ctx context.Context, each func(messages.Event)) error {
		say := func() { a.Say("watching every session of tenant %s. Ctrl-C ends it", terminal.Clean(tenant, 80)) }
		for e, err := range agent.Live(ctx, client.Subscribed(say)) {
			if err != nil {
				return err
			}
			each(e)
		}
		return nil
	}
}

// show prints the events of a feed until the context of the command ends.
func (c WatchCmd) show(a *command.App, conn *bus.Conn, tenant string, d *progress.Display, events feed) error {
	return command.WhileRead(a.Ctx, func(ctx context.Context, wrote func(error)) error {
		if c.JSON() {
			return events(ctx, func(e messages.Event) { wrote(a.PrintLine(e)) })
		}
		if !terminal.IsTerminal(a.Stdout) {
			d.SetOutput(reportingWriter{a.Stdout, wrote})
		}
		w := progress.NewSession(terminal.Colours(a.Stdout), d.Live())
		if c.Session == nil {
			w = progress.NewSessions(terminal.Colours(a.Stdout), d.Live())
		}
		d.ShowSession(w)
		ctx, end := context.WithCancel(ctx)
		listed := make(chan struct{})
		var listing sync.WaitGroup
		defer listing.Wait()
		defer end()
		listing.Go(func() {
			defer close(listed)
			list := c.open(ctx, conn, tenant)
			d.Show(func(now time.Time) string { return c.statusLines(list, now) })
		})
		return events(ctx, func(e messages.Event) {
			<-listed // print the open batches before the first event
			d.Show(func(now time.Time) string { return w.Take(e, now) })
		})
	})
}

// nothingOpen says why there is nothing to see yet, and how to see the last batch of the session.
func nothingOpen(newest *messages.ListedBatch, now time.Time) string {
	if newest == nil {
		return "no batch of it is open, and none has ended lately; what begins is shown"
	}
	ago := max(0, now.Sub(newest.Ended))
	return fmt.Sprintf("no batch of it is open; the last, %s, was %s %s ago, and --since %s shows it. What begins is shown",
		terminal.Clean(string(newest.Batch), 40), terminal.Clean(newest.Status, 20), terminal.Span(ago), sinceText(ago+time.Minute))
}

// sinceText formats a duration for --since, which has no unit for days.
func sinceText(d time.Duration) string {
	if hours := int(d.Hours()); hours >= 48 {
		return fmt.Sprintf("%dh%02dm", hours, int(d.Minutes())%60)
	}
	return terminal.Span(d)
}

// reportingWriter is a writer that reports the result of each write.
type reportingWriter struct {
	io.Writer
	wrote func(error)
}

func (t reportingWriter) Write(text []byte) (int, error) {
	n, err := t.Writer.Write(text)
	t.wrote(err)
	return n, err
}

// open lists the open batches of the session, or of all, at most 20. It returns none if the user
// may not read them, or if the fleet does not answer within 5*LookTimeout.
func (c WatchCmd) open(ctx context.Context, conn *bus.Conn, tenant string) []openBatch {
	ctx, cancel := context.WithTimeout(ctx, 5*command.LookTimeout)
	defer cancel()
	if !mayList(ctx, conn) {
		return nil
	}
	session := "" // any
	if c.Session != nil {
		session = *c.Session
	}
	list, _, err := newListing(conn).list(ctx, tenant, session, "", 20)
	if err != nil {
		return nil // the events are shown regardless
	}
	return list
}

// statusLines returns one line per open batch.
func (c WatchCmd) statusLines(list []openBatch, now time.Time) string {
	var out strings.Builder
	for _, o := range list {
		name := terminal.Clean(string(o.Batch), 40)
		if c.Session == nil {
			name = terminal.Clean(string(o.Session), 40) + " " + name
		}
		fmt.Fprintf(&out, "%s  open, accepted %s: %s\n", name, terminal.Timestamp(o.Accepted), o.Text(now))
	}
	return out.String()
}
