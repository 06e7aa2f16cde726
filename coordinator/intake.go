package coordinator

import (
	"context"
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
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// intake handles one delivery from the log. If the batch is the head of its session, intake
// drives the session. Otherwise intake hands the delivery back to the broker, and the driver
// of the session reads the batch from the log.
func (c *Coordinator) intake(ctx context.Context, d *pull.Delivery) {
	accepted, err := c.journal.Accepted(d.Msg)
	if err != nil {
		c.deadLetter(ctx, d, err)
		return
	}
	if d.Delivered > 1 {
		c.cfg.Metrics.Redelivered.Inc()
	}
	log := logfields.Batch(tracing.Extract(ctx, accepted.Header), c.log, accepted.Key)
	live := c.runs.of(accepted.Key)
	// If the session has a run here, the run can read this batch from the log.
	if live == nil && d.Delivered == 1 {
		if s := c.runs.ofSession(sessionName(accepted.Key)); s != nil && s.offer(accepted.Key, d) {
			return
		}
	}
	seen, reply := session.Observation{Driven: true}, journal.StoredReply{}
	if live == nil {
		if seen, reply, err = c.observe(ctx, accepted); err != nil {
			log.Warn("the batch goes back to the broker: the log cannot be read", "err", err)
			logUnsettled(log, d.Nak(time.Second))
			return
		}
	}
	seen.Seq, seen.Deliveries = accepted.Seq, d.Delivered
	switch session.Decide(seen) {
	case session.Join:
		live.lease.adopt(d)
	case session.Answer:
		if err := c.answerAgain(ctx, log, accepted, reply); err != nil {
			log.Warn("the batch goes back to the broker: its audit lines are not stored yet", "err", err)
			logUnsettled(log, d.Nak(time.Second))
			return
		}
		logUnsettled(log, d.Ack())
	case session.AskPeers:
		c.peers.AskSession(accepted.Key)
		log.Debug("the batch goes back to the broker: it is not the head of its session", "head", seen.Head)
		c.decline(log, d)
	case session.Wait:
		log.Debug("the batch goes back to the broker: its session is driven already, or only waits", "head", seen.Head)
		if s := c.runs.ofSession(sessionName(accepted.Key)); s != nil {
			s.readSoon()
		}
		// If that peer is lost, the next delivery of this batch shows it.
		if c.peers.DriveBatch(accepted.Key) {
			logUnsettled(log, d.Nak(c.cfg.Poll))
			return
		}
		c.decline(log, d)
	case session.TakeOver:
		c.takeOver(ctx, log, accepted, d)
	case session.Vanished:
		// A replica that lags behind the leader may have answered. The next delivery tries
		// again.
		logUnsettled(log, d.Nak(time.Second))
	case session.Drive:
		c.driveSession(ctx, accepted, d)
	}
}

// decline hands a delivery back to the broker. The delay grows with each delivery of the
// batch, because thousands of batches of one session may wait.
func (c *Coordinator) decline(log *slog.Logger, d *pull.Delivery) {
	soon := bus.Backoff{First: c.cfg.Poll, Most: 3 * c.cfg.AckWait}
	if c.cfg.Lookahead > 1 { // the batch may be driven before the head has ended
		soon.First = min(declinedFirst, c.cfg.Poll)
	}
	logUnsettled(log, d.Nak(soon.Pause(d.Delivered-1)))
}

// declinedFirst is the first delay of decline. Within this time the driver of the session
// tells its peers that it drives the session.
const declinedFirst = 200 * time.Millisecond

// observe reads what session.Decide needs to know about a batch. It also returns the reply
// that is stored under the batch's id, if there is one. An earlier batch with the same id may
// have got that reply.
func (c *Coordinator) observe(ctx context.Context, a journal.Accepted) (seen session.Observation, reply journal.StoredReply, err error) {
	var head journal.Accepted
	var headErr, replyErr error
	var reads sync.WaitGroup
	reads.Go(func() { reply, seen.Replied, replyErr = c.journal.ReplyTo(ctx, a) })
	head, _, headErr = c.journal.Head(ctx, a.Key.Tenant, a.Key.Session)
	reads.Wait()
	seen.Head, seen.Here = head.Seq, c.runs.ofSession(sessionName(a.Key)) != nil
	seen.Rests = c.runs.rested.covers(sessionName(a.Key), head.Seq, a.Seq)
	seen.Elsewhere, seen.Peer = c.peers.DriveBatch(a.Key), c.peers.Drive(a.Key)
	if headErr == nil && head.Seq != 0 {
		seen.Peer = seen.Peer || c.peers.DriveBatch(head.Key)
	}
	return seen, reply, errors.Join(headErr, replyErr)
}

// takeOver drives a session from its head. intake calls it when a batch behind the head is
// delivered again and no coordinator has said that it drives the session.
func (c *Coordinator) takeOver(ctx context.Context, log *slog.Logger, a journal.Accepted, d *pull.Delivery) {
	head, found, err := c.nextHead(ctx, log, a.Key, c.cfg.AckWait)
	switch {
	case err != nil:
		log.Warn("the batch goes back to the broker: the head of its session cannot be read", "err", err)
		logUnsettled(log, d.Nak(time.Second))
	case !found:
		logUnsettled(log, d.Nak(time.Second))
	case head.Seq == a.Seq:
		c.driveSession(ctx, a, d)
	case c.cfg.Lookahead == 1: // with a lookahead of 1, a run takes only the head
		c.decline(log, d)
		c.driveSession(ctx, head, nil)
	default:
		c.driveSession(ctx, head, nil, offer{a.Key, d})
	}
}

// driveSession drives a session from its head. delivery is the delivery of the head, or nil.
// offers are deliveries of later batches.
//
// If done is true, the caller need not try again: the session has no open batch, or has
// another run, or goes on after a person's decision or a delivery by the broker. If done is
// false, this run gave up, and another driver must be found.
func (c *Coordinator) driveSession(ctx context.Context, head journal.Accepted, delivery *pull.Delivery, offers ...offer) (done bool) {
	for {
		s := c.newSessionRun(head.Key)
		s.offers = offers // before other goroutines can see the run and add offers
		if c.runs.enter(s) != nil {
			c.handOver(s.log, head, delivery, offers)
			return true
		}
		done = s.run(ctx, head, delivery)
		s.end()
		c.runs.leaveSession(s)
		switch {
		case s.abandoned(ctx):
			c.peers.Publish(wire.Notice{Batch: s.key.String(), LetGo: &wire.LetGo{}, Worker: c.id})
		case s.asked.Load():
			c.peers.PublishEnd(sessionName(s.key))
		}
		again := s.again || done && s.suspended.IsZero() && len(s.more) > 0
		if !again || !c.serving.Load() {
			s.returnOffers()
			return done
		}
		next, found, err := c.nextHead(ctx, s.log, head.Key, 0)
		if err != nil || !found {
			s.returnOffers()
			return err == nil
		}
		head, delivery, offers = next, s.offered(next), nil
		s.returnOffers()
	}
}

// handOver settles the deliveries of a session that already has a run here. If the batch of a
// delivery is driven, the run of that batch gets the delivery. Any other delivery goes back to
// the broker.
func (c *Coordinator) handOver(log *slog.Logger, head journal.Accepted, delivery *pull.Delivery, offers []offer) {
	if delivery != nil {
		offers = append(offers, offer{head.Key, delivery})
	}
	for _, o := range offers {
		if live := c.runs.of(o.key); live != nil {
			live.lease.adopt(o.delivery)
		} else {
			logUnsettled(log, o.delivery.Nak(c.cfg.Poll))
		}
	}
}

// nextHead returns the oldest batch of the session that has no reply. Older batches in the log
// have a reply: they were submitted again, or a restart of the server brought them back.
// nextHead publishes their replies again and removes them from the log. If a reply is younger
// than settled, the batch's driver may be about to remove the batch. Then nextHead returns
// that batch and leaves it in the log.
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
		if !session.RemovesHead(settled, c.runs.of(next.Key) != nil, c.conn.Now(ctx).Sub(reply.Stored)) {
			return next, true, nil
		}
		if err := c.answerAgain(ctx, log, next, reply); err != nil {
			return next, false, err
		}
		if err := c.journal.Remove(ctx, next); err != nil {
			return next, false, err
		}
	}
}

