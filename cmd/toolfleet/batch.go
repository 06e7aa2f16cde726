package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

type batchCmd struct {
	Ls  batchLsCmd  `cmd:"" help:"List what is open, and what it waits for."`
	Get batchGetCmd `cmd:"" help:"Print the reply of a batch again."`
}

type batchGetCmd struct {
	daemon.Server
	ID       string `arg:"" help:"Id of the batch."`
	Session  string `required:"" placeholder:"ID" help:"Session of the batch."`
	Timeline bool   `help:"Show what happened when, also of a batch that waits or runs. With -o json: its events."`
	Full     bool   `help:"With the outputs in the results too, not only in the reinjection."`
	Output   string `short:"o" enum:"reinjection,reply,json" default:"reply" placeholder:"reinjection|reply" help:"What to print: the whole reply, or only its reinjection. json is the same as reply."`
}

// Help is shown below the command's usage.
func (batchGetCmd) Help() string {
	return `A batch that waits or runs is {"status":"running"}, one that was never accepted or is no longer remembered is
{"status":"unknown"}, with exit status 1 in both cases.`
}

func (b batchGetCmd) Run(a *app) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	conn, err := daemon.Connect(a.ctx, cfg, "toolfleet batch get", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := agentOver(conn, cfg.Tenant)
	if b.Timeline {
		return b.timeline(a, cfg, conn)
	}
	var options []client.GetOption
	if b.Full {
		options = append(options, client.FullResults())
	}
	reply, err := c.Get(a.ctx, messages.SessionID(b.Session), messages.BatchID(b.ID), options...)
	var refusal *messages.Refusal
	switch {
	case errors.Is(err, client.ErrRunning):
		a.say("the batch is queued or running; ask again, or with --timeline")
		return errors.Join(a.print(messages.State{Status: "running"}), errSaid)
	case errors.Is(err, client.ErrUnknown):
		return unknownBatch(a, err)
	case err != nil && !(errors.As(err, &refusal) && reply.Status == messages.ReplyRefused && reply.Digest != ""):
		return err
	}
	if b.Output == "reinjection" {
		return a.printRaw(reply.Reinjection)
	}
	return a.print(reply)
}

func unknownBatch(a *app, err error) error {
	a.say("%v; are --session and --prefix those that it was submitted with?", err)
	return errors.Join(a.print(messages.State{Status: "unknown"}), errSaid)
}

// timeline prints the timeline of a batch, as a picture or as its events.
func (b batchGetCmd) timeline(a *app, cfg *config.Config, conn *bus.Conn) error {
	c := agentOver(conn, cfg.Tenant)
	t, err := c.Timeline(a.ctx, messages.SessionID(b.Session), messages.BatchID(b.ID))
	switch {
	case errors.Is(err, client.ErrUnknown):
		return unknownBatch(a, err)
	case err != nil:
		return err
	}
	// A coordinator that could not read the batch does not know its ids.
	t.Session, t.Batch = messages.SessionID(b.Session), messages.BatchID(b.ID)
	if b.Output == "json" {
		return a.print(t)
	}
	state, note := t.Status, ""
	now := time.Now()
	switch t.Status {
	case "running":
		s := openStanding(a.ctx, conn, cfg.Tenant, t)
		state, note = s.heading(), s.text(now)
	case string(messages.ReplyRefused):
		var refusal *messages.Refusal
		if _, err := c.Get(a.ctx, t.Session, t.Batch); errors.As(err, &refusal) {
			note = fmt.Sprintf("%s: %s", refusal.Class, refusal.Message)
		}
	}
	width := 80
	if f, ok := a.stdout.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 40 {
			width = min(w, 160)
		}
	}
	_, err = fmt.Fprint(a.stdout, picture(t, state, note, cfg.TraceLink(t.TraceID), now, width))
	return err
}

// openStanding returns the status of an open batch: from its timeline, and from the fleet around it
// as far as this user may read that.
func openStanding(ctx context.Context, conn *bus.Conn, tenant string, t messages.Timeline) standing {
	s := standingOf(t)
	ctx, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	if !mayList(ctx, conn) {
		return s
	}
	key := wire.KeyOf(tenant, t.Session, t.Batch)
	first, found, err := newListing(conn).head(ctx, key)
	if err != nil {
		return s
	}
	if found && messages.Token(first.id) != key.Batch {
		return standing{State: isBehind, Behind: first.id}
	}
	if around, err := lookAround(ctx, conn); err == nil {
		s = around.explain(s)
	}
	return s
}
