// Package catalog keeps the definitions of the tools that workers have announced.
//
// There may be several definitions of a tool. The one that calls use unless their batch says
// otherwise depends on which workers are there: see [schemas.Announcement.Current].
//
// Announcements are durable: a fleet that is scaled to zero still has its tools. The catalog
// follows a bucket and may be out of date, so it asks the leader before a tool counts as unknown.
//
// Package schemas says what a definition promises.
package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Config holds the settings of a Catalog. The zero value works.
type Config struct {
	Unknown string                                // the name that Fold gives to all unknown tools
	Learned func(tool string, kind messages.Kind) // called for each announcement. May be nil
	// Served reports whether a worker serves exactly this definition. Call [Catalog.WorkersChanged]
	// when its answers change. Nil: no worker serves any.
	Served func(schemas.Tool) bool
	Logger *slog.Logger // nil: silent
}

// Catalog holds the tools of the fleet. Safe for concurrent use.
type Catalog struct {
	conn  *bus.Conn
	cfg   Config
	ready chan struct{} // closed once the catalog knows all earlier announcements
	once  sync.Once

	mu     sync.Mutex
	byName map[string]schemas.Announcement // guarded by mu
	value  schemas.Catalog                 // built from byName; guarded by mu
	since  time.Time                       // when byName last changed; guarded by mu
	first  chan struct{}                   // closed once there is a tool; guarded by mu
}

// New returns a catalog. It is empty until Run.
func New(conn *bus.Conn, cfg Config) *Catalog {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Learned == nil {
		cfg.Learned = func(string, messages.Kind) {}
	}
	if cfg.Served == nil {
		cfg.Served = func(schemas.Tool) bool { return false }
	}
	return &Catalog{conn: conn, cfg: cfg, ready: make(chan struct{}), byName: map[string]schemas.Announcement{}, first: make(chan struct{})}
}

// Ready is closed once the catalog knows everything that was announced before Run.
func (k *Catalog) Ready() <-chan struct{} { return k.ready }

// Current returns the tools that the catalog knows now, each in its current version.
func (k *Catalog) Current() schemas.Catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// Fold returns the name of a tool, or Config.Unknown if the tool is not in the catalog. Metrics and
// spans use it as a label, so a model that invents names cannot make new series.
func (k *Catalog) Fold(tool string) string {
	if _, known := k.Current().Lookup(tool); known {
		return tool
	}
	return k.cfg.Unknown
}

// Version returns the definition of a tool with this digest, current or not.
func (k *Catalog) Version(tool, digest string) (schemas.Tool, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.byName[tool].All() {
		if t.Digest == digest {
			return t, true
		}
	}
	return schemas.Tool{}, false
}

// Announced returns what workers have announced about each tool, sorted by name.
func (k *Catalog) Announced() []schemas.Announcement {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []schemas.Announcement
	for _, name := range rawjson.SortedKeys(k.byName) {
		all = append(all, k.byName[name])
	}
	return all
}

// WorkersChanged chooses the current versions again. Call it when other definitions are served.
func (k *Catalog) WorkersChanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.rebuild(); err != nil {
		k.cfg.Logger.Error("the tools cannot be read anew; calls are planned with the tools as before", "err", err)
	}
}

// Digest returns the digest of a tool's current definition; "" for an unknown tool.
func (k *Catalog) Digest(tool string) string {
	t, _ := k.Current().Lookup(tool)
	return t.Digest
}

// Run keeps the catalog up to date until ctx ends.
func (k *Catalog) Run(ctx context.Context) error {
	bucket, err := k.bucket(ctx)
	if err != nil {
		return err
	}
	return bucket.Watch(ctx, k.learnOrLog, func() { k.once.Do(func() { close(k.ready) }) })
}

func (k *Catalog) learnOrLog(name string, value []byte) {
	if err := k.learn(name, value); err != nil {
		k.cfg.Logger.Error("an announced tool cannot be used; correct its definition at the worker", "tool", name, "err", err)
	}
}

