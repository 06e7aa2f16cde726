package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

type mcpCmd struct {
	daemon.Server
	command.ToolFlags
	builtinFlags
	daemon.Governed
	Session string `placeholder:"SESSION" help:"The session for calls without one. Default: a new one for each process."`
}

// Help returns the text that --help shows below the command's usage.
func (mcpCmd) Help() string {
	return `Example: claude mcp add toolfleet -- toolfleet mcp --tools tools.yaml

Without --nats, NATS_URL and --context a fleet runs in this process and ends with it, as that of "toolfleet run": the tools file and the
builtin tools on --root. No person can be asked there, so a call that needs one is refused. With a server, the workers of
that fleet run the calls, and --tools, --root and --policy have no meaning.

stdin and stdout speak MCP; everything else goes to stderr. Over HTTP, "toolfleet http" and "toolfleet dev" serve the same
at /mcp.`
}

func (c mcpCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	log, err := a.Logger(cfg, a.Stderr, "warn")
	if err != nil {
		return err
	}
	shown, err := openInstruments(a, wholeService, log, nil)
	if err != nil {
		return err
	}
	defer shown.flush()
	server := mcpserver.New(mcpserver.Config{Version: daemon.ThisBuild().Release(), Logger: log})
	serve := func(ctx context.Context, conn *bus.Conn) error {
		who := mcpserver.Caller{
			Client: command.ClientOver(conn, cfg.Tenant, client.Tracer(shown.tracer)), Tenant: cfg.Tenant,
			Session: messages.SessionID(cmp.Or(c.Session, "mcp-"+rand.Text())),
		}
		return server.Serve(ctx, &mcp.IOTransport{Reader: io.NopCloser(a.Stdin), Writer: leftOpen{a.Stdout}}, who)
	}
	if cfg.NATS.URL == "" {
		return serveInside(a, cfg, c.root(cfg), shown, serve)
	}
	conn, err := daemon.Connect(a.Ctx, cfg, "toolfleet mcp", log)
	if err != nil {
		return err
	}
	defer conn.Close()
	return serve(a.Ctx, conn)
}

// serveInside runs a fleet in this process until serve ends. root is as in builtinFlags.
func serveInside(a *command.App, cfg *config.Config, root string, shown instruments, serve func(context.Context, *bus.Conn) error) error {
	cfg.Workers.Drain, cfg.Coordinators.Drain = min(cfg.Workers.Drain, quick), min(cfg.Coordinators.Drain, quick)
	inside := devserver.Options{MaxPayload: devserverOptions(cfg, nil).MaxPayload, Logger: shown.log}
	f, err := newFleet(a.Ctx, cfg, root, shown, inside, nil, func(f *fleet) error {
		f.policy.Approvers = nil // stdin belongs to the MCP client, not to a person
		return nil
	})
	defer f.close()
	if err != nil {
		return err
	}
	f.serving.SayWhatIsDown(a)
	// Do not end the fleet at a signal: it still has to abort the calls of the client.
	running, end := context.WithCancel(context.WithoutCancel(a.Ctx))
	defer end()
	open := make(chan struct{})
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return f.run(running, func() { close(open) }) })
	group.Go(func() error {
		defer end()
		ctx, stop := context.WithCancel(running)
		defer stop()
		defer context.AfterFunc(a.Ctx, stop)()
		select {
		case <-open:
			return serve(ctx, f.conn)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// leftOpen is a writer whose Close does nothing.
type leftOpen struct{ io.Writer }

// Close implements [io.Closer].
func (leftOpen) Close() error { return nil }
