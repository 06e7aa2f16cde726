package coordinator

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

// catalog is the tools that workers have announced. Announcements are durable: a fleet that is scaled
// to zero still has its tools.
type catalog struct {
	conn    *bus.Conn
	log     *slog.Logger
	learned func(schemas.Tool) // called for each announcement
	ready   chan struct{}      // closed once everything announced so far is known
	once    sync.Once

	mu    sync.Mutex
	tools map[string]schemas.Tool // guarded by mu
	value schemas.Catalog         // made of tools; guarded by mu
	since time.Time               // of the last change; guarded by mu
	first chan struct{}           // closed once there is a tool; guarded by mu
}

func newCatalog(conn *bus.Conn, log *slog.Logger, learned func(schemas.Tool)) *catalog {
	return &catalog{
		conn: conn, log: log, learned: learned, ready: make(chan struct{}), tools: map[string]schemas.Tool{}, first: make(chan struct{}),
	}
}

// Current returns the tools that are known at this moment.
func (k *catalog) Current() schemas.Catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// fold returns the name of a tool, or [UnknownTool] for a name that is not in the catalog. Metrics and
// spans have it as a label, so a model that invents names cannot make new series.
func (k *catalog) fold(tool string) string {
	if _, known := k.Current().Lookup(tool); known {
		return tool
	}
	return UnknownTool
}

// watch keeps the catalog up to date until ctx ends.
func (k *catalog) watch(ctx context.Context) error {
	bucket, err := k.bucket(ctx)
	if err != nil {
		return err
	}
	return bucket.Watch(ctx, func(name string, value []byte) {
		if err := k.learn(name, value); err != nil {
			k.log.Error("an announced tool cannot be used; correct its definition at the worker", "tool", name, "err", err)
		}
	}, func() { k.once.Do(func() { close(k.ready) }) })
}

func (k *catalog) bucket(ctx context.Context) (*bus.Bucket, error) {
	return k.conn.Bucket(ctx, k.conn.Names().Stream(bus.BucketTools))
}

// learn takes over one entry of the bucket. A nil value removes the tool.
func (k *catalog) learn(name string, value []byte) error {
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
	k.learned(t)
	return k.set(t)
}

func (k *catalog) set(t schemas.Tool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.tools)
	k.tools[t.Name] = t
	if before == 0 {
		close(k.first)
	}
	return k.rebuild()
}

func (k *catalog) unset(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tools, name)
	if len(k.tools) == 0 {
		k.first = make(chan struct{})
	}
	return k.rebuild()
}

// rebuild makes value from tools. The caller holds mu.
func (k *catalog) rebuild() error {
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
func (k *catalog) unsettled() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return settleTime - time.Since(k.since)
}

// announced is closed once there is any tool.
func (k *catalog) announced() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.first
}

// planFor returns the catalog to plan these calls with. Before a tool counts as unknown, the leader of
// the bucket is asked for it. A fleet without any tool gets startWait to announce one.
func (k *catalog) planFor(ctx context.Context, calls []messages.ToolCall, startWait time.Duration) (schemas.Catalog, error) {
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

// unknown returns the tool names in the calls that the catalog does not know and that could be names
// of tools.
func (k *catalog) unknown(calls []messages.ToolCall) []string {
	known := k.Current()
	var names []string
	for _, call := range calls {
		if _, ok := known.Lookup(call.Tool()); !ok && schemas.IsName(call.Tool()) && !slices.Contains(names, call.Tool()) {
			names = append(names, call.Tool())
		}
	}
	return names
}

// Refresh reads a tool from the leader of the bucket, because watch may be behind. A tool that is not
// there is no error.
func (k *catalog) Refresh(ctx context.Context, name string) error {
	bucket, err := k.bucket(ctx)
	if err != nil {
		return err
	}
	value, found, err := bucket.GetFromLeader(ctx, name)
	if err != nil {
		return fmt.Errorf("ask for tool %s: %w", name, err)
	}
	if found {
		if err := k.learn(name, value); err != nil {
			k.log.Error("an announced tool cannot be used; correct its definition at the worker", "tool", name, "err", err)
		}
	}
	return nil
}
