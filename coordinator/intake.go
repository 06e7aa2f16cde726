package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// intake takes one delivery from the log. Only the head of a session's log is driven; any other batch is
// let go, and comes up when whoever finishes its predecessor looks for the next.
func (c *Coordinator) intake(ctx context.Context, d *bus.Delivery) {
	accepted, err := c.journal.Accepted(d.Msg)
	if err != nil {
		c.bury(ctx, d, err)
		return
	}
	if d.Delivered > 1 {
		c.cfg.Metrics.redelivered.Inc()
	}
	log := logfields.Batch(tracing.Extract(ctx, accepted.Header), c.log, accepted.Key)
	live := c.driving(accepted.Key)
	seen, reply := session.Observation{Driven: true}, journal.StoredReply{}
	if live == nil {
		if seen, reply, err = c.survey(ctx, accepted); err != nil {
			log.Warn("let go: the log cannot be read", "err", err)
			c.settle(log, d.Nak(time.Second))
			return
		}
	}
	seen.Seq, seen.Deliveries = accepted.Seq, d.Delivered
	switch session.Decide(seen) {
	case session.Join:
		live.adopt(d)
	case session.Answer:
		if err := c.again(ctx, log, accepted, reply); err != nil {
			log.Warn("let go: the batch is not on record yet", "err", err)
			c.settle(log, d.Nak(time.Second))
			return
		}
		c.settle(log, d.Ack())
	case session.Clear:
		c.clearHead(ctx, log, accepted, d)
	case session.Wait:
		log.Debug("let go: not the head of its session, or driven elsewhere", "head", seen.Head)
		c.settle(log, d.Nak(c.cfg.Poll))
	case session.Vanished:
		c.settle(log, d.Nak(time.Second)) // or the log was read at a server that is behind: gone, or here again
	case session.Drive:
		c.driveLane(ctx, accepted, d)
	}
}

// clearHead is for a batch that an earlier one of its session holds up. One that has its reply is in the way
// since a server restart: its message came back into the log, and the consumer, which counts it as settled,
// never delivers it. Such a head is removed, and the batch has its turn.
func (c *Coordinator) clearHead(ctx context.Context, log *slog.Logger, a journal.Accepted, d *bus.Delivery) {
	head, found, err := c.nextHead(ctx, log, a.Key, c.cfg.AckWait)
	switch {
	case err != nil || !found:
		if err != nil {
			log.Warn("the head of the session cannot be read", "err", err)
		}
		c.settle(log, d.Nak(time.Second))
	case head.Seq == a.Seq && !c.drivenElsewhere(a.Key):
		c.driveLane(ctx, a, d)
	case session.RescuesHead(d.Delivered) && !c.drivenElsewhere(head.Key):
		c.settle(log, d.Nak(c.cfg.Poll))
		log.Info("held up for long: the head of the session is looked at", "head", head.Key.Batch, "deliveries", d.Delivered)
		c.driveLane(ctx, head, nil)
	default:
		log.Debug("let go: not the head of its session", "head", head.Seq)
		c.settle(log, d.Nak(c.cfg.Poll))
	}
}

// survey finds out where a batch stands, and what its stored reply is if it has one: its own, or that of an earlier batch
// with the same id.
func (c *Coordinator) survey(ctx context.Context, a journal.Accepted) (seen session.Observation, reply journal.StoredReply, err error) {
	var head journal.Accepted
	var headErr, replyErr error
	var looks sync.WaitGroup
	looks.Go(func() { reply, seen.Replied, replyErr = c.journal.ReplyTo(ctx, a) })
	head, _, headErr = c.journal.Head(ctx, a.Key.Tenant, a.Key.Session)
	looks.Wait()
	seen.Head, seen.Elsewhere = head.Seq, c.drivenElsewhere(a.Key)
	return seen, reply, errors.Join(headErr, replyErr)
}

// driveLane drives a batch that is the head of its session, and then the next head, until there is none. It reports
// whether what is left of the lane is in other hands: those of another drive here, of people, or of the broker. A drive
// that was given up leaves its batch to whoever is next.
func (c *Coordinator) driveLane(ctx context.Context, accepted journal.Accepted, delivery *bus.Delivery) (done bool) {
	for {
		d := c.newDrive(accepted, delivery)
		if live := c.enter(d); live != nil {
			if delivery != nil {
				live.adopt(delivery)
			}
			return true
		}
		finished := d.run(ctx)
		c.leave(d)
		d.letGo(ctx, finished)
		if !finished {
			return !d.resting.IsZero()
		}
		if !c.serving.Load() {
			return true // what is in the log will be delivered to somebody
		}
		next, found, err := c.nextHead(ctx, d.log, accepted.Key, 0)
		if err != nil {
			d.log.Warn("the next batch of the session waits for its delivery", "err", err)
		}
		if err != nil || !found {
			return true
		}
		accepted, delivery = next, nil
	}
}

