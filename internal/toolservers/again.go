package toolservers

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
)

// Times between two checks of a server.
const (
	lookEvery   = time.Second
	firstReopen = time.Second // after a server could not be opened; it doubles
	lastReopen  = 30 * time.Second
)

// Changes returns a channel that gets a value when [Servers.Again] would return other tools.
// That happens in three cases: a server that could not be opened runs now, a server without a
// lock file lists other tools, or a lock file has changed. The checks end when ctx ends. After
// that, call wait before Close.
func (s *Servers) Changes(ctx context.Context) (changes <-chan struct{}, wait func()) {
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var looking sync.WaitGroup
	for i := range s.configs {
		looking.Go(func() {
			if s.opened[i] == nil {
				s.reopen(ctx, i, tell)
			} else {
				watch(ctx, s.opened[i], s.configs[i].LockPath(), tell)
			}
		})
	}
	return changed, looking.Wait
}

// reopen tries to open a server until it succeeds or ctx ends.
func (s *Servers) reopen(ctx context.Context, i int, tell func()) {
	for wait := firstReopen; pause(ctx, wait); wait = min(2*wait, lastReopen) {
		opened, err := mcptool.Open(ctx, s.configs[i])
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.found[i] = opened
		s.mu.Unlock()
		tell()
		return
	}
}

// watch checks whether the tools of a server change. If it cannot read the list of the server,
// it takes the list for unchanged: calls then say what is wrong.
func watch(ctx context.Context, server *mcptool.Server, lock string, tell func()) {
	known := modified(lock)
	for pause(ctx, lookEvery) {
		if lock != "" {
			now := modified(lock)
			if now.Equal(known) {
				continue // a lock file may be large, so it is read only when its time has changed
			}
			known = now
		}
		if changed, err := server.Changed(ctx); err == nil && changed {
			tell()
		}
	}
}

// modified returns when a file was changed last.
func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Again registers the tools that the servers have now. It returns Servers that share the
// processes with s. s and the result must both be closed.
func (s *Servers) Again(ctx context.Context, reg *tool.Registry) (*Servers, error) {
	next := newServers(s.configs, s.log)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, server := range s.opened {
		if server == nil {
			server = s.found[i]
		}
		if server == nil {
			next.failed[i] = s.failed[i]
		} else {
			next.opened[i], next.failed[i] = server.Again(ctx)
		}
	}
	if err := next.register(reg); err != nil {
		next.Close()
		return nil, err
	}
	return next, nil
}
