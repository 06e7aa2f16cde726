package coordinator

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// This file finds batches that nobody drives. After a restart of the server, a batch that was
// answered and removed can be back in the log. The server counts the batch's delivery as
// settled and never delivers it again. If a later batch of the session is delivered, intake
// finds the old one. If none is, the sweep finds it: after each reconnect and every few
// minutes.

const (
	// sweepEvery is the time between two sweeps without a reconnect.
	sweepEvery = 5 * time.Minute
	// peerTimeout is how long the sweep waits for peers to answer that they drive a batch.
	peerTimeout = time.Second
)

// sweepLog looks for heads of sessions that nobody drives, until ctx ends.
func (c *Coordinator) sweepLog(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
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
		case <-again: // let messages that are on their way arrive first
			wait = c.cfg.AckWait
			continue
		case <-time.After(wait + rand.N(c.cfg.AckWait/2+1)): // so that peers do not sweep together
		}
		if err := errors.Join(c.sweep(ctx, &running), c.sweepJobs(ctx)); err != nil && ctx.Err() == nil {
			c.log.Log(ctx, logfields.RetryLevel(err), "the log was not swept for batches without a driver, or the queues for jobs without a batch; trying again", "err", err)
			wait = c.cfg.AckWait
			continue
		}
		wait = sweepEvery
	}
}

// sweepJobs removes jobs of ended batches from queues without workers. In queues with workers,
// the workers remove them. A job is left over if the next driver has used another queue for
// its call. This happens when the first driver dies, or when the job arrives late.
func (c *Coordinator) sweepJobs(ctx context.Context) error {
	subjects, err := inspect.Subjects(ctx, c.conn, c.names.Stream(bus.Jobs))
	if err != nil {
		return err
	}
	suspects := map[wire.BatchKey]bool{}
	for _, subject := range subjects {
		token, key, err := c.names.Job(subject)
		if err == nil && !c.toolsets.board.Fleet().Staffs(token) {
			suspects[key.BatchKey] = true
		}
	}
	var errs []error
	for key := range suspects {
		if c.runs.of(key) != nil {
			continue
		}
		switch _, open, err := c.journal.Open(ctx, key); {
		case err != nil:
			errs = append(errs, err)
		case !open:
			errs = append(errs, c.removeStrays(ctx, key))
		}
	}
	return errors.Join(errs...)
}

// removeStrays removes the jobs of an ended batch from queues without workers.
func (c *Coordinator) removeStrays(ctx context.Context, key wire.BatchKey) error {
	jobs, err := queue{conn: c.conn, key: key}.all(ctx)
	removed := 0
	for _, job := range jobs {
		token, _, nameErr := c.names.Job(job.Subject)
		if nameErr == nil && c.toolsets.board.Strays(token, c.conn.Now(ctx).Sub(job.Time), c.cfg.AckWait) {
			err = errors.Join(err, c.conn.Delete(ctx, c.names.Stream(bus.Jobs), job.Seq))
			removed++
		}
	}
	if removed > 0 {
		logfields.Batch(ctx, c.log, key).Info("jobs of a batch that has ended were removed from queues without workers", "jobs", removed)
	}
	return err
}

// sweep removes heads that already have a reply, and drives old heads that nobody drives.
func (c *Coordinator) sweep(ctx context.Context, running *sync.WaitGroup) error {
	now := c.conn.Now(ctx)
	heads, err := c.oldHeads(ctx, now)
	if err != nil {
		return err
	}
	var suspects []journal.Accepted
	for _, head := range heads {
		alone, headErr := c.unattended(ctx, head, now)
		if headErr != nil { // the error is about this session; continue with the others
			err = errors.Join(err, headErr)
		}
		if alone {
			suspects = append(suspects, head)
			c.peers.Publish(wire.Notice{Batch: head.Key.String(), AsksDriver: true, Worker: c.id})
		}
	}
	if len(suspects) == 0 {
		return err
	}
	pause(ctx, peerTimeout)
	for _, head := range suspects {
		if c.runs.of(head.Key) != nil || c.peers.Drive(head.Key) {
			continue
		}
		logfields.Batch(ctx, c.log, head.Key).Warn("nobody drives the oldest batch of a session; it is driven now", "age", now.Sub(head.Stored).Round(time.Second))
		running.Go(func() { c.resumer.Resume(ctx, head.Key.Tenant, head.Key.Session) })
	}
	return err
}

// oldHeads returns the head of every session, without its body, if the head is older than
// Config.AckWait.
func (c *Coordinator) oldHeads(ctx context.Context, now time.Time) (heads []journal.Accepted, err error) {
	seen := map[string]bool{}
	err = c.journal.EachOpen(ctx, "*", "*", func(a journal.Accepted) (more bool) {
		if now.Sub(a.Stored) < c.cfg.AckWait {
			return false // the log is sorted by time
		}
		if name := a.Key.Tenant + "." + a.Key.Session; !seen[name] {
			seen[name] = true
			heads = append(heads, journal.Accepted{Key: a.Key, Seq: a.Seq, Stored: a.Stored})
		}
		return true
	})
	return heads, err
}

// unattended reports whether a head has no known driver although it is old enough to have one.
// It removes a head that already has a reply.
func (c *Coordinator) unattended(ctx context.Context, head journal.Accepted, now time.Time) (bool, error) {
	if c.runs.of(head.Key) != nil || c.peers.Drive(head.Key) {
		return false, nil
	}
	next, found, err := c.nextHead(ctx, logfields.Batch(ctx, c.log, head.Key), head.Key, c.cfg.AckWait)
	if err != nil || !found || next.Seq != head.Seq || !session.Unattended(now.Sub(head.Stored), c.cfg.AckWait) {
		return false, err
	}
	waits, err := waitsForPeople(ctx, c.journal, head.Key)
	return !waits, err
}
