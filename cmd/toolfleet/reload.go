package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// lookEvery is how often dev looks for a change of its tools file.
const lookEvery = 300 * time.Millisecond

// restEvery is the shortest time between two replacements of the worker because of changes of
// servers. A server may report changes of its list as often as it likes.
const restEvery = 10 * time.Second

// reloading runs the worker of this process. When the tools change, it replaces the worker:
//
//	a tools file, program or server changes -> its tools -> a second worker -> it takes calls -> the first one drains
//
// If a step fails before the second worker takes calls, reloading reports the error and the
// first worker goes on. The workers share the processes of servers if only a server's list has
// changed. If a file has changed, the second worker starts its own processes. dev also looks
// at the files. It removes the announcements of tools that no worker serves any more, so that
// calls of such tools are answered at once.
type reloading struct {
	cfg     *config.Config
	conn    *bus.Conn
	shown   instruments
	policy  *config.Policy
	metrics *worker.Metrics
	hurry   <-chan struct{}
	say     func(text string)
	first   *localtools.Serving
	worker  *worker.Worker // the worker that serves first
	// open opens the tools of the files as they are now. Nil: reloading does not look at the
	// files.
	open func(ctx context.Context) (*localtools.Serving, error)

	group   *errgroup.Group
	current atomic.Pointer[served]
	times   int // how often tools were opened again
}

// reload makes the fleet serve its tools file again when the file or one of its servers changes.
func (f *fleet) reload(a *command.App, root string, hurry <-chan struct{}) {
	r := &reloading{
		cfg: f.cfg, conn: f.conn, shown: f.shown, policy: f.policy, metrics: f.metrics, hurry: hurry, first: f.serving, worker: f.parts.worker,
		say: func(text string) { a.Say("%s", text) },
	}
	r.open = func(ctx context.Context) (*localtools.Serving, error) {
		s, err := localtools.Open(ctx, f.cfg, root, f.shown.log)
		if err != nil {
			return nil, err
		}
		if err := s.Whole(); err != nil {
			s.Close()
			return nil, err
		}
		return s, nil
	}
	f.work = r.Run
}

// Run runs workers until ctx ends.
func (r *reloading) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	r.group = group
	r.start(ctx, r.first, r.worker)
	group.Go(func() error {
		r.follow(ctx)
		return nil
	})
	return group.Wait()
}

// Ready reports whether a worker takes calls.
func (r *reloading) Ready() bool {
	current := r.current.Load()
	return current != nil && current.worker.Ready()
}

// follow starts a worker after each change until ctx ends.
func (r *reloading) follow(ctx context.Context) {
	var looks <-chan time.Time
	watch := newFileWatch(string(r.cfg.Tools), string(r.cfg.MCP))
	policy := newFileWatch(string(r.cfg.Policy))
	programs := newFileWatch(localtools.ServerPrograms(r.cfg)...)
	if r.open != nil {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		looks = ticker.C
	}
	var rested <-chan time.Time // fires after restEvery; nil: changes of servers count at once
	for {
		current := r.current.Load()
		changes := current.changes
		if rested != nil {
			changes = nil
		}
		select {
		case <-looks:
			if policy.changed() {
				r.say("The policy file has changed. It holds from the next start on: start dev again.")
			}
			if watch.changed() {
				programs = newFileWatch(localtools.ServerPrograms(r.cfg)...) // before the programs start
				r.replace(ctx, current, "The tools file was read again", r.open)
			} else if programs.changed() {
				r.replace(ctx, current, "A program has changed, so it was started again", r.open)
			}
		case <-changes:
			r.replace(ctx, current, "A server has changed its tools", current.serving.Again)
			rested = time.After(restEvery)
		case <-rested:
			rested = nil
		case <-ctx.Done():
			return
		}
	}
}

// replace starts a worker with the tools that open returns. Once the new worker takes calls,
// replace stops the current one.
func (r *reloading) replace(ctx context.Context, current *served, why string, open func(context.Context) (*localtools.Serving, error)) {
	next, err := r.again(ctx, open)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.say(fmt.Sprintf("The tools stay as they are: %v", err))
	default:
		changed := difference(current.serving, next.serving)
		r.say(why + ": " + changed.String())
		if err := r.forget(ctx, changed.gone); err != nil && ctx.Err() == nil {
			r.say(fmt.Sprintf("Calls of a tool that is gone wait for the queue timeout: %v", err))
		}
		r.current.Store(next)
		current.stop()
	}
}

// served is a worker that runs, with its tools.
type served struct {
	serving *localtools.Serving
	worker  *worker.Worker
	changes <-chan struct{} // of its servers
	stop    context.CancelFunc
	ended   chan struct{} // closed when the worker has ended; err then says why
	err     error
}

// hasEnded reports whether the worker has ended.
func (s *served) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// start runs a worker until it is stopped or ctx ends. It then closes the worker's tools.
func (r *reloading) start(ctx context.Context, s *localtools.Serving, w *worker.Worker) *served {
	ctx, stop := context.WithCancel(ctx)
	changes, looked := s.Changes(ctx)
	started := &served{serving: s, worker: w, changes: changes, stop: stop, ended: make(chan struct{})}
	r.current.CompareAndSwap(nil, started)
	r.group.Go(func() error {
		started.err = w.Run(ctx)
		stop()
		looked()
		s.Close()
		close(started.ended)
		if r.current.Load() == started {
			return started.err
		}
		return nil // another worker takes calls
	})
	return started
}

