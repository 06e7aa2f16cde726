package coordinator

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// A server that restarts can bring a batch back into the log that was answered and removed, while the
// consumer counts it as settled and never delivers it. A later batch of the session finds such a head when
// it is delivered again (intake.go). The sweep finds the others: after each reconnect, and now and then.

const (
	// sweepEvery is the time between two sweeps without a reconnect.
	sweepEvery = 5 * time.Minute
	// answerWithin is how long the other coordinators have to say that they drive a batch.
	answerWithin = time.Second
)

// sweepLog looks for heads that nobody drives, until ctx ends.
func (c *Coordinator) sweepLog(ctx context.Context) {
	var drives sync.WaitGroup
	defer drives.Wait()
	again := make(chan struct{}, 1)
	defer c.conn.OnReconnect(func() {
		select {
		case again <- struct{}{}:
		default:
		}
	})()
	wait := c.cfg.AckWait
	for {
		select {
		case <-ctx.Done():
			return
		case <-again: // what is in flight settles first
			wait = c.cfg.AckWait
			continue
		case <-time.After(wait + rand.N(c.cfg.AckWait/2+1)): // not every coordinator at once
		}
		if err := c.sweep(ctx, &drives); err != nil && ctx.Err() == nil {
			c.log.Log(ctx, logfields.RetryLevel(err), "the log was not swept; it is tried again", "err", err)
			wait = c.cfg.AckWait
			continue
		}
		wait = sweepEvery
	}
}

// sweep removes the heads that have their reply, and drives those that no coordinator drives although they
// are old.
func (c *Coordinator) sweep(ctx context.Context, drives *sync.WaitGroup) error {
	now := c.conn.Now(ctx)
	heads, err := c.oldHeads(ctx, now)
	if err != nil {
		return err
	}
	var suspects []journal.Accepted
	for _, head := range heads {
		alone, headErr := c.unattended(ctx, head, now)
		if headErr != nil { // of this session; the others are looked at all the same
			err = errors.Join(err, headErr)
		}
		if alone {
			suspects = append(suspects, head)
			c.tellColleagues(wire.Notice{Batch: head.Key.String(), Driven: true, Worker: c.id})
		}
	}
	if len(suspects) == 0 {
		return err
	}
	pause(ctx, answerWithin)
	for _, head := range suspects {
		if c.driving(head.Key) != nil || c.drivenElsewhere(head.Key) {
			continue
		}
		logfields.Batch(ctx, c.log, head.Key).Warn("nobody drives the oldest batch of a session; it is driven now", "age", now.Sub(head.Stored).Round(time.Second))
		drives.Go(func() { c.wake(ctx, head.Key.Tenant, head.Key.Session, nil) })
	}
	return err
}

// oldHeads is the oldest batch of every session whose oldest batch is not new, without their bodies.
func (c *Coordinator) oldHeads(ctx context.Context, now time.Time) (heads []journal.Accepted, err error) {
	seen := map[string]bool{}
	err = c.journal.EachOpen(ctx, "*", "*", func(a journal.Accepted) (more bool) {
		if now.Sub(a.Stored) < c.cfg.AckWait {
			return false // the log is in the order of time
		}
		if name := a.Key.Tenant + "." + a.Key.Session; !seen[name] {
			seen[name] = true
			heads = append(heads, journal.Accepted{Key: a.Key, Seq: a.Seq, Stored: a.Stored})
		}
		return true
	})
	return heads, err
}

// unattended reports whether a head is old enough to wonder why it is there. One that has its reply is
// removed on the way.
func (c *Coordinator) unattended(ctx context.Context, head journal.Accepted, now time.Time) (bool, error) {
	if c.driving(head.Key) != nil || c.drivenElsewhere(head.Key) {
		return false, nil
	}
	next, found, err := c.nextHead(ctx, logfields.Batch(ctx, c.log, head.Key), head.Key, c.cfg.AckWait)
	if err != nil || !found || next.Seq != head.Seq || now.Sub(head.Stored) < session.MaxSuspend+2*c.cfg.AckWait {
		return false, err
	}
	waits, err := c.waitsForPeople(ctx, head.Key)
	return !waits, err
}
