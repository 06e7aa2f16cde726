package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// lookEvery is how often dev looks for a change of its tools file.
const lookEvery = 300 * time.Millisecond

// reloading serves the tools of dev, and opens them again whenever the tools file changes.
//
//	file changes -> open its tools -> a second worker -> it takes calls -> the first one drains
//
// A failure before the second worker takes calls is reported, and the tools stay as they are.
type reloading struct {
	*fleet
	a     *command.App
	root  string // as in builtinFlags
	hurry <-chan struct{}
	group *errgroup.Group
	times int // how often tools were opened again
}

// reload makes the fleet serve its tools file again when the file changes.
func (f *fleet) reload(a *command.App, root string, hurry <-chan struct{}) {
	r := &reloading{fleet: f, a: a, root: root, hurry: hurry}
	f.work = r.run
}

// run runs workers until ctx ends. ready is called once the first one takes calls.
func (r *reloading) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	r.group = group
	current := r.start(ctx, r.serving, r.parts.worker)
	group.Go(func() error {
		watch := newFileWatch(string(r.cfg.Tools), string(r.cfg.MCP))
		looks := time.NewTicker(lookEvery)
		defer looks.Stop()
		for {
			select {
			case <-looks.C:
			case <-ctx.Done():
				return nil
			}
			if !watch.changed() {
				continue
			}
			next, err := r.again(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				r.a.Say("The tools stay as they are: %v", err)
			default:
				r.a.Say("%s", difference(current.serving, next.serving))
				current.stop()
				current = next
			}
		}
	})
	return group.Wait()
}

// served is a worker that runs, with its tools.
type served struct {
	serving *localtools.Serving
	worker  *worker.Worker
	stop    context.CancelFunc
}

// start runs a worker until it is stopped or ctx ends, and closes its tools then.
func (r *reloading) start(ctx context.Context, s *localtools.Serving, w *worker.Worker) *served {
	ctx, stop := context.WithCancel(ctx)
	r.group.Go(func() error {
		defer stop()
		defer s.Close()
		return w.Run(ctx)
	})
	return &served{s, w, stop}
}

// again opens the tools of the files as they are now, and starts a worker for them. It returns once
// the worker takes calls.
func (r *reloading) again(ctx context.Context) (*served, error) {
	s, err := localtools.Open(ctx, r.cfg, r.root, r.shown.log)
	if err != nil {
		return nil, err
	}
	w, err := r.workerFor(s)
	if err != nil {
		s.Close()
		return nil, err
	}
	next := r.start(ctx, s, w)
	if !until(ctx, w.Ready) {
		return nil, ctx.Err()
	}
	return next, nil
}

// workerFor makes a worker under the policy as it is now.
func (r *reloading) workerFor(s *localtools.Serving) (*worker.Worker, error) {
	if err := s.Whole(); err != nil {
		return nil, err
	}
	policy, err := s.Policy(r.cfg)
	if err != nil {
		return nil, err
	}
	if len(policy.Approvers) == 0 {
		policy.Approvers = r.policy.Approvers // if dev made its user one
	}
	if wire.PlatformPolicy(policy.Version()) != wire.PlatformPolicy(r.policy.Version()) {
		return nil, errors.New("the policy has changed too, and the coordinator has the old one: start dev again")
	}
	cfg := *r.cfg
	r.times++
	if cfg.Workers.Name != "" { // both workers run for a moment, so their names must differ
		cfg.Workers.Name = fmt.Sprintf("%s-%d", cfg.Workers.Name, r.times+1)
	}
	return workerOf(s, policy, r.shown, r.metrics, r.hurry).New(&cfg, r.conn)
}

// difference describes the changes in a new tools file.
func difference(before, after *localtools.Serving) string {
	digests := func(s *localtools.Serving) map[string]string {
		all := map[string]string{}
		for _, t := range s.Registry.Definitions() {
			all[t.Name] += t.Digest + " "
		}
		return all
	}
	old, now := digests(before), digests(after)
	var added, changed, gone []string
	for name, digest := range now {
		switch had, ok := old[name]; {
		case !ok:
			added = append(added, name)
		case had != digest:
			changed = append(changed, name)
		}
	}
	for name := range old {
		if _, ok := now[name]; !ok {
			gone = append(gone, name)
		}
	}
	text := "The tools file was read again: " + terminal.Count(len(now), "tool")
	for _, list := range []struct {
		what  string
		names []string
	}{{"new", added}, {"changed", changed}, {"gone", gone}} {
		if len(list.names) > 0 {
			slices.Sort(list.names)
			text += "; " + list.what + ": " + terminal.Clean(strings.Join(list.names, ", "), 300)
		}
	}
	return text + "."
}

// fileWatch notices changes of files. An editor may write a file in several steps, so a change
// counts once the file has been the same for two looks.
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
