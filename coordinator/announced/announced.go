// Package announced keeps the definitions of the tools that workers have announced.
//
// There may be several definitions of a tool. A call gets the current definition, unless its
// batch names another one. Which definition is current depends on the present workers: see
// [schemas.Announcement.Current].
//
// A pool may belong to one tenant. Then its tools are that tenant's alone: see [View].
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

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Config holds the settings of [New]. The zero value works.
type Config struct {
	Unknown string                                // what Fold returns for every unknown tool
	Learned func(tool string, kind messages.Kind) // called for each announcement. May be nil
	// Served reports whether a worker serves exactly this definition for a tenant. Call
	// [Tools.WorkersChanged] when its answers change. Nil: no worker serves any definition.
	Served func(tenant string, t schemas.Tool) bool
	Owners toolset.Owners // the pools that belong to one tenant
	Logger *slog.Logger   // nil: no log
}

// Tools holds the tools of the fleet. Safe for concurrent use.
type Tools struct {
	conn  *bus.Conn
	cfg   Config
	ready chan struct{} // closed once all announcements from before Run are known
	once  sync.Once

	mu    sync.Mutex
	byKey map[string]schemas.Announcement // by key in the bucket; guarded by mu
	all   schemas.Catalog                 // built from byKey, for tenants without a pool; guarded by mu
	of    map[string]schemas.Catalog      // the same for each tenant with a pool; guarded by mu
	since time.Time                       // when byKey last changed; guarded by mu
	first chan struct{}                   // closed once there is any tool; guarded by mu
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
		cfg.Served = func(string, schemas.Tool) bool { return false }
	}
	return &Tools{conn: conn, cfg: cfg, ready: make(chan struct{}), byKey: map[string]schemas.Announcement{}, first: make(chan struct{})}
}

// Ready returns a channel that is closed once all announcements from before Run are known.
func (ts *Tools) Ready() <-chan struct{} { return ts.ready }

// Of returns the tools that a tenant may call, each in its current version.
func (ts *Tools) Of(tenant string) schemas.Catalog {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.tools(tenant)
}

// tools returns the tools of a tenant. The caller holds mu.
func (ts *Tools) tools(tenant string) schemas.Catalog {
	if own, has := ts.of[tenant]; has {
		return own
	}
	return ts.all
}

// All returns the tools of every tenant, each in the version that some tenant calls.
func (ts *Tools) All() []schemas.Tool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	all := ts.all.Tools()
	for _, own := range ts.of {
		for _, t := range own.Tools() {
			if !slices.ContainsFunc(all, func(has schemas.Tool) bool { return has.Name == t.Name && has.Pool == t.Pool }) {
				all = append(all, t)
			}
		}
	}
	return all
}

// Fold returns the name of a tool, or Config.Unknown if the tool is not known. Metrics and
// spans use the result as a label. A model that invents names then creates no new series.
func (ts *Tools) Fold(tool string) string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if _, known := ts.all.Lookup(tool); known {
		return tool
	}
	for _, own := range ts.of {
		if _, known := own.Lookup(tool); known {
			return tool
		}
	}
	return ts.cfg.Unknown
}