func (k *Catalog) bucket(ctx context.Context) (*bus.Bucket, error) {
	return k.conn.Bucket(ctx, k.conn.Names().Stream(bus.BucketTools))
}

// learn applies one entry of the bucket. A nil value removes the tool.
func (k *Catalog) learn(name string, value []byte) error {
	if value == nil {
		return k.unset(name)
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
		if err != nil { // of a later version of this program, perhaps: a worker here has no use for it
			k.cfg.Logger.Warn("a version of a tool cannot be used; correct its definition at the worker", "tool", name, "version", version.Version, "err", err)
			continue
		}
		a.Versions = append(a.Versions, v)
	}
	k.cfg.Learned(t.Name, t.Kind)
	return k.set(a)
}

// complete checks the definition of a tool, and fills in its defaults.
func complete(name string, t schemas.Tool) (schemas.Tool, error) {
	if t.Name != name {
		return t, fmt.Errorf("its definition has the name %.80q", t.Name)
	}
	return t.WithDefaults()
}

func (k *Catalog) set(a schemas.Announcement) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.byName)
	k.byName[a.Name], k.since = a, time.Now()
	if before == 0 {
		close(k.first)
	}
	return k.rebuild()
}

func (k *Catalog) unset(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byName, name)
	k.since = time.Now()
	if len(k.byName) == 0 {
		k.first = make(chan struct{})
	}
	return k.rebuild()
}

// rebuild builds value from byName. The caller holds mu.
func (k *Catalog) rebuild() error {
	tools := make([]schemas.Tool, 0, len(k.byName))
	for _, a := range k.byName {
		tools = append(tools, a.Current(k.cfg.Served))
	}
	value, err := schemas.NewCatalog(tools...)
	if err == nil {
		k.value = value
	}
	return err
}

// settleTime is how long the catalog must be unchanged before a tool that is not in it counts as
// unknown. A new worker announces its tools one after the other.
const settleTime = time.Second

// unsettled returns how much of settleTime is left.
func (k *Catalog) unsettled() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return settleTime - time.Since(k.since)
}

// announced returns a channel that is closed once there is any tool.
func (k *Catalog) announced() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.first
}

// For returns the catalog for planning these calls. Before a tool counts as unknown, it asks the
// leader of the bucket for it. If the fleet has no tool at all, it waits up to startWait for one.
func (k *Catalog) For(ctx context.Context, calls []messages.ToolCall, startWait time.Duration) (schemas.Catalog, error) {
	if len(calls) > 0 && len(k.Current().Tools()) == 0 {
		wait := time.NewTimer(startWait)
		defer wait.Stop()
		select {
		case <-k.announced():
		case <-wait.C:
		case <-ctx.Done():
			return schemas.Catalog{}, ctx.Err()
		}
	}
	for {
		unknown := k.unknown(calls)
		if len(unknown) == 0 {
			return k.Current(), nil
		}
		for _, name := range unknown {
			if err := k.Refresh(ctx, name); err != nil {
				return schemas.Catalog{}, err
			}
		}
		wait := k.unsettled()
		if wait <= 0 || len(k.unknown(calls)) == 0 {
			return k.Current(), nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return schemas.Catalog{}, ctx.Err()
		}
	}
}

// unknown returns the names in the calls that are not in the catalog and could be names of tools.
func (k *Catalog) unknown(calls []messages.ToolCall) []string {
	known := k.Current()
	var names []string
	for _, call := range calls {
		if _, ok := known.Lookup(call.Tool()); !ok && schemas.IsName(call.Tool()) && !slices.Contains(names, call.Tool()) {
			names = append(names, call.Tool())
		}
	}
	return names
}

// Refresh reads a tool from the leader of the bucket, because Run may be behind. It returns no
// error if the tool is not there.
func (k *Catalog) Refresh(ctx context.Context, name string) error {
	bucket, err := k.bucket(ctx)
	if err != nil {
		return err
	}
	value, found, err := bucket.GetFromLeader(ctx, name)
	if err != nil {
		return fmt.Errorf("ask for tool %s: %w", name, err)
	}
	if found {
		k.learnOrLog(name, value)
	}
	return nil
}
