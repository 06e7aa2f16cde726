// Package batches is "toolfleet batch" and "toolfleet watch": it shows the open batches and what
// each waits for, the reply and the timeline of one batch, and the events of a session as they
// come.
package batches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Cmd is "toolfleet batch".
type Cmd struct {
	Ls  lsCmd  `cmd:"" help:"List what is open, and what it waits for."`
	Get getCmd `cmd:"" help:"Print the reply of a batch again."`
}

type getCmd struct {
	daemon.Server
	ID       string `arg:"" help:"Id of the batch."`
	Session  string `placeholder:"ID" help:"Session of the batch. Default: the only session that has such a batch; to look for it needs the rights of an operator."`
	Timeline bool   `help:"Show what happened when, also of a batch that waits or runs. With -o json: its events."`
	Full     bool   `help:"With the outputs in the results too, not only in the reinjection. Of an open batch: the results so far."`
	Output   string `short:"o" enum:"reinjection,reply,json" default:"reply" placeholder:"reinjection|reply" help:"What to print: the whole reply, or only its reinjection. json is the same as reply."`
}

// Help returns the text that --help shows below the command's usage.
func (getCmd) Help() string {
	return `For an open batch it prints {"status":"running"}, with --full also the results of the calls that have ended. For a batch that was never accepted, or whose reply has aged out, it prints
{"status":"unknown"}. In both cases the exit status is 1.`
}

func (b getCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if b.Session == "" {
		if b.Session, err = b.findSession(a, cfg, conn); err != nil {
			return err
		}
	}
	c := command.ClientOver(conn, cfg.Tenant)
	if b.Timeline {
		return b.timeline(a, cfg, conn)
	}
	var options []client.GetOption
	if b.Full {
		options = append(options, client.FullResults())
	}
	reply, err := c.Get(a.Ctx, messages.SessionID(b.Session), messages.BatchID(b.ID), options...)
	var refusal *messages.Refusal
	switch {
	case errors.Is(err, client.ErrRunning):
		a.Say("the batch is queued or running; ask again, or with --timeline")
		return errors.Join(a.Print(messages.State{Status: messages.BatchRunning, Results: reply.Results}), command.ErrPrinted)
	case errors.Is(err, client.ErrUnknown):
		return unknownBatch(a, err)
	case err != nil && !(errors.As(err, &refusal) && reply.Status == messages.ReplyRefused && reply.Digest != ""):
		return err
	}
	if b.Output == "reinjection" {
		return a.PrintRaw(reply.Reinjection)
	}
	return a.Print(reply)
}

// findSession returns the only session of the tenant that has the batch.
func (b getCmd) findSession(a *command.App, cfg *config.Config, conn *bus.Conn) (string, error) {
	if !mayList(a.Ctx, conn) {
		return "", command.Usagef("this user may not look for the session of a batch: name it with --session")
	}
	sessions, err := journal.New(conn).SessionsWith(a.Ctx, cfg.Tenant, messages.BatchID(b.ID))
	switch {
	case errors.Is(err, bus.ErrNoStream):
		return "", fmt.Errorf("%w; no fleet has run on this server yet, or --prefix is another", err)
	case err != nil:
		return "", err
	case len(sessions) == 0:
		return "", unknownBatch(a, client.ErrUnknown)
	case len(sessions) == 1:
		return string(sessions[0]), nil
	}
	var names []string
	for _, s := range sessions[:min(len(sessions), 5)] {
		names = append(names, terminal.Clean(string(s), 80))
	}
	if len(sessions) > len(names) {
		names = append(names, "...")
	}
	return "", command.Usagef("%d sessions have a batch %s: name one with --session: %s", len(sessions), terminal.Clean(b.ID, 80), strings.Join(names, ", "))
}

func unknownBatch(a *command.App, err error) error {
	a.Say("%v; are --session and --prefix those that it was submitted with?", err)
	return errors.Join(a.Print(messages.State{Status: messages.BatchUnknown}), command.ErrPrinted)
}

// timeline prints the timeline of a batch, as a picture or as its events.
func (b getCmd) timeline(a *command.App, cfg *config.Config, conn *bus.Conn) error {
	c := command.ClientOver(conn, cfg.Tenant)
	t, err := c.Timeline(a.Ctx, messages.SessionID(b.Session), messages.BatchID(b.ID))
	switch {
	case errors.Is(err, client.ErrUnknown):
		return unknownBatch(a, err)
	case err != nil:
		return err
	}
	// A coordinator that could not decode the batch does not know its ids.
	t.Session, t.Batch = messages.SessionID(b.Session), messages.BatchID(b.ID)
	if b.Output == "json" {
		return a.Print(t)
	}
	state, note := t.Status, ""
	now := time.Now()
	switch t.Status {
	case messages.BatchRunning:
		s := openStatus(a.Ctx, conn, cfg.Tenant, t)
		state, note = s.Heading(), s.Text(now)
	case string(messages.ReplyRefused):
		var refusal *messages.Refusal
		if _, err := c.Get(a.Ctx, t.Session, t.Batch); errors.As(err, &refusal) {
			note = fmt.Sprintf("%s: %s", refusal.Class, refusal.Message)
		}
	}
	width := 80
	if f, ok := a.Stdout.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 40 {
			width = min(w, 160)
		}
	}
	_, err = fmt.Fprint(a.Stdout, progress.DrawTimeline(t, state, note, cfg.TraceLink(t.TraceID), now, width))
	return err
}

// openStatus returns the status of an open batch. It uses the timeline, and those parts of the
// fleet's state that this user may read.
func openStatus(ctx context.Context, conn *bus.Conn, tenant string, t messages.Timeline) progress.BatchStatus {
	s := progress.StatusOf(t)
	ctx, cancel := context.WithTimeout(ctx, command.LookTimeout)
	defer cancel()
	if !mayList(ctx, conn) {
		return s
	}
	key := wire.KeyOf(tenant, t.Session, t.Batch)
	l := newListing(conn)
	first, found, err := l.head(ctx, key)
	if err != nil {
		return s
	}
	if found && messages.Token(first.id) != key.Batch && !l.begun(ctx, key) {
		return progress.BatchStatus{State: progress.StateBehind, Behind: first.id}
	}
	if around, err := lookAround(ctx, conn); err == nil {
		s = around.Explain(s)
	}
	return s
}
