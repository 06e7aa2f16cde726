//go:build unix

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/client"
	fleetpkg "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Config holds the settings of a run. A field that names a default has it when it is zero.
type Config struct {
	Duration     time.Duration // of load and faults; default 20 s
	Sequence     []Kind        // faults in order, not Mix, Duration and Kills; the last one ends the run
	Batches      int           // the load ends when this many batches are acknowledged
	Kills        int           // after Duration, faults continue until so many kills, for 2 min at most
	Seed         uint64        // of the random batches and faults; 0 is a valid seed
	Mix          Mix           // default DefaultMix
	Every        time.Duration // mean time between two faults; default 2 s
	Settings     []string      // of the fleet, as environment variables; default Quick
	Shape        Shape         // of batches; default a mix of everything
	Calm         bool          // no batch is aborted, and none is submitted again after its reply
	Sessions     int           // default 8
	Depth        int           // how many batches of a session may be open at once; default 3
	Think        time.Duration // longest pause of a session between two batches; default 1.5 s
	Coordinators int           // default 2
	Workers      int           // default 3
	Programs     string        // a folder that [Build] has filled; default: the run builds the programs
	OldPrograms  string        // folder with an older toolfleet, which every second process runs
	Dir          string        // empty folder for programs, data, logs, ledger; default a temporary one
	Drain        time.Duration // how long the last batches may take; default 2 min
	// Progress receives a status line about 60 times in a run. If it is nil, there are no
	// status lines.
	Progress func(line string)
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	count := func(n *int, standard int) {
		if *n == 0 {
			*n = standard
		}
	}
	set(&c.Duration, 20*time.Second)
	set(&c.Every, 2*time.Second)
	set(&c.Think, 1500*time.Millisecond)
	set(&c.Drain, 2*time.Minute)
	count(&c.Sessions, 8)
	count(&c.Depth, 3)
	count(&c.Coordinators, 2)
	count(&c.Workers, 3)
	if c.Settings == nil {
		c.Settings = Quick
	}
	if c.Shape == nil {
		c.Shape = mixed
	}
	if c.Mix == nil {
		c.Mix = DefaultMix()
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c
}

// Run puts a fleet under load and faults, and returns a report with the broken rules. It keeps
// the folder of the run, which the report names. It returns an error if it has no history to
// check. If ctx ends, the run stops early and is still checked.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg = cfg.withDefaults()
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "toolfleet-soak-")
		if err != nil {
			return nil, err
		}
		cfg.Dir = dir
	}
	log := &faultLog{}
	f, err := newFleet(cfg.Dir, cfg, log)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	if err := f.start(); err != nil {
		return nil, err
	}
	history, r, err := f.record(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w; the logs are in %s", err, cfg.Dir)
	}
	return r.judge(history), nil
}

