package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/approvals"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

type devCmd struct {
	daemon.General
	command.ToolFlags
	builtinFlags
	daemon.Governed
	command.ServerFlags
	daemon.Listens
	API   string `setting:"api.listen" placeholder:"ADDR"`
	Slots string `setting:"slots" placeholder:"N"`
}

// Help returns the text that --help shows below the command's usage.
func (devCmd) Help() string {
	return `NATS server, coordinator and worker in one process. The worker serves the tools file and the builtin Read, Glob, Grep,
Write, Edit and Bash on --root, by default the current folder. The server has no passwords.

At a terminal it shows the calls of all sessions as they run. When the tools file changes it is read again: calls that run
end with the tools they began with, later ones get the new ones. A wrong file is reported, and the tools stay as they are. A new
policy holds from the next start on.

If the policy names no approvers, the user who runs dev is one. The key is that of approver.key, else one that dev makes in
the user's own settings, where "toolfleet approvals" finds it. A tool outside the sandbox that runs as the same user can read it too.`
}

func (d devCmd) Run(a *command.App) error {
	cfg, log, err := a.Load()
	if err != nil {
		return err
	}
	reg := telemetry.Registry(daemon.ThisBuild().Release())
	shown, err := openInstruments(a, wholeService, log, reg)
	if err != nil {
		return err
	}
	defer shown.flush()
	f, err := newFleet(a.Ctx, cfg, d.root(cfg), shown, devserverOptions(cfg, log), a.Hurry(), (*fleet).letOwnerDecide)
	defer f.close()
	if err == nil {
		err = f.serving.Whole()
	}
	if err != nil {
		return err
	}
	f.reload(a, d.root(cfg), a.Hurry())
	reg.MustRegister(f.conn.Collectors()...)
	reg.MustRegister(f.parts.coordinator.Gauges())
	ready := func(ctx context.Context) error {
		if !f.parts.coordinator.Ready() {
			return errors.New("not taking batches yet")
		}
		return daemon.Usable(ctx, f.conn)
	}
	if f.api, err = devAPI(a.Ctx, cfg, log); err != nil {
		return err
	}
	serve := func(context.Context) error { return nil }
	if f.api != nil {
		defer f.api.close()
		f.api.signer = f.signer
		if serve, err = f.api.serverOver(f.conn, shown, telemetry.Handler(reg, ready)); err != nil {
			return err
		}
	}
	return daemon.Serve(a.Ctx, cfg.HTTP, reg, ready, log, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return serve(ctx) })
		group.Go(func() error { return f.run(ctx, func() { f.greet(a) }) })
		if terminal.IsTerminal(a.Stderr) && cfg.Log.Format != "json" {
			group.Go(func() error { return f.showCalls(ctx, a) })
		}
		return group.Wait()
	})
}

// showCalls writes lines about the calls of all sessions to the terminal as they run.
func (f *fleet) showCalls(ctx context.Context, a *command.App) error {
	shown := progress.NewSessions(terminal.Colours(a.Stderr), false)
	for e, err := range command.ClientOver(f.conn, f.cfg.Tenant).Live(ctx) {
		if err != nil {
			return err
		}
		_, _ = io.WriteString(a.Stderr, shown.Take(e, time.Now())) // a closed terminal must not end the fleet
	}
	return nil
}

// devAPI listens for the HTTP API. It returns nil if the settings turn the API off. If another
// program uses the default address, devAPI takes any free port.
func devAPI(ctx context.Context, cfg *config.Config, log *slog.Logger) (*apiListener, error) {
	if cfg.API.Listen == "none" {
		return nil, nil
	}
	api, err := listenForAPI(ctx, cfg, log)
	if err != nil && !cfg.Given("api.listen") {
		cfg.API.Listen = "127.0.0.1:0"
		api, err = listenForAPI(ctx, cfg, log)
	}
	return api, err
}

