package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Options say where and how [Run] serves tools. With the zero value, Run serves them to the
// fleet on this machine, without a policy.
type Options struct {
	// Fleet is the server and the worker's identity there. Fleet.Name defaults to "toolfleet
	// worker".
	Fleet fleet.Options
	// Settings is the path of a toolfleet.yaml with the settings of the whole fleet, such as
	// lease, batch_ttl, audit and pools. Fields of Options take precedence. Default: no file.
	// Run does not read environment variables.
	Settings string
	// Policy is the path of the policy file: rules, approvers, and hooks that are programs.
	// Use the file that the coordinators use. If a coordinator has a policy, a worker without
	// one takes no calls from it. Default: no policy, which allows everything.
	Policy string
	// Hooks run before and after each call, besides those of the policy file.
	Hooks []hook.Hook

	// Name is the worker's name in records, events and status. Default: the host's name and a
	// random part.
	Name string
	// Version is the version of the program, shown by status. Default: the version or commit
	// from which the program was built.
	Version string
	// Slots is how many calls of one pool run at once, 1 or more. Default 10.
	Slots int
	// Drain is how long running calls may go on after the context of Run has ended, from 1 ms.
	// Default 30 s.
	Drain time.Duration
	// Kill, if closed, ends the drain at once. Run stops the calls that still run and gives
	// them up. Other workers may run them again. May be nil.
	Kill <-chan struct{}
	// OnReady is called once, when the worker takes calls. May be nil.
	OnReady func()

	Logger *slog.Logger // nil: no logs
	// Metrics registers the metrics of docs/metrics.md. Each Run in a program needs a
	// registerer of its own. Nil: no metrics.
	Metrics prometheus.Registerer
	Tracer  trace.Tracer // nil: no spans
}

// Run serves tools until ctx ends. From then on it takes no more calls and gives the running
// calls Options.Drain to end. Then it returns nil. Run creates missing streams of the fleet.
//
// Run returns an error if there is a mistake in the tools, options or files, or if the server
// refuses this worker or cannot be reached within the setting nats.timeout (10 s). It also
// refuses a server that may lose acknowledged messages in a power failure, unless the setting
// unsafe_sync allows it. If the connection is lost later, Run restores it.
func Run(ctx context.Context, o Options, tools ...Tool) error {
	registry, err := registryOf(tools)
	cfg, badSettings := o.settings()
	if err := errors.Join(err, badSettings); err != nil {
		return err
	}
	policy, err := cfg.ReadPolicy("", schemas.Rules{})
	if err != nil {
		return err
	}
	policy.GoHooks = o.Hooks
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.HTTP = "" // the program has its own main function and its own HTTP server
	return daemon.Worker{
		Tools: registry, Policy: policy, Version: cmp.Or(o.Version, daemon.ThisBuild().Release()), Connection: o.Fleet.Name,
		Logger: log, Metrics: o.Metrics, Tracer: o.Tracer, Hurry: o.Kill, Ready: o.OnReady,
	}.Run(ctx, cfg)
}

// settings returns the settings of the file, overridden by the options.
func (o Options) settings() (*config.Config, error) {
	given := config.Sources{File: cmp.Or(o.Settings, config.NoFile), Environ: func() []string { return nil }}
	set := func(field, key, text string) {
		if text != "" {
			given.Flags = append(given.Flags, config.Flag{Name: "worker.Options." + field, Key: key, Text: text})
		}
	}
	f := o.Fleet
	set("Fleet.URL", "nats.url", f.URL)
	set("Fleet.Prefix", "prefix", f.Prefix)
	set("Fleet.InboxPrefix", "nats.inbox_prefix", f.InboxPrefix)
	set("Fleet.Creds", "nats.creds", f.Creds)
	set("Fleet.NKey", "nats.nkey", f.NKey)
	set("Fleet.User", "nats.user", f.User)
	set("Fleet.Password", "nats.password", f.Password)
	set("Fleet.Token", "nats.token", f.Token)
	set("Fleet.TLSCA", "nats.tls_ca", f.TLSCA)
	set("Fleet.TLSCert", "nats.tls_cert", f.TLSCert)
	set("Fleet.TLSKey", "nats.tls_key", f.TLSKey)
	set("Policy", "policy", o.Policy)
	set("Name", "name", o.Name)
	if o.Slots != 0 {
		set("Slots", "slots", strconv.Itoa(o.Slots))
	}
	if o.Drain != 0 {
		set("Drain", "drain", o.Drain.String())
	}
	return config.Load(given)
}

