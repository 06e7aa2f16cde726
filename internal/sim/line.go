package sim

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// This file is the counterpart of sessionrun.go in package coordinator. It carries out what
// session.Line decides.

// lookahead is how many batches of a session are driven at once.
const lookahead = 4

// line drives the batches of one session.
type line struct {
	c         *coordinator
	key       wire.BatchKey // key of the first batch
	batches   session.Line[*drive]
	driven    map[*drive]bool    // drivers of the batches that are being driven
	left      []*drive           // drivers whose task has ended
	more      bool               // whether the log may hold another batch
	reading   bool               // the first read of the log is still to come
	offers    []*broker.Delivery // deliveries of batches that are not read yet
	suspended time.Time          // the latest time to resume; zero while the session is not suspended
	again     bool               // a batch was read while the session was suspended
	since     time.Time          // a batch that was stored later has had no other driver
}

// ends reports whether the session is suspended. Suspending ends all drivers of the session.
func (l *line) ends() bool { return !l.suspended.IsZero() }

// driveLine drives a session from its head. givenUp is true if it gave the session up before
// the session was done.
func (c *coordinator) driveLine(t *world.Task, head records.Accepted, delivery *broker.Delivery, offers ...*broker.Delivery) (givenUp bool) {
	if other := c.lines[head.Key.Session]; other != nil {
		other.more = true
		for _, d := range other.batches.All() {
			d.nudged = true // the session may be about to be suspended
		}
		if delivery != nil {
			offers = append(offers, delivery)
		}
		for _, d := range offers {
			t.Nak(d, Poll)
		}
		return false
	}
	l := &line{c: c, key: head.Key, offers: offers, driven: map[*drive]bool{}, batches: session.Line[*drive]{Window: machineConfig.Window}}
	c.lines[head.Key.Session] = l
	givenUp = l.run(t, head, delivery)
	if c.lines[head.Key.Session] == l {
		delete(c.lines, head.Key.Session)
	}
	l.returnOffers(t)
	if l.again && !givenUp {
		next, found, err := c.nextHead(t, head.Key)
		if err != nil || !found {
			return err != nil
		}
		return c.driveLine(t, next, nil)
	}
	return givenUp
}

func (l *line) run(t *world.Task, head records.Accepted, delivery *broker.Delivery) (givenUp bool) {
	l.since = head.Stored.Add(-1)
	if delivery == nil || delivery.Count > 1 {
		l.since = t.Now
	}
	// No notice comes for batches that are already in the log.
	l.more = delivery == nil || delivery.Count > 1
	l.reading = l.more
	l.begin(head, delivery)
	poll := t.Now.Add(Poll)
	for {
		t.Wait(poll, func() bool { return len(l.left) > 0 || l.more })
		switch {
		case len(l.left) > 0:
			d := l.left[0]
			l.left = l.left[1:]
			last := l.leave(d, t.Now)
			if l.ends() || last && !l.batches.Empty() {
				if last {
					return !l.ends()
				}
				continue
			}
			_ = l.readLog(t)
			if l.batches.Empty() {
				return false
			}
			l.returnOffers(t)
			l.suspendIfQuiet()
			continue
		case !l.more:
			poll = t.Now.Add(Poll)
			l.lookForControls(t)
		}
		l.more = false
		_ = l.readLog(t)
		l.returnOffers(t)
		l.reading = false
		l.suspendIfQuiet()
	}
}

// offer gives the line a delivery of a batch that it has not read yet.
func (l *line) offer(d *broker.Delivery) {
	l.offers = append(l.offers, d)
	l.more = true
}

// offered removes and returns the offered delivery of a batch, or nil.
func (l *line) offered(a records.Accepted) *broker.Delivery {
	for i, d := range l.offers {
		if d.Seq == a.Seq {
			l.offers = slices.Delete(l.offers, i, i+1)
			return d
		}
	}
	return nil
}

// returnOffers hands the deliveries that were offered and not used back to the broker.
func (l *line) returnOffers(t *world.Task) {
	offers := l.offers
	l.offers = nil
	for _, d := range offers {
		l.c.decline(t, d)
	}
}

// readLog reads batches behind the driven ones, and drives them.
func (l *line) readLog(t *world.Task) error {
	for {
		if n, _ := l.batches.Successors(); !l.batches.Empty() && n+1 >= lookahead {
			return nil
		}
		next, found, err := l.next(t)
		if err != nil || !found {
			return err
		}
		_, replied, err := truth(t).ReplyTo(anytime, next)
		if err == nil && replied {
			err = truth(t).Remove(anytime, next)
		}
		if err != nil {
			return err
		}
		if l.ends() {
			l.again = true
			return nil
		}
		if replied {
			continue
		}
		l.begin(next, l.offered(next))
	}
}

// next reads the oldest batch in the log that is not in the line.
func (l *line) next(t *world.Task) (a records.Accepted, found bool, err error) {
	for after := l.batches.Last(); ; after = a.Seq {
		a, found, err = truth(t).Next(anytime, l.key.Tenant, l.key.Session, after)
		if err != nil || !found || !l.batches.Holds(a.Seq, a.Stored) {
			return a, found, err
		}
	}
}

