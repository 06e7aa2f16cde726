package sim

import (
	"time"

	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/session"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/store"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// coordinator handles deliveries as package coordinator does, with the real batch.Machine.
type coordinator struct {
	*world.Process
	fleet *Fleet
	live  map[wire.BatchKey]*drive
	lines map[string]*line // by session
	board *placement.Board
}

func (f *Fleet) startCoordinator() {
	c := &coordinator{Process: f.Start("c", f.startCoordinator), fleet: f, live: map[wire.BatchKey]*drive{}, lines: map[string]*line{}, board: placement.NewBoard(nil)}
	f.coordinators = append(f.coordinators, c)
	inbox := names.Notify(c.Name)
	c.Subscribe(inbox)
	c.Bye = func() { c.Unsubscribe(inbox) }
	c.Spawn("toolsets", func(t *world.Task) { c.followStaff(t, c.begin) })
	c.Spawn("hear", func(t *world.Task) {
		for {
			t.Wait(world.Never, func() bool { n, _ := t.Heard(inbox); return n > 0 })
			if n, ok := t.Hear(inbox); ok {
				c.notice(n.(wire.Notice))
			}
		}
	})
}

// begin starts the tasks that take batches and requests.
func (c *coordinator) begin() {
	c.answerRequests()
	c.Spawn("pull", func(t *world.Task) {
		for {
			t.Wait(world.Never, func() bool { return t.Waiting(c.fleet.log) })
			if d := t.Take(c.fleet.log); d != nil {
				c.Spawn("drive", func(t *world.Task) { c.intake(t, d) })
			}
		}
	})
	c.Spawn("sweep", c.sweep)
}

// notice passes a worker's notice on to the driver of its batch.
func (c *coordinator) notice(n wire.Notice) {
	for key, d := range c.live {
		if key.String() == n.Batch {
			d.heard = append(d.heard, n)
		}
	}
}

// intake handles the delivery of a batch. If the batch is the head of its session, intake
// drives the session. If it is not the head, its delivery goes back to the broker.
func (c *coordinator) intake(t *world.Task, delivery *broker.Delivery) {
	key := delivery.Body.(*Submission).Key
	if live := c.live[key]; live != nil {
		if live.accepted.Seq == delivery.Seq {
			live.delivery = delivery
		} else { // the batch was submitted again
			t.Nak(delivery, Poll)
		}
		return
	}
	if l := c.lines[key.Session]; l != nil && delivery.Count == 1 {
		t.Count("offers")
		l.offer(delivery)
		return
	}
	_, replied, replyErr := truth(t).ReplyTo(anytime, accepted(t, delivery.Message))
	head, _, headErr := truth(t).Head(anytime, key.Tenant, key.Session)
	if replyErr != nil || headErr != nil {
		t.Nak(delivery, time.Second)
		return
	}
	seen := session.Observation{
		Seq: delivery.Seq, Head: head.Seq, Replied: replied, Deliveries: delivery.Count, Here: c.lines[key.Session] != nil,
	}
	switch session.Decide(seen) {
	case session.Answer:
		t.Tell("ack", delivery.Subject, func() { delivery.Ack() })
	case session.Vanished:
		t.Nak(delivery, time.Second)
	case session.AskPeers, session.Wait:
		// The driver of the session reads the log at its next poll.
		if l := c.lines[key.Session]; l != nil {
			l.more = true
		}
		c.decline(t, delivery)
	case session.TakeOver:
		c.takeOver(t, delivery)
	case session.Drive:
		c.driveLine(t, accepted(t, delivery.Message), delivery)
	}
}

// decline hands a delivery back to the broker. The delay grows with each delivery.
func (c *coordinator) decline(t *world.Task, d *broker.Delivery) {
	t.Nak(d, min(200*time.Millisecond<<min(d.Count-1, 10), 3*AckWait))
}

// takeOver drives the session of a batch that is behind the head, beginning with the head.
func (c *coordinator) takeOver(t *world.Task, delivery *broker.Delivery) {
	head, found, err := c.settledHead(t, delivery.Body.(*Submission).Key)
	switch {
	case err != nil || !found:
		t.Nak(delivery, time.Second)
	case head.Seq == delivery.Seq:
		c.driveLine(t, accepted(t, delivery.Message), delivery)
	default:
		c.driveLine(t, head, nil, delivery)
	}
}

// sweep looks for heads without a driver: after each restart of the server, and at intervals.
func (c *coordinator) sweep(t *world.Task) {
	for wait := AckWait; ; wait = judge.SweepEvery {
		last := t.Restarted
		t.Wait(t.Now.Add(wait), func() bool { return t.Restarted.After(last) })
		if t.Restarted.After(last) { // let messages that are on their way arrive first
			t.Sleep(AckWait + time.Duration(t.Rng.Int64N(int64(AckWait/2))))
		}
		all, err := open(t, AckWait)
		for err != nil {
			t.Sleep(AckWait)
			all, err = open(t, AckWait)
		}
		seen := map[string]bool{}
		for _, a := range all {
			if !seen[a.Key.Session] && c.live[a.Key] == nil {
				seen[a.Key.Session] = true
				c.attend(t, a)
			}
		}
		c.sweepJobs(t)
	}
}

// open returns the batches in the log that are at least as old as age, the oldest first.
func open(t *world.Task, age time.Duration) (all []records.Accepted, err error) {
	err = truth(t).EachOpen(anytime, "*", "*", func(a records.Accepted) bool {
		if t.Now.Sub(a.Stored) >= age {
			all = append(all, a)
		}
		return true
	})
	return all, err
}

// accepted decodes a message of the log with the real journal.
func accepted(t *world.Task, m *broker.Message) records.Accepted {
	a, err := truth(t).Accepted(store.Msg(m))
	if err != nil {
		panic(err)
	}
	return a
}

// attend drives a head, unless this coordinator drives it already.
func (c *coordinator) attend(t *world.Task, head records.Accepted) {
	next, _, err := c.settledHead(t, head.Key) // it also removes batches that have their reply
	for tries := 0; err != nil && tries < 3; tries++ {
		t.Sleep(AckWait)
		next, _, err = c.settledHead(t, head.Key)
	}
	if err != nil || next.Seq != head.Seq || !next.Stored.Equal(head.Stored) || !session.Unattended(t.Now.Sub(head.Stored), AckWait) {
		return
	}
	if waits, err := c.waitsForPeople(t, head.Key); err == nil && !waits {
		c.Spawn("drive", func(t *world.Task) { c.driveLine(t, head, nil) })
	}
}

// settledHead is like nextHead, but may return a head that has its reply. It leaves this head
// in the log as long as the head's driver may still remove it. That is the case while this
// coordinator drives the head, and while the reply is younger than AckWait.
func (c *coordinator) settledHead(t *world.Task, key wire.BatchKey) (records.Accepted, bool, error) {
	return c.headAfter(t, key, AckWait)
}

// nextHead returns the oldest batch of the session that has no reply. It removes older batches
// from the log, because they have their reply.
func (c *coordinator) nextHead(t *world.Task, key wire.BatchKey) (records.Accepted, bool, error) {
	return c.headAfter(t, key, 0)
}

func (c *coordinator) headAfter(t *world.Task, key wire.BatchKey, settled time.Duration) (records.Accepted, bool, error) {
	for {
		next, found, err := truth(t).Head(anytime, key.Tenant, key.Session)
		if err != nil || !found {
			return next, false, err
		}
		reply, replied, err := truth(t).ReplyTo(anytime, next)
		if err != nil || !replied {
			return next, true, err
		}
		if !session.RemovesHead(settled, c.live[next.Key] != nil, t.Now.Sub(reply.Stored)) {
			return next, true, nil
		}
		if err := truth(t).Remove(anytime, next); err != nil {
			return next, false, err
		}
	}
}