// answerAgain answers a batch whose id already has a stored reply. If the body is the one that
// the reply was made for, it publishes that reply. If the body is another one, it refuses the
// batch. If the reply was made for this very batch, it first writes the missing audit lines.
// After an error, the caller must keep the batch in the log.
func (c *Coordinator) answerAgain(ctx context.Context, log *slog.Logger, a journal.Accepted, stored journal.StoredReply) error {
	reply, err := decodeReply(stored.Body)
	if err != nil {
		log.Error("the stored reply of a batch cannot be read; the batch is removed from the log unanswered", "err", err)
		return nil
	}
	if digest := messages.Digest(a.Body); digest != reply.Digest {
		c.publishRefusal(log, a, &messages.Refusal{Class: messages.ClassBatchConflict, Message: fmt.Sprintf(
			"A batch with the id %.80q and another body was run before (digest %s). Use a new id.", reply.Batch, reply.Digest)})
		refused := messages.Batch{Session: reply.Session, ID: reply.Batch}
		return c.recorder.Write(ctx, log, audit.Ending{Accepted: a, Batch: refused, Refused: messages.ClassBatchConflict})
	}
	if stored.Own {
		if err := c.auditReplied(ctx, log, a, stored.Body); err != nil {
			return err
		}
		log.Info("the batch was still in the log with its reply; the reply is published again")
	} else {
		log.Info("the batch was submitted again; the stored reply is published again")
	}
	if err := c.conn.Publish(c.names.Of(wire.VerbReply, a.Key), nil, stored.Body); err != nil {
		log.Warn("the stored reply was not published again; the agent can get it by the id of the batch", "err", err)
	}
	return nil
}

