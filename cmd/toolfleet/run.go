package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/approvals"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

type runCmd struct {
	daemon.Server
	command.ToolFlags
	builtinFlags
	daemon.Governed
	input
	Timeout    time.Duration `placeholder:"DURATION" help:"How long the batch may run, for example 30s. Calls that have not ended by then are answered as timed out. Default: the batch's own timeout_ms."`
	Events     bool          `help:"Write the events of the batch to stderr, one JSON object a line, instead of the progress."`
	ExitStatus bool          `help:"End with status 1 if a call is not ok, too."`
	Output     string        `short:"o" enum:"reinjection,reply,json" default:"reinjection" placeholder:"reinjection|reply" help:"What to print: the reinjection, which is appended to the conversation, or the whole reply. json is the same as reply."`
}

// Help returns the text that --help shows below the command's usage.
func (runCmd) Help() string {
	return `Without --nats, NATS_URL and a context a fleet runs in this process and ends with it. It serves the tools file and the builtin
Read, Glob, Grep, Write, Edit and Bash on --root, by default the current folder. With a server, the workers of that fleet
run the calls, and --tools, --root and --policy have no meaning.

A call that needs a person's approval is shown and asked about, if this is a terminal and the fleet is in this process. For
a fleet elsewhere, use "toolfleet approvals". If no person can be asked, such a call is refused.

stdout holds the reinjection or the reply and nothing else; progress and events go to stderr. The exit status is 0 when
every call was answered, failed calls included, and 1 when the batch was refused or aborted. With --exit-status it is 1 too when
a call is not ok.`
}

// quick bounds the drain of an embedded fleet after Ctrl-C.
const quick = time.Second

func (r runCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	batch, body, err := r.read(a)
	if err != nil {
		return err
	}
	if r.Timeout < 0 {
		return command.Usagef("--timeout is negative; for no bound leave it out")
	}
	if r.Timeout > 0 {
		batch.TimeoutMS = max(1, r.Timeout.Milliseconds())
		body = nil
	}
	if body == nil {
		if body, err = batch.Encode(); err != nil {
			return err
		}
	}
	began := time.Now()
	d := progress.NewDisplay(a.Stderr, r.Events)
	reply, traceID, err := r.submit(a, cfg, batch, body, d)
	elapsed := time.Since(began)
	d.Close()
	if err == nil && len(reply.Results) > 0 && d.Silent() && !r.Events {
		a.Say("This batch ran before: here is its stored reply. --batch gives it another id, to run it anew.")
	}
	var refusal *messages.Refusal
	if err != nil && !errors.As(err, &refusal) {
		return err
	}
	err = r.tell(a, reply, refusal, elapsed)
	if link := cfg.TraceLink(traceID); link != "" && !r.Events {
		a.Say("trace: %s", terminal.Clean(link, 400))
	}
	return err
}

// submit runs the batch on the fleet of the settings, or on a fleet in this process if they name no
// server. traceID is the trace of the batch; "" if there is none.
func (r runCmd) submit(a *command.App, cfg *config.Config, batch messages.Batch, body []byte, d *progress.Display) (reply messages.Reply, traceID string, err error) {
	quiet := "error"
	if cfg.NATS.URL != "" {
		quiet = "info" // shows lost and restored connections
	}
	log, err := a.Logger(cfg, d, quiet)
	if err != nil {
		return reply, "", err
	}
	held := &heldBack{to: d} // problems of the trace exporter are shown after the reply
	if cfg.Given("log.level") {
		held.release()
	}
	complaints, err := a.Logger(cfg, held, "warn")
	if err != nil {
		return reply, "", err
	}
	shown, err := openInstruments(a, wholeService, complaints, nil)
	if err != nil {
		return reply, "", err
	}
	a.Last = func() { // the reply must not wait for the trace collector
		held.release()
		shown.flush()
	}
	shown.log = log
	sending := &noting{Tracer: tracing.OrSilent(shown.tracer)}
	defer func() { traceID = sending.traceID }()
	if cfg.NATS.URL == "" {
		cfg.Workers.Drain, cfg.Coordinators.Drain = min(cfg.Workers.Drain, quick), min(cfg.Coordinators.Drain, quick)
		var prompt *terminal.Prompt
		if !r.Events {
			prompt = terminal.PromptAt(a.Stdin, a.Stderr)
		}
		prompter := approvals.NewPrompter(a, prompt, d)
		f, err := newFleet(a.Ctx, cfg, r.root(cfg), shown, devserver.Options{MaxPayload: devserverOptions(cfg, nil).MaxPayload, Logger: log}, nil, func(f *fleet) error { return prompter.SetApprovers(f.policy, cfg.Tenant) })
		defer f.close()
		if err == nil {
			err = f.serving.Whole()
		}
		if err != nil {
			return reply, "", err
		}
		if !r.Events {
			f.serving.SayWhatIsDown(a)
		}
		reply, err = f.once(a.Ctx, sending, batch, body, prompter)
		return reply, "", err
	}
	d.SetApproveCommand(func(id string) string { return approvals.ApproveCommand(os.Args[0], cfg, id) })
	conn, err := daemon.ConnectSaying(a.Ctx, cfg, "toolfleet run", log, func(text string) { _, _ = fmt.Fprintln(d, text) })
	if err != nil {
		return reply, "", err
	}
	defer conn.Close()
	c := command.ClientOver(conn, cfg.Tenant, client.Tracer(sending))
	d.ExpectEvents(batch.Session, batch.ID, func() string { return whyItWaits(a.Ctx, conn, c, batch) })
	reply, err = c.Run(a.Ctx, batch, client.WithBody(body), client.OnEvent(d.Take))
	if err != nil && a.Ctx.Err() != nil {
		err = errors.New("interrupted: the batch goes on without us; " + progress.FetchHint(batch.Session, batch.ID))
	}
	// This process has sampled no trace, but the fleet may have sampled one.
	if err == nil && sending.traceID == "" && cfg.TraceURL != "" {
		ctx, cancel := context.WithTimeout(a.Ctx, command.LookTimeout)
		defer cancel()
		if t, err := c.Timeline(ctx, batch.Session, batch.ID); err == nil {
			sending.traceID = t.TraceID
		}
	}
	return reply, "", err
}

