package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// catalog is the tools that workers have announced. Announcements are durable: a fleet that is scaled to
// zero still has its tools.
type catalog struct {
	ready chan struct{} // closed once everything announced so far is known
	once  sync.Once

	mu    sync.Mutex
	tools map[string]schemas.Tool // guarded by mu
	value schemas.Catalog         // made of tools; guarded by mu
	since time.Time               // of the last change; guarded by mu
	first chan struct{}           // closed once there is a tool; guarded by mu
}

func newCatalog() *catalog {
	return &catalog{ready: make(chan struct{}), tools: map[string]schemas.Tool{}, first: make(chan struct{})}
}

// now is the tools that are known at this moment.
func (k *catalog) now() schemas.Catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// fold is the name of a tool for places that only take few of them: those that nobody knows are one.
func (k *catalog) fold(tool string) string {
	if _, known := k.now().Lookup(tool); known {
		return tool
	}
	return UnknownTool
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

// settling is how long the catalog must have been quiet before a tool that is not in it counts as unknown.
// A worker that has just come announces its tools one after the other.
const settling = time.Second

// unsettled is how long that still takes.
func (k *catalog) unsettled() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return settling - time.Since(k.since)
}

// announced is a channel that is closed once there is any tool.
func (k *catalog) announced() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.first
}

// watchTools keeps the catalog up to date until ctx ends.
func (c *Coordinator) watchTools(ctx context.Context) error {
	bucket, err := c.conn.Bucket(ctx, c.names.Stream(bus.BucketTools))
	if err != nil {
		return err
	}
	return bucket.Watch(ctx, func(name string, value []byte) {
		if err := c.learn(name, value); err != nil {
			c.log.Error("a tool that was announced cannot be used", "tool", name, "err", err)
		}
	}, func() { c.catalog.once.Do(func() { close(c.catalog.ready) }) })
}

func (c *Coordinator) learn(name string, value []byte) error {
	if value == nil {
		return c.catalog.unset(name)
	}
	var t schemas.Tool
	if err := json.Unmarshal(value, &t); err != nil {
		return fmt.Errorf("read its definition: %w", err)
	}
	if t.Name != name {
		return fmt.Errorf("it calls itself %.80q", t.Name)
	}
	t, err := t.WithDefaults()
	if err != nil {
		return err
	}
	c.cfg.Metrics.knows(t.Name, t.Kind)
	return c.catalog.set(t)
}

// toolsFor is the catalog to plan these calls with. Before a tool is called unknown, the leader of the
// bucket is asked for it; and a fleet that has no tool at all yet is given time to announce some.
func (c *Coordinator) toolsFor(ctx context.Context, calls []messages.ToolCall) (schemas.Catalog, error) {
	if len(calls) > 0 && len(c.catalog.now().Tools()) == 0 {
		wait := time.NewTimer(c.cfg.StartWait)
		defer wait.Stop()
		select {
		case <-c.catalog.announced():
		case <-wait.C:
		case <-ctx.Done():
			return schemas.Catalog{}, ctx.Err()
		}
	}
	for {
		unknown := c.unknown(calls)
		if len(unknown) == 0 {
			return c.catalog.now(), nil
		}
		for _, name := range unknown {
			if err := c.askLeader(ctx, name); err != nil {
				return schemas.Catalog{}, err
			}
		}
		wait := c.catalog.unsettled()
		if wait <= 0 || len(c.unknown(calls)) == 0 {
			return c.catalog.now(), nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return schemas.Catalog{}, ctx.Err()
		}
	}
}

// unknown is the names of the calls that the catalog does not know and that could be names of tools.
func (c *Coordinator) unknown(calls []messages.ToolCall) []string {
	known := c.catalog.now()
	var names []string
	for _, call := range calls {
		if _, ok := known.Lookup(call.Tool()); !ok && schemas.IsName(call.Tool()) && !slices.Contains(names, call.Tool()) {
			names = append(names, call.Tool())
		}
	}
	return names
}

// askLeader learns a tool that the watch has not brought yet.
func (c *Coordinator) askLeader(ctx context.Context, name string) error {
	bucket, err := c.conn.Bucket(ctx, c.names.Stream(bus.BucketTools))
	if err != nil {
		return err
	}
	value, found, err := bucket.GetFromLeader(ctx, name)
	if err != nil {
		return fmt.Errorf("ask for tool %s: %w", name, err)
	}
	if found {
		if err := c.learn(name, value); err != nil {
			c.log.Error("a tool that was announced cannot be used", "tool", name, "err", err)
		}
	}
	return nil
}

// routed is the calls under the names by which the catalog knows their tools. A provider that does not
// take a tool's name was told another one; the codec keeps that for the answer.
func routed(p messages.Provider, calls []messages.ToolCall, tools schemas.Catalog) []messages.ToolCall {
	var told map[string]string // a provider's name to the tool's, where they differ
	out := slices.Clone(calls)
	for i, call := range out {
		if _, known := tools.Lookup(call.Tool()); known {
			continue
		}
		if told == nil {
			told = map[string]string{}
			for _, t := range tools.Tools() {
				if wire := export.Name(p, t.Name); wire != t.Name {
					told[wire] = t.Name
				}
			}
		}
		if name, ok := told[call.Tool()]; ok {
			out[i].Name, out[i].Namespace = name, ""
		}
	}
	return out
}