// registryOf returns a registry of the tools, or an error with all mistakes in them.
func registryOf(tools []Tool) (*tool.Registry, error) {
	if len(tools) == 0 {
		return nil, errors.New("there is no tool to serve: make one with worker.New")
	}
	var errs []error
	registry := &tool.Registry{}
	for _, t := range tools {
		definition, err := t.Definition()
		if err == nil {
			err = registry.Add(definition, t.runner)
		}
		errs = append(errs, err)
	}
	return registry, errors.Join(errs...)
}

// Main serves tools. Use it as the main function of a program. It takes the flags of
// `toolfleet worker` except those about a tools file (--help lists them), TOOLFLEET_ and NATS_
// variables, and toolfleet.yaml. It ignores a tools file or a root folder that is set there.
// It logs to stderr. At SIGINT or SIGTERM it takes no more calls, and gives the running calls
// the time of the setting drain. A second signal stops the running calls. A third signal ends
// the process. --version shows the build.
//
// Main does not return. Exit status: 0 after a signal, 1 after a failure, 2 for a wrong usage,
// setting or tool.
func Main(tools ...Tool) {
	os.Exit(run(os.Args, os.Stdout, os.Stderr, tools))
}

// flags holds the command line flags of a worker in Go.
type flags struct {
	daemon.Server
	daemon.Governed
	daemon.Listens
	Slots   string `setting:"slots" placeholder:"N"`
	Name    string `setting:"name" placeholder:"TEXT"`
	Version bool   `help:"Show which build this is."`
}

// run does the work of Main and returns the exit status.
func run(args []string, stdout, stderr io.Writer, tools []Tool) int {
	name := filepath.Base(args[0])
	fail := func(err error) int {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		if daemon.IsUsage(err) {
			return 2
		}
		return 1
	}
	given, left, err := parse(name, args[1:], stdout, stderr, tools)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\nRun \"%s --help\" for the usage.\n", name, err, name)
		return 2
	}
	if left {
		return 0
	}
	ctx, signals := daemon.UntilSignal(context.Background())
	defer signals.Stop()
	if err := serve(ctx, given, stderr, tools, signals); err != nil {
		return fail(err)
	}
	return 0
}

// parse reads the command line. left is true if the parser handled a flag such as --help,
// which leaves nothing else to do.
func parse(name string, args []string, stdout, stderr io.Writer, tools []Tool) (given config.Sources, left bool, err error) {
	var names []string
	for _, t := range tools {
		names = append(names, t.definition.Name)
	}
	about := "Serves " + strings.Join(names, ", ") + " to a toolfleet fleet. Settings come from flags, TOOLFLEET_ variables and toolfleet.yaml, in this order. Without --nats it looks for a server at " + daemon.AnyServer + "."
	line := &flags{}
	parser, err := kong.New(line, kong.Name(name), kong.Description(about), kong.Writers(stdout, stderr),
		kong.PostBuild(daemon.ExplainSettings), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.ExplicitGroups(daemon.FlagGroups), kong.Exit(func(int) { left = true }))
	if err != nil {
		return given, false, err
	}
	parsed, err := parser.Parse(args)
	if left || err != nil {
		return given, left, err
	}
	if line.Version {
		_, err := fmt.Fprintln(stdout, daemon.ThisBuild().Line(name))
		return given, true, err
	}
	return daemon.GivenFlags(parsed), false, nil
}

// serve runs the worker of a program until ctx ends.
func serve(ctx context.Context, given config.Sources, stderr io.Writer, tools []Tool, signals *daemon.Signals) error {
	registry, err := registryOf(tools)
	cfg, badSettings := config.Load(given)
	if err := errors.Join(err, badSettings); err != nil {
		return daemon.Usage(err)
	}
	policy, err := cfg.ReadPolicy("", schemas.Rules{})
	if err != nil {
		return daemon.Usage(err)
	}
	log, err := telemetry.Logger(stderr, cfg.Log.Level, cfg.Log.Format, daemon.IsTerminal(stderr))
	if err != nil {
		return daemon.Usage(err)
	}
	if cfg.File() != "" {
		log.Info("settings read", "file", cfg.File())
	}
	release := daemon.ThisBuild().Release()
	tracer, flush, err := telemetry.Traces(ctx, daemon.WorkerService, release, log)
	if err != nil {
		return daemon.Usage(err)
	}
	defer flush()
	metrics := telemetry.Registry(release)
	return daemon.Worker{
		Tools: registry, Policy: policy, Version: release,
		Logger: log, Metrics: metrics, HTTP: metrics, Tracer: tracer, Hurry: signals.Patience(),
	}.Run(ctx, cfg)
}
