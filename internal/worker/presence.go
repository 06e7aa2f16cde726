package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// announce makes the tools known to every coordinator. They stay known after the worker has ended.
func (w *Worker) announce(ctx context.Context) error {
	bucket, err := w.conn.Bucket(ctx, w.conn.Names().Stream(bus.BucketTools))
	if err != nil {
		return err
	}
	for _, t := range w.registry.Promises() {
		definition := rawjson.MustMarshal(schemas.Announcement{Tool: t, Denied: w.cfg.Rules.DeniesTool(t.Name)})
		known, found, err := bucket.GetFromLeader(ctx, t.Name)
		if err == nil && (!found || string(known) != string(definition)) {
			err = bucket.Put(ctx, t.Name, definition)
		}
		if err != nil {
			return fmt.Errorf("announce tool %s: %w", t.Name, err)
		}
	}
	return nil
}

// presence announces a worker: which tools it serves, and from which queues.
type presence struct {
	w   *Worker
	key string

	// turn holds one token. It is held while an announcement is on its way, so that an older one
	// does not come after a newer one.
	turn chan struct{}
	says wire.Presence // of the holder of turn
}

func newPresence(w *Worker, queues map[string]wire.Queue) *presence {
	says := wire.Presence{
		V: messages.Version, Worker: w.cfg.Name, Version: w.cfg.Version, Policy: w.cfg.Rules.Version(), Pools: rawjson.SortedKeys(queues),
		Slots: w.cfg.Slots, Started: time.Now(), Toolsets: map[string]map[string]string{}, Queues: queues,
	}
	for _, t := range w.registry.Promises() {
		says.Tools = append(says.Tools, t.Name)
		if w.cfg.Rules.DeniesTool(t.Name) {
			says.Denied = append(says.Denied, t.Name)
		}
		if says.Toolsets[t.Pool] == nil {
			says.Toolsets[t.Pool] = map[string]string{}
		}
		says.Toolsets[t.Pool][t.Name] = t.Digest
	}
	return &presence{w: w, key: messages.Token(w.cfg.Name), turn: make(chan struct{}, 1), says: says}
}

// sharePool says that the worker takes jobs of the pool only from the queue that all its workers
// share. Call it before the first announcement.
func (p *presence) sharePool(pool string) {
	q := p.says.Queues[pool]
	q.Token = pool
	p.says.Queues[pool] = q
}

func (p *presence) bucket(ctx context.Context) (*bus.Bucket, error) {
	return p.w.conn.Bucket(ctx, p.w.conn.Names().Stream(bus.BucketWorkers))
}

// put announces the worker once, after these changes to what it says.
func (p *presence) put(ctx context.Context, changes ...func(*wire.Presence)) error {
	bucket, err := p.bucket(ctx)
	if err != nil {
		return err
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, change := range changes {
		change(&p.says)
	}
	p.says.Busy, p.says.Seen = p.w.Busy(), time.Now()
	return bucket.Put(ctx, p.key, rawjson.MustMarshal(p.says))
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

// remove removes the announcement, even if ctx has ended.
func (p *presence) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	bucket, err := p.bucket(ctx)
	if err == nil {
		err = bucket.Delete(ctx, p.key)
	}
	if err != nil {
		p.w.cfg.Logger.Debug("departure not announced; presence will lapse", "err", err)
	}
}

// lookEvery is the time between two looks of the last worker of a toolset at its queue.
const lookEvery = 100 * time.Millisecond

// leave announces that the worker takes no new jobs. The last worker of a toolset may go on to take
// those that are in its queue already, because nobody else can: leave returns when there are none,
// or when ctx ends.
func (p *presence) leave(ctx context.Context) {
	p.putOrLog(ctx, func(w *wire.Presence) { w.Draining = true })
	for p.needed(ctx) {
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
}

// needed reports whether a queue of this worker holds jobs that no worker has taken, and no other
// worker that stays takes jobs from it. It returns false if it cannot find out.
func (p *presence) needed(ctx context.Context) bool {
	waiting := map[string]bool{}
	for _, q := range p.w.queues {
		if q.Toolset == "" {
			continue
		}
		state, err := inspect.Consumer(ctx, p.w.conn, p.w.conn.Names().Stream(bus.Jobs), q.Toolset)
		if err == nil && state.Pending > 0 {
			waiting[q.Toolset] = true
		}
	}
	if len(waiting) == 0 {
		return false
	}
	others, err := p.w.conn.Values(ctx, p.w.conn.Names().Stream(bus.BucketWorkers))
	if err != nil {
		return false
	}
	for key, value := range others {
		var other wire.Presence
		if key == p.key || json.Unmarshal(value, &other) != nil || other.Draining {
			continue
		}
		for _, q := range other.Queues {
			delete(waiting, q.Token)
		}
	}
	return len(waiting) > 0 && ctx.Err() == nil
}