// nextHead is the oldest batch of the session that has no reply yet. One that has, because it was submitted again or came
// back into the log, is answered and removed, unless its reply is younger than settled: its driver may be about to do so.
func (c *Coordinator) nextHead(ctx context.Context, log *slog.Logger, key wire.BatchKey, settled time.Duration) (next journal.Accepted, found bool, err error) {
	for {
		next, found, err = c.journal.Head(ctx, key.Tenant, key.Session)
		if err != nil || !found {
			return next, false, err
		}
		reply, replied, err := c.journal.ReplyTo(ctx, next)
		if err != nil || !replied {
			return next, err == nil, err
		}
		if settled > 0 && (c.driving(next.Key) != nil || c.conn.Now(ctx).Sub(reply.Stored) < settled) {
			return next, true, nil
		}
		if err := c.again(ctx, log, next, reply); err != nil {
			return next, false, err
		}
		if err := c.journal.Remove(ctx, next); err != nil {
			return next, false, err
		}
	}
}

// again answers a batch that has its reply already: the same body gets it once more, another body under
// the same id is refused. One that is still in the log with its own reply may not be on record yet. Where that cannot be
// mended now the batch has to stay in the log.
func (c *Coordinator) again(ctx context.Context, log *slog.Logger, a journal.Accepted, stored journal.StoredReply) error {
	reply, err := decodeReply(stored.Body)
	if err != nil {
		log.Error("the stored reply cannot be read", "err", err)
		return nil
	}
	if digest := messages.Digest(a.Body); digest != reply.Digest {
		c.refuseAside(log, a, &messages.Refusal{Class: messages.ClassBatchConflict, Message: fmt.Sprintf(
			"A batch with the id %.80q and another body was run before (digest %s). Use a new id.", reply.Batch, reply.Digest)})
		refused := messages.Batch{Session: reply.Session, ID: reply.Batch}
		return c.recorder.Write(ctx, log, audit.Ending{Accepted: a, Batch: refused, Refused: messages.ClassBatchConflict})
	}
	if stored.Own {
		if err := c.auditReplied(ctx, log, a, stored.Body); err != nil {
			return err
		}
	}
	if stored.Own {
		log.Info("the batch has its reply and was still in the log; the reply is published again")
	} else {
		log.Info("submitted again; answered with the stored reply")
	}
	if err := c.conn.Publish(c.names.Of(wire.VerbReply, a.Key), nil, stored.Body); err != nil {
		log.Warn("stored reply not published again; it can be fetched", "err", err)
	}
	return nil
}

func decodeReply(stored []byte) (reply messages.Reply, err error) {
	err = json.Unmarshal(stored, &reply)
	return reply, err
}

// refuseAside answers with a refusal that must not look like the reply of the batch.
func (c *Coordinator) refuseAside(log *slog.Logger, a journal.Accepted, refusal *messages.Refusal) {
	batch, _ := messages.DecodeBatch(a.Body)
	batch = submission.Identified(batch, a.Key)
	logRefusal(log, refusal)
	c.cfg.Metrics.refused(refusal.Class)
	body := rawjson.MustMarshal(submission.Refused(batch, messages.Digest(a.Body), refusal))
	if err := c.conn.Publish(c.names.Of(wire.VerbRefused, a.Key), nil, body); err != nil {
		log.Warn("refusal not published", "err", err)
	}
}

// bury sets aside what is no batch at all, so that it blocks nothing and is not forgotten.
func (c *Coordinator) bury(ctx context.Context, d *bus.Delivery, reason error) {
	c.log.Error("set aside", "subject", d.Subject, "err", reason)
	if err := c.journal.Bury(ctx, d.Msg, reason.Error()); err != nil {
		c.log.Error("could not be set aside; it will come again", "err", err)
		return
	}
	c.settle(c.log, d.Term(reason.Error()))
}

func (c *Coordinator) settle(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("delivery not settled; it will come again and be found done", "err", err)
	}
}