// begin drives a batch in its own task.
func (l *line) begin(a records.Accepted, delivery *broker.Delivery) {
	sub := l.c.fleet.submissions[string(a.Body)]
	d := &drive{coordinator: l.c, line: l, accepted: a, sub: sub, delivery: delivery, born: l.c.Now}
	l.c.live[sub.Key] = d
	l.batches.Add(d, a.Seq, a.Stored, len(a.Body))
	l.driven[d] = true
	l.giveTurns()
	l.c.Spawn("batch", func(t *world.Task) {
		d.journal, d.born = journal{t}, t.Now
		d.finished = d.run()
		if !d.finished {
			d.letGo(t)
		}
		l.left = append(l.left, d)
	})
}

// leave ends the driver of a batch. If the batch has left the log, leave removes it from the
// line. If the driver gave it up, it stays in the line. last means that no batch of the line
// is being driven.
func (l *line) leave(d *drive, now time.Time) (last bool) {
	if l.c.live[d.sub.Key] == d {
		delete(l.c.live, d.sub.Key)
	}
	delete(l.driven, d)
	if d.finished {
		l.batches.Remove(d)
	} else {
		l.batches.Rest(d, now.Add(AckWait))
	}
	l.giveTurns()
	return len(l.driven) == 0
}

// step gives an event to a batch's machine, and then updates the turns of the line.
func (l *line) step(d *drive, e batch.Event) (wants []batch.Effect) {
	if turn := l.batches.Turn(d); d.turn != turn {
		d.turn = turn
		wants = d.machine.Step(d.Now, turn)
	}
	wants = append(wants, d.machine.Step(d.Now, e)...)
	l.batches.Set(d, session.Standing{Passable: d.machine.Passable(), Safe: d.machine.Safe(), Running: d.machine.Running(d.Now), Held: d.machine.Held()})
	l.giveTurns()
	return wants
}

// isOver records that the reply of a batch is stored.
func (l *line) isOver(d *drive) {
	l.batches.Over(d)
	l.giveTurns()
}

func (l *line) giveTurns() {
	for _, d := range l.batches.GiveTurns() {
		d.turned = true
	}
}

// suspendIfQuiet ends the drivers of all batches if every batch only waits and there is no
// news for any of them. It reports whether the session is suspended.
func (l *line) suspendIfQuiet() bool {
	if l.ends() {
		return true
	}
	until, rests := l.batches.Resting()
	for d := range l.driven {
		rests = rests && !d.nudged && !d.turned && len(d.heard) == 0
	}
	if !rests || l.reading || l.more {
		return false
	}
	l.suspended = until
	for _, d := range l.batches.All() {
		delete(l.c.live, d.sub.Key)
	}
	delete(l.c.lines, l.key.Session)
	l.c.Count("rests")
	return true
}

// lookForControls reads the session's controls: aborts and steering messages. It wakes each
// batch that waits for an earlier batch, if a control concerns the waiting batch.
func (l *line) lookForControls(t *world.Task) {
	entries, err := truth(t).Controls(anytime, l.key.Tenant, l.key.Session)
	if err != nil {
		return
	}
	for _, d := range l.batches.All() {
		if l.batches.Turn(d).May == batch.Nothing && len(recall.Controls(entries, d.accepted, BatchTTL)) > 0 {
			d.nudged = true
		}
	}
}

// awaitTurn waits until the first call of the batch may start, or until no call should start
// any more. It returns false if the session is suspended meanwhile.
func (d *drive) awaitTurn() bool {
	end := d.accepted.Stored.Add(BatchTTL)
	if !d.mayStart() {
		d.line.batches.Set(d, session.Standing{Safe: d.beginsSafe()})
		d.line.giveTurns()
	}
	for len(d.sub.Plan.Calls) > 0 && !d.mayStart() && d.Now.Before(end) {
		d.line.batches.Rest(d, end)
		if d.line.suspendIfQuiet() {
			return false
		}
		d.Wait(end, func() bool { return d.turned || d.nudged || len(d.heard) > 0 || d.line.ends() })
		if d.line.ends() {
			return false
		}
		d.line.batches.Rest(d, time.Time{})
		d.turned, d.heard = false, nil
		if d.nudged {
			d.nudged = false
			if said, err := d.controls(); err == nil && len(said) > 0 {
				return true
			}
		}
	}
	return true
}

func (d *drive) mayStart() bool {
	switch d.line.batches.Turn(d).May {
	case batch.Everything:
		return true
	case batch.SafeCalls:
		return d.beginsSafe()
	}
	return false
}

// beginsSafe reports whether the first call that is not refused may run beside other calls.
func (d *drive) beginsSafe() bool {
	for _, call := range plan.New(d.sub.Calls, d.coordinator.fleet.staff.Tools).Calls {
		if call.Refused == nil {
			return call.ConcurrencySafe
		}
	}
	return false
}

// Drives implements [judge.Fleet].
func (f *Fleet) Drives(key wire.BatchKey) (all []judge.Drive) {
	for _, c := range f.coordinators {
		if d := c.live[key]; d != nil && len(d.line.batches.All()) == 1 {
			all = append(all, d.view())
		}
	}
	return all
}

// view returns what the judge needs to know about the driver.
func (d *drive) view() judge.Drive {
	return judge.Drive{Process: d.coordinator.Process, Sub: d.sub, Born: d.born, First: d.isFirst}
}
