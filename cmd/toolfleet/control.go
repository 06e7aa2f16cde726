package main

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

type abortCmd struct {
	daemon.Server
	Session string `arg:"" help:"Id of the session."`
	Batch   string `arg:"" optional:"" help:"Id of the batch. Without one, every batch of the session that is there at this moment."`
	Reason  string `placeholder:"TEXT" help:"Why. The model reads it in the results."`
	By      string `placeholder:"TEXT" default:"an operator" help:"Who. The model reads that too."`
}

// Help returns the text that --help shows below the command's usage.
func (abortCmd) Help() string {
	return `Calls that have not started never start, and running calls are stopped. Each call still gets a result, and the batch its reply.
A write that was stopped in the middle and may have been applied ends as outcome_unknown.

An abort that names a batch may come first: a batch that is submitted within batch_ttl (1 h) after it runs nothing.`
}

func (c abortCmd) Run(a *command.App) error {
	why := client.Reason{Text: c.Reason, By: c.By}
	return sendControl(a, "abort", func(to *client.Client) (uint64, error) {
		if c.Batch == "" {
			return to.AbortSession(a.Ctx, messages.SessionID(c.Session), why)
		}
		return to.Abort(a.Ctx, messages.SessionID(c.Session), messages.BatchID(c.Batch), why)
	})
}

type steerCmd struct {
	daemon.Server
	Session string `arg:"" help:"Id of the session."`
	Message string `arg:"" help:"What to say: JSON, or text, which becomes a user message."`
	When    string `enum:"after_batch,between_groups,immediate" default:"after_batch" placeholder:"after_batch|between_groups|immediate" help:"What is still run of the batches that are there: all of it, the calls that run now, or what a worker has in hand."`
	Reason  string `placeholder:"TEXT" help:"Why calls are skipped. The model reads it in the results."`
	By      string `placeholder:"TEXT" default:"an operator" help:"Who. The model reads that too."`
}

// Help returns the text that --help shows below the command's usage.
func (steerCmd) Help() string {
	return `The next reply of the session contains the message as steering, and the agent appends it after the reinjection. Without an open
batch, the message waits for the next one. Calls that have started are not stopped.`
}

func (c steerCmd) Run(a *command.App) error {
	message := json.RawMessage(c.Message)
	if rawjson.Check(message) != nil {
		message = rawjson.MustMarshal(map[string]string{"role": "user", "content": c.Message})
	}
	why := client.Reason{Text: c.Reason, By: c.By}
	return sendControl(a, "message", func(to *client.Client) (uint64, error) {
		return to.Steer(a.Ctx, messages.SessionID(c.Session), message, messages.SteerWhen(c.When), why)
	})
}

// sendControl sends an abort or a steering message to a session, and prints its sequence number as
// JSON.
func sendControl(a *command.App, what string, say func(*client.Client) (uint64, error)) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	seq, err := say(command.ClientOver(conn, cfg.Tenant))
	if err != nil {
		return err
	}
	a.Say("the %s is stored and holds, whoever drives the batches", what)
	return a.Print(messages.ControlAnswer{OK: true, Seq: seq})
}