func decodeReply(stored []byte) (reply messages.Reply, err error) {
	err = rawjson.Unmarshal(stored, &reply)
	return reply, err
}

// auditReplied writes the audit lines of a batch whose reply is stored, unless they are
// written. They are missing if the driver died after it stored the reply.
func (c *Coordinator) auditReplied(ctx context.Context, log *slog.Logger, a journal.Accepted, stored []byte) error {
	body, err := c.journal.FullReply(ctx, stored)
	if errors.Is(err, bus.ErrNotFound) || errors.Is(err, bus.ErrCorrupt) {
		log.Error("a large reply is missing in the object store; its audit lines are made from the journal", "err", err)
		body, err = stored, nil
	}
	if err != nil {
		return err
	}
	reply, err := decodeReply(body)
	if err != nil {
		return err
	}
	written, err := c.auditLog.Written(ctx, a.Key, a.Seq, a.Stored, len(reply.Results))
	if err != nil || written {
		return err
	}
	in, _ := submission.Decode(log, a, c.conn.MaxBody()) // as far as it can be decoded
	results := reply.Results
	if len(results) == 0 {
		results = nil
	}
	e := audit.Ending{Accepted: a, Batch: in.Batch, Results: reply.Results, Calls: func(ctx context.Context) ([]audit.Call, error) {
		return c.recorder.Recall(ctx, a.Key, in.Calls, results)
	}}
	if reply.Error != nil {
		e.Refused = reply.Error.Class
	}
	log.Info("the audit lines of a batch are written after its reply")
	return c.recorder.Write(ctx, log, e)
}

// publishRefusal publishes a refusal on the subject for refusals. It does not use the subject
// for replies, where an agent may wait for the reply of the other batch with this id.
func (c *Coordinator) publishRefusal(log *slog.Logger, a journal.Accepted, refusal *messages.Refusal) {
	batch, _ := messages.DecodeBatch(a.Body)
	batch = submission.Identified(batch, a.Key)
	logfields.Refused(log, refusal)
	c.cfg.Metrics.BatchRefused(refusal.Class)
	body := rawjson.MustMarshal(submission.Refused(batch, messages.Digest(a.Body), refusal))
	if err := c.conn.Publish(c.names.Of(wire.VerbRefused, a.Key), nil, body); err != nil {
		log.Warn("a refusal was not published; the agent hears of it when it sends the batch again", "err", err)
	}
}

// deadLetter stores a message that is not a batch as a dead letter, with the reason, and
// removes it from the log.
func (c *Coordinator) deadLetter(ctx context.Context, d *pull.Delivery, reason error) {
	c.log.Error("a message in the log is no batch and becomes a dead letter: see `toolfleet dead ls`", "subject", d.Subject, "err", reason)
	if err := c.journal.DeadLetter(ctx, d.Msg, reason.Error()); err != nil {
		c.log.Error("the dead letter was not stored; the broker delivers the message again", "err", err)
		return
	}
	logUnsettled(c.log, d.Term(reason.Error()))
}

// logUnsettled logs that a delivery could not be settled.
func logUnsettled(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("a delivery was not settled; the broker delivers it again, and its batch is found done", "err", err)
	}
}