// again opens the tools, and starts a worker for them. It returns once the new worker takes
// calls.
func (r *reloading) again(ctx context.Context, open func(context.Context) (*localtools.Serving, error)) (*served, error) {
	s, err := open(ctx)
	if err != nil {
		return nil, err
	}
	w, err := r.workerFor(s)
	if err != nil {
		s.Close()
		return nil, err
	}
	next := r.start(ctx, s, w)
	if !until(ctx, func() bool { return w.Ready() || next.hasEnded() }) {
		return nil, ctx.Err()
	}
	if next.hasEnded() {
		return nil, next.err
	}
	return next, nil
}

// workerFor makes a worker under the policy as it is now.
func (r *reloading) workerFor(s *localtools.Serving) (*worker.Worker, error) {
	policy, err := s.Policy(r.cfg)
	if err != nil {
		return nil, err
	}
	if len(policy.Approvers) == 0 {
		policy.Approvers = r.policy.Approvers // dev may have made its user the approver
	}
	if wire.PlatformPolicy(policy.Version()) != wire.PlatformPolicy(r.policy.Version()) {
		return nil, errors.New("the policy has changed too, and the coordinator has the old one: start it again")
	}
	cfg := *r.cfg
	r.times++
	if cfg.Workers.Name != "" { // both workers run for a moment, so their names must differ
		cfg.Workers.Name = fmt.Sprintf("%s-%d", cfg.Workers.Name, r.times+1)
	}
	return workerOf(s, policy, r.shown, r.metrics, r.hurry).New(&cfg, r.conn)
}

// forget removes the announcements of tools that only the current worker of dev serves, before it
// drains.
func (r *reloading) forget(ctx context.Context, gone []string) error {
	if r.open == nil || len(gone) == 0 {
		return nil
	}
	announced, err := r.conn.Values(ctx, r.conn.Names().Stream(bus.BucketWorkers))
	if err != nil {
		return err
	}
	tenant := r.cfg.Workers.Tenant
	tools, err := r.conn.Bucket(ctx, r.conn.Names().Stream(bus.BucketTools))
	if err != nil {
		return err
	}
	for _, name := range gone {
		others := -1 // -1: do not count the current worker
		for key, value := range announced {
			w, err := wire.ReadPresence(key, value)
			if err != nil {
				return fmt.Errorf("%s in bucket %s cannot be read: %w", key, bus.BucketWorkers, err)
			}
			if w.Tenant == tenant && slices.Contains(w.Tools, name) {
				others++
			}
		}
		if others > 0 { // a worker in another process
			continue
		}
		if err := tools.Delete(ctx, wire.AnnouncedKey(tenant, name)); err != nil {
			return err
		}
	}
	return nil
}

// change describes how the served tools have changed.
type change struct {
	tools                int
	added, changed, gone []string
}

// difference returns the change between two sets of tools.
func difference(before, after *localtools.Serving) (c change) {
	digests := func(s *localtools.Serving) map[string]string {
		all := map[string]string{}
		for _, t := range s.Registry.Definitions() {
			all[t.Name] += t.Digest + " "
		}
		return all
	}
	old, now := digests(before), digests(after)
	c.tools = len(now)
	for name, digest := range now {
		switch had, ok := old[name]; {
		case !ok:
			c.added = append(c.added, name)
		case had != digest:
			c.changed = append(c.changed, name)
		}
	}
	for name := range old {
		if _, ok := now[name]; !ok {
			c.gone = append(c.gone, name)
		}
	}
	return c
}

// String describes the change.
func (c change) String() string {
	text := terminal.Count(c.tools, "tool")
	for _, list := range []struct {
		what  string
		names []string
	}{{"new", c.added}, {"changed", c.changed}, {"gone", c.gone}} {
		if len(list.names) > 0 {
			slices.Sort(list.names)
			text += "; " + list.what + ": " + terminal.Clean(strings.Join(list.names, ", "), 300)
		}
	}
	return text + "."
}

// fileWatch notices changes of files. An editor may write a file in several steps. So a change
// counts only when two looks in a row find the same state.
type fileWatch struct {
	names       []string
	known, last string
}

func newFileWatch(names ...string) *fileWatch {
	w := &fileWatch{names: slices.DeleteFunc(names, func(name string) bool { return name == "" })}
	w.known = w.look()
	w.last = w.known
	return w
}

// changed reports whether the files have changed. It reports each change once.
func (w *fileWatch) changed() bool {
	now := w.look()
	settled := now == w.last
	w.last = now
	if !settled || now == w.known {
		return false
	}
	w.known = now
	return true
}

// look describes the files as they are now.
func (w *fileWatch) look() string {
	var all strings.Builder
	for _, name := range w.names {
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Fprintln(&all, "none")
		case err != nil:
			fmt.Fprintln(&all, err)
		default:
			fmt.Fprintln(&all, info.ModTime().UnixNano(), info.Size())
		}
	}
	return all.String()
}