// Version returns the definition of a tenant's tool with this digest, current or not.
func (ts *Tools) Version(tenant, tool, digest string) (schemas.Tool, bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, by := range []string{tenant, ""} {
		for _, t := range ts.byKey[wire.AnnouncedKey(by, tool)].All() {
			if t.Digest == digest {
				return t, true
			}
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

// Digest returns the digest of a tool's current definition for a tenant, or "" for an unknown
// tool.
func (ts *Tools) Digest(tenant, tool string) string {
	t, _ := ts.Of(tenant).Lookup(tool)
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

func (ts *Tools) learnOrLog(key string, value []byte) {
	if err := ts.learn(key, value); err != nil {
		ts.cfg.Logger.Error("an announced tool cannot be used; correct its definition at the worker", "tool", key, "err", err)
	}
}

func (ts *Tools) bucket(ctx context.Context) (*bus.Bucket, error) {
	return ts.conn.Bucket(ctx, ts.conn.Names().Stream(bus.BucketTools))
}

// learn applies one entry of the bucket. A nil value removes the tool.
func (ts *Tools) learn(key string, value []byte) error {
	if value == nil {
		return ts.unset(key)
	}
	by, name := wire.AnnouncedBy(key)
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
	if _, counts := within(a, func(pool string) bool { return ts.cfg.Owners.Counts(by, pool) }); !counts {
		return fmt.Errorf("a worker of the tenant %s has announced it in pool %s, which the setting tenant_pools does not give to that tenant", by, t.Pool)
	}
	ts.cfg.Learned(t.Name, t.Kind)
	return ts.set(key, a)
}

// complete checks the definition of a tool, and fills in its defaults.
func complete(name string, t schemas.Tool) (schemas.Tool, error) {
	if t.Name != name {
		return t, fmt.Errorf("its definition has the name %.80q", t.Name)
	}
	return t.WithDefaults()
}

func (ts *Tools) set(key string, a schemas.Announcement) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	before := len(ts.byKey)
	ts.byKey[key], ts.since = a, time.Now()
	if before == 0 {
		close(ts.first)
	}
	return ts.rebuild()
}

func (ts *Tools) unset(key string) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.byKey, key)
	ts.since = time.Now()
	if len(ts.byKey) == 0 {
		ts.first = make(chan struct{})
	}
	return ts.rebuild()
}

// rebuild builds the tools of each tenant from byKey. The caller holds mu.
func (ts *Tools) rebuild() error {
	all, err := ts.build("")
	if err != nil {
		return err
	}
	of := map[string]schemas.Catalog{}
	for _, tenant := range special(ts.cfg.Owners) {
		if of[tenant], err = ts.build(tenant); err != nil {
			return err
		}
	}
	ts.all, ts.of = all, of
	return nil
}

// build builds the tools of one tenant, or of all that own no pool. The caller holds mu.
func (ts *Tools) build(tenant string) (schemas.Catalog, error) {
	var tools []schemas.Tool
	served := func(t schemas.Tool) bool { return ts.cfg.Served(tenant, t) }
	for _, a := range View(tenant, ts.cfg.Owners, ts.byKey, served) {
		tools = append(tools, a.Current(served))
	}
	return schemas.NewCatalog(tools...)
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

// For returns the tools with which to plan these calls of a tenant. It asks the leader of the
// bucket before a tool counts as unknown. If the fleet has no tools at all, For waits up to
// startWait for the first.
func (ts *Tools) For(ctx context.Context, tenant string, calls []messages.ToolCall, startWait time.Duration) (schemas.Catalog, error) {
	if len(calls) > 0 && len(ts.Of(tenant).Tools()) == 0 {
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
		unknown := ts.unknown(tenant, calls)
		if len(unknown) == 0 {
			return ts.Of(tenant), nil
		}
		for _, name := range unknown {
			if err := ts.Refresh(ctx, tenant, name); err != nil {
				return schemas.Catalog{}, err
			}
		}
		wait := ts.unsettled()
		if wait <= 0 || len(ts.unknown(tenant, calls)) == 0 {
			return ts.Of(tenant), nil
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
func (ts *Tools) unknown(tenant string, calls []messages.ToolCall) []string {
	known := ts.Of(tenant)
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
func (ts *Tools) Refresh(ctx context.Context, tenant, name string) error {
	bucket, err := ts.bucket(ctx)
	if err != nil {
		return err
	}
	keys := []string{name}
	if slices.Contains(special(ts.cfg.Owners), tenant) {
		keys = append(keys, wire.AnnouncedKey(tenant, name))
	}
	for _, key := range keys {
		value, found, err := bucket.GetFromLeader(ctx, key)
		if err != nil {
			return fmt.Errorf("ask for tool %s: %w", name, err)
		}
		if found {
			ts.learnOrLog(key, value)
		}
	}
	return nil
}