// record puts the fleet under load and faults, waits for the open batches, and collects the
// history.
func (f *fleet) record(ctx context.Context, cfg Config) (History, *Report, error) {
	whole := context.WithoutCancel(ctx)
	conn, err := bus.Connect(whole, bus.Options{URL: f.url, Name: "soak"})
	if err != nil {
		return History{}, nil, err
	}
	defer conn.Close()
	agent, err := client.Connect(whole, fleetpkg.Options{}, clientconn.Over(conn))
	if err != nil {
		return History{}, nil, err
	}
	l := &load{client: agent, conn: conn, depth: cfg.Depth, think: cfg.Think, shape: cfg.Shape, calm: cfg.Calm, copies: map[string]copies{}, people: f.people, twoBuilds: cfg.OldPrograms != "", decisions: map[string][]Decision{}}
	unsubscribe, err := l.listen()
	if err != nil {
		return History{}, nil, err
	}
	defer unsubscribe()

	r := &Report{Config: cfg, Began: time.Now()}
	submitting, stopSubmitting := context.WithCancel(whole)
	defer stopSubmitting()
	waiting, giveUp := context.WithCancel(whole)
	defer giveUp()
	var agents, reporting sync.WaitGroup
	for i := range cfg.Sessions {
		agents.Go(func() {
			l.agent(submitting, waiting, fmt.Sprintf("s%d", i+1), rand.New(rand.NewPCG(cfg.Seed, 1<<32+uint64(i))))
		})
	}
	reporting.Go(func() { l.reportProgress(submitting, f, cfg) })
	reporting.Go(func() { f.watchMachine(submitting) })
	deciding, stopDeciding := context.WithCancel(whole)
	defer stopDeciding()
	var people sync.WaitGroup
	for i, name := range rawjson.SortedKeys(f.people) {
		people.Go(func() { l.person(deciding, name, rand.New(rand.NewPCG(cfg.Seed, 1<<33+uint64(i)))) })
	}
	if err := l.awaitFirstReply(ctx); err != nil {
		giveUp()
		return History{}, nil, err
	}
	breaking, stopBreaking := context.WithCancel(ctx)
	defer stopBreaking()
	if cfg.Sequence != nil {
		f.inflictAll(breaking, cfg)
		for acked, _ := l.progress(); acked < cfg.Batches && ctx.Err() == nil; acked, _ = l.progress() {
			pause(ctx, 50*time.Millisecond)
		}
	} else {
		reporting.Go(func() { // Duration begins when the fleet is up
			defer stopBreaking()
			pause(breaking, cfg.Duration)
			for end := time.Now().Add(2 * time.Minute); breaking.Err() == nil && times(f.log.all(), Kill) < cfg.Kills && time.Now().Before(end); {
				pause(breaking, 100*time.Millisecond)
			}
		})
		f.inflict(breaking, cfg.Seed, cfg.Mix, cfg.Every)
	}

	mended := time.Now()
	stopSubmitting()
	time.AfterFunc(cfg.Drain, giveUp)
	agents.Wait()
	reporting.Wait()
	stopDeciding()
	people.Wait()
	r.Drain, r.Ended = time.Since(mended), time.Now()
	return f.collect(whole, l, r)
}

// awaitFirstReply waits for the first reply. Faults begin after that, so that no fault hits a
// fleet that is starting.
func (l *load) awaitFirstReply(ctx context.Context) error {
	for begun := time.Now(); ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if _, answered := l.progress(); answered > 0 {
			return nil
		}
		if time.Since(begun) > time.Minute {
			return errors.New("the fleet answered nothing for a minute, and nothing was broken yet")
		}
	}
	return errors.New("the run ended before the first reply")
}

// reportProgress sends status lines to cfg.Progress until ctx ends.
func (l *load) reportProgress(ctx context.Context, f *fleet, cfg Config) {
	for begun := time.Now(); ; {
		pause(ctx, max(cfg.Duration/60, 5*time.Second))
		if ctx.Err() != nil {
			return
		}
		acked, answered := l.progress()
		faults := f.log.all()
		cfg.Progress(fmt.Sprintf("%s: %d faults, %d processes killed; %d batches acknowledged, %d answered",
			time.Since(begun).Round(time.Second), len(faults), times(faults, Kill), acked, answered))
	}
}

// collect builds the history. The agents have ended, and the fleet is still up.
func (f *fleet) collect(ctx context.Context, l *load, r *Report) (History, *Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := l.reread(ctx); err != nil {
		return History{}, nil, err
	}
	slices.SortFunc(l.arrived, time.Time.Compare)
	h := History{Batches: l.batches, Replies: l.arrived, Faults: f.log.all(), Lease: lease + grace, Decisions: l.decisions}
	var err error
	for tries := 0; tries < 150; tries++ { // a batch may stay in the log for a moment after its reply
		if h.Left, err = l.left(ctx); err == nil && len(h.Left) == 0 {
			break
		}
		pause(ctx, 200*time.Millisecond)
	}
	if err != nil {
		return History{}, nil, err
	}
	if h.Lines, err = l.lines(ctx); err != nil {
		return History{}, nil, err
	}
	jobs, err := l.conn.All(ctx, l.conn.Names().Stream(bus.Jobs), ">")
	if err != nil {
		return History{}, nil, err
	}
	r.Jobs = len(jobs)
	f.stop() // so that nothing writes to the ledger while it is read
	h.Ledger, err = ledger.Read(f.ledger())
	r.Unknowns, r.Resubmitted = l.unknowns, l.resubmitted
	return h, r, err
}
