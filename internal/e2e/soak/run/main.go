//go:build unix

// Command run injects faults into a fleet of real processes and reports the results. `make
// soak` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak"
)

func main() {
	os.Exit(run())
}

func run() int {
	cfg := soak.Config{Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	flag.DurationVar(&cfg.Duration, "duration", time.Hour, "how long to go on")
	flag.DurationVar(&cfg.Every, "every", 2*time.Second,
		"mean time between two faults; the default comes to some 1,000 kills in an hour")
	flag.Uint64Var(&cfg.Seed, "seed", rand.Uint64(), "fixes faults and batches (default: another one each time)")
	flag.IntVar(&cfg.Sessions, "sessions", 8, "sessions, each with an agent of its own")
	flag.IntVar(&cfg.Workers, "workers", 3, "workers")
	flag.IntVar(&cfg.Coordinators, "coordinators", 2, "coordinators")
	flag.DurationVar(&cfg.Think, "think", 1500*time.Millisecond, "longest pause of a session between two batches")
	flag.StringVar(&cfg.Dir, "dir", "", "an empty folder for data, logs and ledger (default: a temporary one, removed when all went well)")
	mix := flag.String("faults", soak.DefaultMix().String(),
		"kinds of fault, each with how often it comes up among the others")
	scenario := flag.String("scenario", "", "restarts: the server is restarted five times under 25 sessions; the default breaks everything at random")
	flag.StringVar(&cfg.OldPrograms, "old", "", "a folder with an older toolfleet: half of the processes run it, and restarts change the build")
	runs := flag.Int("runs", 1, "how many runs of a scenario, each with the next seed; it ends at the first that breaks a rule")
	flag.Usage = usage
	flag.Parse()
	var err error
	if cfg.Mix, err = soak.ParseMix(*mix); err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "soak:", err, flag.Args())
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch *scenario {
	case "":
		fmt.Fprintf(os.Stderr, "soak for %s with -seed %d\n", cfg.Duration, cfg.Seed)
		return once(ctx, cfg)
	case "restarts":
		programs, err := os.MkdirTemp("", "toolfleet-soak-programs-")
		if err == nil {
			defer os.RemoveAll(programs)
			err = soak.Build(programs)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			return 1
		}
		for n := range uint64(*runs) {
			restarts := soak.Restarts(cfg.Seed + n)
			restarts.Dir, restarts.Programs, restarts.Progress = cfg.Dir, programs, cfg.Progress
			fmt.Fprintf(os.Stderr, "run %d of %d: restarts of the server with -seed %d\n", n+1, *runs, restarts.Seed)
			if status := once(ctx, restarts); status != 0 || ctx.Err() != nil {
				return status
			}
		}
		return 0
	}
	fmt.Fprintf(os.Stderr, "soak: there is no scenario %q\n", *scenario)
	return 2
}

// once does one run and returns its exit status.
func once(ctx context.Context, cfg soak.Config) int {
	keep := cfg.Dir != ""
	report, err := soak.Run(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	report.Print(os.Stdout)
	if !report.Passed() {
		return 1
	}
	if !keep {
		_ = os.RemoveAll(report.Config.Dir)
	}
	return 0
}

func usage() {
	out := flag.CommandLine.Output()
	fmt.Fprint(out, `Breaks a fleet of real processes while agents use it, and checks that nothing was lost, done twice, done out of
order, or reported as what it is not. Prints a summary; the exit status is 1 when a rule was broken, and the
data, logs and ledger of the run are then kept. The end comes early, and in order, at an interrupt.

  make soak SOAK="-duration 10m -faults worker=3,server=1"

`)
	flag.PrintDefaults()
	fmt.Fprintln(out, "\nThe kinds of fault:")
	for _, k := range soak.Kinds {
		fmt.Fprintf(out, "  %-12s %s\n", k.Kind, k.Does)
	}
}