// letOwnerDecide makes the user who runs this fleet its approver, if the policy names none.
func (f *fleet) letOwnerDecide() error {
	if len(f.policy.Approvers) > 0 {
		return nil
	}
	file := f.ownKey()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	key, _, err := approvals.ReadOrMakeKey(file)
	if err != nil {
		return err
	}
	f.owner = messages.Approver{Name: approvals.ApproverName(f.cfg), Key: key.Public()}
	f.policy.Approvers = []messages.Approver{f.owner}
	return nil
}

// ownKey returns the file of the approver's key: approver.key of the settings, else the key
// file in the user's config folder, else a file in the server's data folder.
func (f *fleet) ownKey() string {
	return cmp.Or(string(f.cfg.Approver.Key), approvals.OwnKeyFile(), filepath.Join(f.server.DataDir(), "approver.key"))
}

// howToDecide returns the command that waits for questions and answers them.
func (f *fleet) howToDecide() string {
	watch := self() + " approvals watch --nats " + f.server.URL()
	if f.owner.Name == "" {
		return watch + " --key FILE, as one whom the policy names"
	}
	if f.ownKey() != approvals.KeyFile(f.cfg) {
		watch += " --key " + f.ownKey()
	}
	if f.shell() {
		watch += "\n                    (Bash runs as you, and so could answer for you: deny it in the policy where it must not)"
	}
	return watch
}

// shell reports whether an agent can run shell commands here: there is a tool for them, and no rule
// denies every call of it.
func (f *fleet) shell() bool {
	rules, err := f.policy.Permissions()
	return err == nil && slices.ContainsFunc(f.serving.Registry.Definitions(), func(t schemas.Tool) bool {
		return t.ShellCommand != "" && !rules.DeniesTool(t.Name)
	})
}

// howToPut returns the lines that show how to reach the HTTP API; "" without the API.
func (f *fleet) howToPut() string {
	if f.api == nil {
		return ""
	}
	const example = "examples/http/message.json"
	put := "PUT " + f.api.addr() + "/v1/sessions/<session>/batches/<batch>"
	if _, err := os.Stat(example); err == nil {
		put = "curl -X PUT " + f.api.addr() + "/v1/sessions/chat-1/batches/1 -d @" + example
	}
	return fmt.Sprintf("  Over HTTP:        %s\n  As an MCP server: %s/mcp/<session>\n", put, f.api.addr())
}

// howToRun returns a command that works in the current folder. The command runs a batch, or
// shows the tools if howToRun knows no batch that would work here.
func (f *fleet) howToRun() string {
	const example = "examples/anthropic.json"
	glob := slices.ContainsFunc(f.serving.Registry.Definitions(), func(t schemas.Tool) bool { return t.Name == "Glob" })
	url := f.server.URL()
	if !glob || len(f.serving.Roots) == 0 {
		return "Look at the tools: " + self() + " tools ls --nats " + url
	}
	if _, err := os.Stat(example); err == nil {
		return "Run a batch:      " + self() + " run " + example + " --nats " + url
	}
	return `Run a batch:      echo '{"calls":[{"id":"1","name":"Glob","input":{"pattern":"*"}}]}' | ` + self() + ` run --provider canonical --nats ` + url
}

// self returns the words with which the user starts this program.
func self() string {
	if strings.HasPrefix(os.Args[0], "npx ") { // the package of npm says so
		return os.Args[0]
	}
	if _, err := exec.LookPath("toolfleet"); err != nil {
		return os.Args[0]
	}
	return "toolfleet"
}

// greet prints how to reach the fleet.
func (f *fleet) greet(a *command.App) {
	url := f.server.URL()
	tools := terminal.Count(len(f.serving.Registry.Definitions()), "tool")
	if len(f.serving.Roots) > 0 {
		tools += " on " + f.serving.Roots[0]
	}
	a.Say(`
toolfleet is ready at %s, with %s.

  %s
  From an agent:    publish a batch to %s.batch._.<session>.<batch>
                    its reply comes on %s.reply._.<session>.<batch>
%s  Look at it:       %s watch --nats %s
  Answer questions: %s

Data is in %s. Ctrl-C ends it.
`, url, tools, f.howToRun(), f.cfg.NATS.Prefix, f.cfg.NATS.Prefix, f.howToPut(), self(), url, f.howToDecide(), f.server.DataDir())
}
