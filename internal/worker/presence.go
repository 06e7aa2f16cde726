package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// announce announces the tools to every coordinator. The announcement stays after the worker
// has ended.
func (w *Worker) announce(ctx context.Context) error {
	bucket, err := w.conn.Bucket(ctx, w.conn.Names().Stream(bus.BucketTools))
	if err != nil {
		return err
	}
	versions := map[string][]schemas.Tool{}
	for _, t := range w.registry.Definitions() {
		versions[t.Name] = append(versions[t.Name], t)
	}
	for _, name := range rawjson.SortedKeys(versions) {
		err := bucket.Change(ctx, wire.AnnouncedKey(w.cfg.Tenant, name), func(value []byte) ([]byte, error) {
			return w.announcement(value, versions[name])
		})
		if err != nil {
			return fmt.Errorf("announce tool %s: %w", name, err)
		}
	}
	return nil
}

// announcement returns the new announcement of a tool: the earlier announcement, with the
// versions that this worker serves added. If the definitions do not fit into a message, the
// oldest definitions are left out.
func (w *Worker) announcement(before []byte, served []schemas.Tool) ([]byte, error) {
	var known schemas.Announcement
	if before != nil && json.Unmarshal(before, &known) != nil {
		known = schemas.Announcement{} // no reader can use it, so it is replaced
	}
	next := known.With(served, w.cfg.Rules.DeniesTool(served[0].Name))
	for {
		body := rawjson.MustMarshal(next)
		if len(body) <= w.conn.MaxBody() || len(next.Versions) == 0 {
			return body, nil
		}
		next.Versions = next.Versions[:len(next.Versions)-1]
	}
}

// presence announces which tools a worker serves, and from which queues it takes jobs.
type presence struct {
	w   *Worker
	key string

	// turn is a channel with room for one token. The goroutine that has put its token in sends
	// an announcement. Announcements thus arrive in order.
	turn     chan struct{}
	says     wire.Presence // owned by the holder of turn
	revision uint64        // the newest announcement's revision; owned by the holder of turn
}

func newPresence(w *Worker, queues map[string]wire.Queue) *presence {
	says := wire.Presence{
		V: messages.Version, Worker: w.cfg.Name, Version: w.cfg.Version, Policy: w.cfg.Rules.Version(), Pools: rawjson.SortedKeys(queues),
		Slots: w.cfg.Slots, Started: time.Now(), Toolsets: map[string]map[string]string{}, Queues: queues, Gaps: w.cfg.Gaps,
	}
	for _, t := range w.registry.Definitions() { // the newest version of each tool comes first
		if says.Toolsets[t.Pool] == nil {
			says.Toolsets[t.Pool] = map[string]string{}
		}
		if says.Toolsets[t.Pool][t.Name] == "" {
			says.Toolsets[t.Pool][t.Name] = t.Digest
		}
		if slices.Contains(says.Tools, t.Name) {
			continue
		}
		says.Tools = append(says.Tools, t.Name)
		if w.cfg.Rules.DeniesTool(t.Name) {
			says.Denied = append(says.Denied, t.Name)
		}
	}
	return &presence{w: w, key: wire.AnnouncedKey(w.cfg.Tenant, messages.Token(w.cfg.Name)), turn: make(chan struct{}, 1), says: says}
}

// sharePool announces that the worker takes jobs of a pool only from the pool's shared queue.
// Call it before the first announcement.
func (p *presence) sharePool(pool string) {
	q := p.says.Queues[pool]
	q.Token = pool
	p.says.Queues[pool] = q
}

func (p *presence) bucket(ctx context.Context) (*bus.Bucket, error) {
	return p.w.conn.Bucket(ctx, p.w.conn.Names().Stream(bus.BucketWorkers))
}

// put changes the announcement and publishes it once.
func (p *presence) put(ctx context.Context, changes ...func(*wire.Presence)) error {
	bucket, err := p.bucket(ctx)
	if err != nil {
		return err
	}
	done, err := p.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, change := range changes {
		change(&p.says)
	}
	if p.w.cfg.Servers != nil {
		p.says.Servers = p.w.cfg.Servers()
	}
	p.says.Hooks = nil
	for _, f := range p.w.cfg.Hooks.Failing() {
		p.says.Hooks = append(p.says.Hooks, wire.FailingHook{Name: f.Hook, Class: string(f.Class), Why: string(f.Cause)})
	}
	p.says.Busy, p.says.Seen = p.w.Busy(), time.Now()
	revision, err := bucket.PutRevision(ctx, p.key, rawjson.MustMarshal(p.says))
	if err == nil {
		p.revision = revision
	}
	return err
}

