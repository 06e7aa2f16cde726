// Package announced keeps the definitions of the tools that workers have announced.
//
// There may be several definitions of a tool. A call gets the current definition, unless its
// batch names another one. Which definition is current depends on the present workers: see
// [schemas.Announcement.Current].
//
// Announcements are durable, so a fleet without workers still has its tools. [Tools] follows a
// bucket and may be out of date. So it asks the leader before a tool counts as unknown.
//
// Package schemas says what a definition promises.
package announced

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Config holds the settings of [New]. The zero value works.
type Config struct {
	Unknown string                                // what Fold returns for every unknown tool
	Learned func(tool string, kind messages.Kind) // called for each announcement. May be nil
	// Served reports whether a worker serves exactly this definition. Call
	// [Tools.WorkersChanged] when its answers change. Nil: no worker serves any definition.
	Served func(schemas.Tool) bool
	Logger *slog.Logger // nil: no log
}

// Tools holds the tools of the fleet. Safe for concurrent use.
type Tools struct {
	conn  *bus.Conn
	cfg   Config
	ready chan struct{} // closed once all announcements from before Run are known
	once  sync.Once

	mu     sync.Mutex
	byName map[string]schemas.Announcement // guarded by mu
	value  schemas.Catalog                 // built from byName; guarded by mu
	since  time.Time                       // when byName last changed; guarded by mu
	first  chan struct{}                   // closed once there is any tool; guarded by mu
}

// New returns a Tools without tools. Run fills it.
func New(conn *bus.Conn, cfg Config) *Tools {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Learned == nil {
		cfg.Learned = func(string, messages.Kind) {}
	}
	if cfg.Served == nil {
		cfg.Served = func(schemas.Tool) bool { return false }
	}
	return &Tools{conn: conn, cfg: cfg, ready: make(chan struct{}), byName: map[string]schemas.Announcement{}, first: make(chan struct{})}
}

// Ready returns a channel that is closed once all announcements from before Run are known.
func (ts *Tools) Ready() <-chan struct{} { return ts.ready }

// Current returns all known tools, each in its current version.
func (ts *Tools) Current() schemas.Catalog {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.value
}

// Fold returns the name of a tool, or Config.Unknown if the tool is not known. Metrics and
// spans use the result as a label. A model that invents names then creates no new series.
func (ts *Tools) Fold(tool string) string {
	if _, known := ts.Current().Lookup(tool); known {
		return tool
	}
	return ts.cfg.Unknown
}

// Version returns the definition of a tool with this digest, current or not.
func (ts *Tools) Version(tool, digest string) (schemas.Tool, bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.byName[tool].All() {
		if t.Digest == digest {
			return t, true
		}
	}
	return schemas.Tool{}, false
}

// WorkersChanged chooses the current versions again. Call it when the definitions that
// workers serve have changed.
func (ts *Tools) WorkersChanged() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if err := ts.rebuild(); err != nil {
		ts.cfg.Logger.Error("the tools cannot be read anew; calls are planned with the tools as before", "err", err)
	}
}

// Digest returns the digest of a tool's current definition, or "" for an unknown tool.
func (ts *Tools) Digest(tool string) string {
	t, _ := ts.Current().Lookup(tool)
	return t.Digest
}

// Run keeps the tools up to date until ctx ends.
func (ts *Tools) Run(ctx context.Context) error {
	bucket, err := ts.bucket(ctx)
	if err != nil {
		return err
	}
	return bucket.Watch(ctx, ts.learnOrLog, func() { ts.once.Do(func() { close(ts.ready) }) })
}

func (ts *Tools) learnOrLog(name string, value []byte) {
	if err := ts.learn(name, value); err != nil {
		ts.cfg.Logger.Error("an announced tool cannot be used; correct its definition at the worker", "tool", name, "err", err)
	}
}

func (ts *Tools) bucket(ctx context.Context) (*bus.Bucket, error) {
	return ts.conn.Bucket(ctx, ts.conn.Names().Stream(bus.BucketTools))
}

