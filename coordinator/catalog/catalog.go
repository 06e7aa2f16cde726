// Package catalog keeps the definitions of the tools that workers have announced.
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
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Config holds the settings of a Catalog. The zero value works.
type Config struct {
	Unknown string                                // the name that Fold gives to all unknown tools
	Learned func(tool string, kind messages.Kind) // called for each announcement. May be nil
	Logger  *slog.Logger                          // nil: silent
}

// Catalog holds the tools of the fleet. Safe for concurrent use.
type Catalog struct {
	conn  *bus.Conn
	cfg   Config
	ready chan struct{} // closed once the catalog knows all earlier announcements
	once  sync.Once

	mu    sync.Mutex
	tools map[string]schemas.Tool // guarded by mu
	value schemas.Catalog         // built from tools; guarded by mu
	since time.Time               // when tools last changed; guarded by mu
	first chan struct{}           // closed once there is a tool; guarded by mu
}

// New returns a catalog. It is empty until Run.
func New(conn *bus.Conn, cfg Config) *Catalog {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Learned == nil {
		cfg.Learned = func(string, messages.Kind) {}
	}
	return &Catalog{conn: conn, cfg: cfg, ready: make(chan struct{}), tools: map[string]schemas.Tool{}, first: make(chan struct{})}
}

// Ready is closed once the catalog knows everything that was announced before Run.
func (k *Catalog) Ready() <-chan struct{} { return k.ready }

// Current returns the tools that the catalog knows now.
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

// Digest returns the digest of a tool's definition; "" for an unknown tool.
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
	var t schemas.Tool
	if err := json.Unmarshal(value, &t); err != nil {
		return fmt.Errorf("read its definition: %w", err)
	}
	if t.Name != name {
		return fmt.Errorf("its definition has the name %.80q", t.Name)
	}
	t, err := t.WithDefaults()
	if err != nil {
		return err
	}
	k.cfg.Learned(t.Name, t.Kind)
	return k.set(t)
}

func (k *Catalog) set(t schemas.Tool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.tools)
	k.tools[t.Name] = t
	if before == 0 {
		close(k.first)
	}
	return k.rebuild()
}

func (k *Catalog) unset(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tools, name)
	if len(k.tools) == 0 {
		k.first = make(chan struct{})
	}
	return k.rebuild()
}

// rebuild builds value from tools. The caller holds mu.
func (k *Catalog) rebuild() error {
	tools := make([]schemas.Tool, 0, len(k.tools))
	for _, t := range k.tools {
		tools = append(tools, t)
	}
	value, err := schemas.NewCatalog(tools...)
	if err == nil {
		k.value, k.since = value, time.Now()
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