// whyItWaits names the pool without workers for which the batch waits. It returns "" if the
// batch waits for something else, or if this user may not read the state of the fleet.
func whyItWaits(ctx context.Context, conn *bus.Conn, c *client.Client, batch messages.Batch) string {
	ctx, cancel := context.WithTimeout(ctx, command.LookTimeout)
	defer cancel()
	t, err := c.Timeline(ctx, batch.Session, batch.ID)
	if err != nil || t.Status != messages.BatchRunning {
		return ""
	}
	around, err := command.ReadFleet(ctx, conn)
	if err != nil {
		return ""
	}
	s := progress.NewFleet(around.Workers, around.Current()).Explain(progress.StatusOf(t))
	if s.State != progress.StateUnserved {
		return ""
	}
	return fmt.Sprintf("No worker serves pool %s, where %s is queued. `toolfleet worker` starts one; `toolfleet doctor` looks further.",
		terminal.Clean(s.Pool, 64), terminal.Clean(s.Tool, 64))
}

// once runs the fleet until one batch has its reply, then stops it.
func (f *fleet) once(ctx context.Context, sending trace.Tracer, batch messages.Batch, body []byte, prompter *approvals.Prompter) (reply messages.Reply, err error) {
	running, end := context.WithCancel(ctx)
	defer end()
	open := make(chan struct{})
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return f.run(running, func() { close(open) }) })
	group.Go(func() error { return prompter.Run(running, command.ClientOver(f.conn, f.cfg.Tenant), f.cfg.Tenant) })
	select {
	case <-open:
		c := command.ClientOver(f.conn, f.cfg.Tenant, client.Tracer(sending))
		reply, err = c.Run(running, batch, client.WithBody(body), client.OnEvent(prompter.Take))
	case <-running.Done():
		err = running.Err()
	}
	end()
	if broken := group.Wait(); broken != nil {
		return reply, broken
	}
	if err != nil && ctx.Err() != nil {
		return reply, errors.New("interrupted: what had not started was not run")
	}
	return reply, err
}

// tell prints the reply or the reinjection. It returns an error if the batch did not complete.
func (r runCmd) tell(a *command.App, reply messages.Reply, refusal *messages.Refusal, elapsed time.Duration) error {
	var err error
	switch {
	case reply.Status == "": // refused before it was sent
	case r.Output != "reinjection":
		err = a.Print(reply)
	case refusal == nil:
		err = a.PrintRaw(reply.Reinjection)
	}
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return refusedWith(refusal)
	}
	if !r.Events {
		a.Say("%s", progress.Summary(reply, elapsed))
		if slices.ContainsFunc(reply.Results, wantedAPerson) {
			a.Say("Nobody could be asked about a call. Name people under `approvers` in the policy file: `toolfleet approvals key FILE` makes a key and prints the lines. A fleet inside of run asks you, too, at a terminal.")
		}
	}
	notOK := func(result messages.Result) bool { return result.Status != messages.StatusOK }
	if reply.Status != messages.ReplyCompleted || r.ExitStatus && slices.ContainsFunc(reply.Results, notOK) {
		return command.ErrPrinted
	}
	return nil
}

// wantedAPerson reports whether a call was refused because the fleet has too few approvers.
func wantedAPerson(r messages.Result) bool {
	return r.Err != nil && r.Err.Code == messages.CodeApprovalRequired
}

// refusedWith turns a refusal into an error that says what to do about it.
func refusedWith(r *messages.Refusal) error {
	// The text of the case below asks the same question.
	message := strings.TrimSuffix(strings.TrimSuffix(r.Message, "."), "; is the provider right?")
	text := fmt.Sprintf("refused (%s): %s.", r.Class, message)
	switch r.Class {
	case messages.ClassMalformedMessage, messages.ClassUnsupportedCall:
		text += " Is the provider right? --provider says whose message it is, and `toolfleet plan` how it is read"
	case messages.ClassMissingID, messages.ClassDuplicateID, messages.ClassMissingName:
		text += " Such a message cannot be answered: ask the model again"
	case messages.ClassBatchConflict:
		text += " --batch gives it another id"
	case messages.ClassTooLarge:
		text += " Split it, or raise max_payload of the server"
	}
	return errors.New(text)
}