// learn applies one entry of the bucket. A nil value removes the tool.
func (ts *Tools) learn(name string, value []byte) error {
	if value == nil {
		return ts.unset(name)
	}
	var a schemas.Announcement
	if err := json.Unmarshal(value, &a); err != nil {
		return fmt.Errorf("read its definition: %w", err)
	}
	t, err := complete(name, a.Tool)
	if err != nil {
		return err
	}
	versions := a.Versions
	a.Tool, a.Versions = t, nil
	for _, version := range versions {
		v, err := complete(name, version)
		// This may be a definition for a later version of this program. No worker here could
		// use it.
		if err != nil {
			ts.cfg.Logger.Warn("a version of a tool cannot be used; correct its definition at the worker", "tool", name, "version", version.Version, "err", err)
			continue
		}
		a.Versions = append(a.Versions, v)
	}
	ts.cfg.Learned(t.Name, t.Kind)
	return ts.set(a)
}

// complete checks the definition of a tool, and fills in its defaults.
func complete(name string, t schemas.Tool) (schemas.Tool, error) {
	if t.Name != name {
		return t, fmt.Errorf("its definition has the name %.80q", t.Name)
	}
	return t.WithDefaults()
}

func (ts *Tools) set(a schemas.Announcement) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	before := len(ts.byName)
	ts.byName[a.Name], ts.since = a, time.Now()
	if before == 0 {
		close(ts.first)
	}
	return ts.rebuild()
}

func (ts *Tools) unset(name string) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.byName, name)
	ts.since = time.Now()
	if len(ts.byName) == 0 {
		ts.first = make(chan struct{})
	}
	return ts.rebuild()
}

// rebuild builds value from byName. The caller holds mu.
func (ts *Tools) rebuild() error {
	tools := make([]schemas.Tool, 0, len(ts.byName))
	for _, a := range ts.byName {
		tools = append(tools, a.Current(ts.cfg.Served))
	}
	value, err := schemas.NewCatalog(tools...)
	if err == nil {
		ts.value = value
	}
	return err
}

// settleTime is how long the tools must be unchanged before a missing tool counts as
// unknown. A new worker announces its tools one after the other.
const settleTime = time.Second

// unsettled returns how much of settleTime is left.
func (ts *Tools) unsettled() time.Duration {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return settleTime - time.Since(ts.since)
}

// announced returns a channel that is closed once there is any tool.
func (ts *Tools) announced() <-chan struct{} {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.first
}

// For returns the tools with which to plan these calls. It asks the leader of the bucket
// before a tool counts as unknown. If the fleet has no tools at all, For waits up to startWait
// for the first.
func (ts *Tools) For(ctx context.Context, calls []messages.ToolCall, startWait time.Duration) (schemas.Catalog, error) {
	if len(calls) > 0 && len(ts.Current().Tools()) == 0 {
		wait := time.NewTimer(startWait)
		defer wait.Stop()
		select {
		case <-ts.announced():
		case <-wait.C:
		case <-ctx.Done():
			return schemas.Catalog{}, ctx.Err()
		}
	}
	for {
		unknown := ts.unknown(calls)
		if len(unknown) == 0 {
			return ts.Current(), nil
		}
		for _, name := range unknown {
			if err := ts.Refresh(ctx, name); err != nil {
				return schemas.Catalog{}, err
			}
		}
		wait := ts.unsettled()
		if wait <= 0 || len(ts.unknown(calls)) == 0 {
			return ts.Current(), nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return schemas.Catalog{}, ctx.Err()
		}
	}
}

// unknown returns the tool names in the calls that are not known. It leaves out names that no
// tool can have.
func (ts *Tools) unknown(calls []messages.ToolCall) []string {
	known := ts.Current()
	var names []string
	for _, call := range calls {
		if _, ok := known.Lookup(call.Tool()); !ok && schemas.IsName(call.Tool()) && !slices.Contains(names, call.Tool()) {
			names = append(names, call.Tool())
		}
	}
	return names
}

// Refresh reads a tool from the leader of the bucket, because Run may be behind. A tool that
// does not exist is no error.
func (ts *Tools) Refresh(ctx context.Context, name string) error {
	bucket, err := ts.bucket(ctx)
	if err != nil {
		return err
	}
	value, found, err := bucket.GetFromLeader(ctx, name)
	if err != nil {
		return fmt.Errorf("ask for tool %s: %w", name, err)
	}
	if found {
		ts.learnOrLog(name, value)
	}
	return nil
}