func (p *presence) takeTurn(ctx context.Context) (done func(), err error) {
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *presence) putOrLog(ctx context.Context, changes ...func(*wire.Presence)) {
	if err := p.put(ctx, changes...); err != nil && ctx.Err() == nil {
		p.w.cfg.Logger.Warn("the presence of the worker cannot be announced; it is tried again", "err", err)
	}
}

// stay announces the worker every Config.Announce and after each reconnect, until ctx ends. It then
// removes the announcement.
func (p *presence) stay(ctx context.Context) {
	again := make(chan struct{}, 1)
	defer p.w.conn.OnReconnect(func() {
		select {
		case again <- struct{}{}:
		default:
		}
	})()
	ticks := time.NewTicker(p.w.cfg.Announce)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-again:
		case <-ctx.Done():
			p.remove(ctx)
			return
		}
		p.putOrLog(ctx)
	}
}

// remove removes the announcement, even if ctx has ended. If another worker with the same name
// has announced itself meanwhile, that worker's announcement stays.
func (p *presence) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	bucket, err := p.bucket(ctx)
	if err == nil {
		err = p.removeFrom(ctx, bucket)
	}
	if err != nil {
		p.w.cfg.Logger.Debug("departure not announced; presence will lapse, unless another worker has the same name", "err", err)
	}
}

func (p *presence) removeFrom(ctx context.Context, bucket *bus.Bucket) error {
	done, err := p.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer done()
	return bucket.DeleteRevision(ctx, p.key, p.revision)
}

const (
	// lookEvery is how often the last worker of a toolset looks at its queue.
	lookEvery = 100 * time.Millisecond
	// othersEvery is how often the last worker of a toolset looks for other workers of the
	// fleet.
	othersEvery = time.Second
)

// leave announces that the worker takes no new jobs. If no other worker serves one of its
// toolsets, it still takes the jobs in that toolset's queue. leave returns when these queues
// are empty, when other workers serve them, or when ctx ends.
func (p *presence) leave(ctx context.Context) {
	p.putOrLog(ctx, func(w *wire.Presence) { w.Draining = true })
	var others map[string]bool
	for looked := (time.Time{}); ctx.Err() == nil; {
		waiting := p.waiting(ctx)
		if len(waiting) == 0 {
			return
		}
		if time.Since(looked) >= othersEvery {
			var err error
			if others, err = p.others(ctx); err != nil {
				return
			}
			looked = time.Now()
		}
		if !slices.ContainsFunc(waiting, func(token string) bool { return !others[token] }) {
			return
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
}

// waiting returns the queues of this worker's toolsets that have jobs which no worker has
// taken. It leaves out queues that it cannot read.
func (p *presence) waiting(ctx context.Context) (tokens []string) {
	for _, q := range p.w.queues {
		if q.Toolset == "" {
			continue
		}
		state, err := inspect.Consumer(ctx, p.w.conn, p.w.conn.Names().Stream(bus.Jobs), q.Toolset)
		if err == nil && state.Pending > 0 {
			tokens = append(tokens, q.Toolset)
		}
	}
	return tokens
}

// others returns the queues from which other workers take jobs. Workers that drain do not
// count. Workers that are held to another tenant do not count either: they may not take these
// jobs, and could announce any queue.
func (p *presence) others(ctx context.Context) (tokens map[string]bool, err error) {
	values, err := p.w.conn.Values(ctx, p.w.conn.Names().Stream(bus.BucketWorkers))
	tokens = map[string]bool{}
	for key, value := range values {
		other, err := wire.ReadPresence(key, value)
		if key == p.key || err != nil || other.Draining || other.Tenant != "" && other.Tenant != p.w.cfg.Tenant {
			continue
		}
		for pool, q := range other.Queues {
			if slices.Contains(other.Pools, pool) && q.IsOf(pool) {
				tokens[q.Token] = true
			}
		}
	}
	return tokens, err
}
