package coordinator

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What coordinators tell each other saves work and decides nothing: a word that is lost costs a poll, or has a batch
// driven twice, which does no harm.

func (c *Coordinator) tellColleagues(n wire.Notice) {
	n.V = messages.Version
	if err := c.conn.Publish(c.names.Coordinators(), nil, rawjson.MustMarshal(n)); err != nil {
		c.log.Debug("other coordinators not told; their poll will find out", "err", err)
	}
}

// colleague hears what another coordinator says: that something was said to a session, which its driver looks up now,
// or that it drives a batch, or does no longer.
func (c *Coordinator) colleague(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil || n.Worker == c.id {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case n.Driven:
		if d := c.live[n.Batch]; d != nil {
			c.tellColleagues(wire.Notice{Batch: n.Batch, Running: true, Worker: c.id})
		}
	case n.Running:
		c.elsewhere[n.Batch] = time.Now()
		c.forgetOld()
	case n.LetGo != nil:
		if delete(c.elsewhere, n.Batch); n.LetGo.AfterMS == 0 {
			select {
			case c.orphans <- n.Batch:
			default: // the broker delivers it some time
			}
		}
	default:
		for key, d := range c.live {
			if strings.HasPrefix(key, n.Batch+".") {
				d.lookSoon()
			}
		}
	}
}

// adoptOrphans drives what others let go that had no delivery of theirs to give back: the broker may not bring it for minutes.
// One of those who heard so does; it returns when ctx ends.
func (c *Coordinator) adoptOrphans(ctx context.Context) {
	var drives sync.WaitGroup
	defer drives.Wait()
	for {
		select {
		case batch := <-c.orphans:
			drives.Go(func() { c.adoptOrphan(ctx, batch) })
		case <-ctx.Done():
			return
		}
	}
}

func (c *Coordinator) adoptOrphan(ctx context.Context, batch string) {
	select {
	case <-time.After(rand.N(c.cfg.AckWait / 10)): // not all at once
	case <-ctx.Done():
		return
	}
	tokens := strings.Split(batch, ".")
	if len(tokens) != 3 || !messages.IsToken(tokens[0]) || !messages.IsToken(tokens[1]) {
		return
	}
	if key := (wire.BatchKey{Tenant: tokens[0], Session: tokens[1], Batch: tokens[2]}); !c.drivenElsewhere(key) {
		c.wake(ctx, key.Tenant, key.Session, nil)
	}
}

// forgetOld drops what was said too long ago to count, now and then. The caller holds mu.
func (c *Coordinator) forgetOld() {
	if time.Since(c.forgot) < c.cfg.AckWait {
		return
	}
	c.forgot = time.Now()
	for key, said := range c.elsewhere {
		if time.Since(said) > c.cfg.AckWait {
			delete(c.elsewhere, key)
		}
	}
}

// drivenElsewhere reports whether another coordinator said lately that it drives the batch.
func (c *Coordinator) drivenElsewhere(key wire.BatchKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	said, ok := c.elsewhere[key.String()]
	return ok && time.Since(said) <= c.cfg.AckWait
}

// sayDriven tells the others of a batch that is driven without a delivery of its own: the broker will deliver it to one
// of them.
func (d *drive) sayDriven() {
	d.mu.Lock()
	delivered := d.delivery != nil
	d.told = d.told || !delivered
	d.mu.Unlock()
	if !delivered {
		d.tellColleagues(wire.Notice{Batch: d.accepted.Key.String(), Running: true, Worker: d.id})
	}
}
