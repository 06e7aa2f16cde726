package sim

import (
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// coordinator is what package coordinator does with its deliveries, around the real batch.Machine.
type coordinator struct {
	*world.Process
	fleet *Fleet
	live  map[wire.BatchKey]*drive
	lines map[string]*line // by session
}

func (f *Fleet) startCoordinator() {
	c := &coordinator{Process: f.Start("c", f.startCoordinator), fleet: f, live: map[wire.BatchKey]*drive{}, lines: map[string]*line{}}
	f.coordinators = append(f.coordinators, c)
	inbox := names.Notify(c.Name)
	c.Subscribe(inbox)
	c.Bye = func() { c.Unsubscribe(inbox) }
	c.openDoors()
	c.Spawn("pull", func(t *world.Task) {
		for {
			t.Wait(world.Never, func() bool { return f.Waiting(f.log) })
			if d := t.Take(f.log); d != nil {
				c.Spawn("drive", func(t *world.Task) { c.intake(t, d) })
			}
		}
	})
	c.Spawn("sweep", c.sweep)
	c.Spawn("hear", func(t *world.Task) {
		for {
			t.Wait(world.Never, func() bool { n, _ := t.Heard(inbox); return n > 0 })
			if n, ok := t.Hear(inbox); ok {
				c.notice(n.(wire.Notice))
			}
		}
	})
}

// notice passes a worker's notice on to the driver of its batch.
func (c *coordinator) notice(n wire.Notice) {
	for key, d := range c.live {
		if key.String() == n.Batch {
			d.heard = append(d.heard, n)
		}
	}
}

// intake drives the heads of sessions, and lets anything else go.
func (c *coordinator) intake(t *world.Task, delivery *broker.Delivery) {
	key := delivery.Body.(*Submission).Key
	if live := c.live[key]; live != nil {
		live.delivery = delivery
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
		// A peer that drives the session reads the log at its next poll.
		if l := c.lines[key.Session]; l != nil {
			l.more = true
		}
		t.Nak(delivery, min(200*time.Millisecond<<min(delivery.Count-1, 10), 3*AckWait))
	case session.TakeOver:
		c.takeOver(t, delivery)
	case session.Drive:
		c.driveLine(t, accepted(t, delivery.Message), delivery, nil)
	}
}

// takeOver drives the session of a batch that waits behind others.
func (c *coordinator) takeOver(t *world.Task, delivery *broker.Delivery) {
	head, found, err := c.settledHead(t, delivery.Body.(*Submission).Key)
	switch {
	case err != nil || !found:
		t.Nak(delivery, time.Second)
	case head.Seq == delivery.Seq:
		c.driveLine(t, accepted(t, delivery.Message), delivery, nil)
	default:
		c.driveLine(t, head, nil, delivery)
	}
}

// sweepEvery is the time between two sweeps without a restart of the server.
const sweepEvery = 5 * time.Minute

// sweep looks for heads that nobody drives: after each restart of the server, and now and then.
func (c *coordinator) sweep(t *world.Task) {
	for wait := AckWait; ; wait = sweepEvery {
		last := t.Restarted
		t.Wait(t.Now.Add(wait), func() bool { return t.Restarted.After(last) })
		if t.Restarted.After(last) { // what is in flight settles first
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
	}
}

// open returns the batches in the log that are at least so old, the oldest first.
func open(t *world.Task, age time.Duration) (all []records.Accepted, err error) {
	err = truth(t).EachOpen(anytime, "*", "*", func(a records.Accepted) bool {
		if t.Now.Sub(a.Stored) >= age {
			all = append(all, a)
		}
		return true
	})
	return all, err
}

// accepted returns a message of the log as the journal does.
func accepted(t *world.Task, m *broker.Message) records.Accepted {
	a, err := truth(t).Accepted(asMsg(m))
	if err != nil {
		panic(err)
	}
	return a
}

// attend looks after one head that is not driven here.
func (c *coordinator) attend(t *world.Task, head records.Accepted) {
	next, _, err := c.settledHead(t, head.Key) // removes those that have their reply
	for tries := 0; err != nil && tries < 3; tries++ {
		t.Sleep(AckWait)
		next, _, err = c.settledHead(t, head.Key)
	}
	if err != nil || next.Seq != head.Seq || !next.Stored.Equal(head.Stored) || !session.Unattended(t.Now.Sub(head.Stored), AckWait) {
		return
	}
	if waits, err := c.waitsForPeople(t, head.Key); err == nil && !waits {
		c.Spawn("drive", func(t *world.Task) { c.driveLine(t, head, nil, nil) })
	}
}

// letGo hands an unfinished batch back to the log.
func (d *drive) letGo(t *world.Task) {
	if d.delivery == nil {
		return
	}
	wait := min(100*time.Millisecond<<min(d.delivery.Count, 10), 10*time.Second)
	if !d.line.suspended.IsZero() {
		wait = session.PutOff(t.Now, d.line.suspended)
	}
	t.Nak(d.delivery, wait)
}

// settledHead is nextHead, where a head whose reply is new is left to its driver.
func (c *coordinator) settledHead(t *world.Task, key wire.BatchKey) (records.Accepted, bool, error) {
	return c.headAfter(t, key, AckWait)
}

// nextHead is the oldest batch of the session that has no reply yet.
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

// drive is one batch being driven.
type drive struct {
	journal
	coordinator *coordinator
	accepted    records.Accepted
	sub         *Submission
	machine     *batch.Machine
	delivery    *broker.Delivery // of the batch, if it came by one
	heard       []wire.Notice
	broken      bool // no driver can bring the batch to its end
	reply       *messages.Reply
	over        bool // the drive has ended
	nudged      bool // it is to look into the journal
	late        bool // another coordinator may have driven the batch before, or drives it now
	sure        bool // what was said since the newest record that we know was asked for
	born        time.Time

	line     *line
	turn     batch.Turn // as the machine knows it
	turned   bool       // it has another turn
	finished bool       // it has left the log; set when the drive is over
}

// run reports whether the batch has left the log.
func (d *drive) run() bool {
	defer func() { d.over = true }()
	d.coordinator.Spawn("alive", d.stayAlive)
	if d.sub.Refused {
		d.reply = &messages.Reply{Status: messages.ReplyRefused}
		return d.finish()
	}
	if !d.awaitTurn() {
		return false
	}
	config := machineConfig
	config.Digest, config.Nonce, config.NotAfter = d.sub.Key.Batch, d.Nonce(), d.accepted.Stored.Add(BatchTTL)
	d.machine = batch.New(d.sub.Plan, config)
	late := d.delivery == nil || d.delivery.Count > 1
	again, resumed := late || d.Knew(d.accepted.Stored), false
	if again {
		var err error
		if resumed, err = d.recall(); err != nil {
			return false
		}
		late = late || resumed
	}
	said, err := d.controls()
	if err != nil {
		return false
	}
	for _, e := range said {
		d.machine.Step(d.Now, e)
	}
	d.late, d.sure = late, late
	d.step(batch.Begin{Resumed: resumed, Late: late, Again: again})
	for d.reply == nil && !d.broken {
		if d.rest() {
			return false
		}
		if d.reply != nil || d.broken {
			break
		}
		wake, ok := d.machine.Wake()
		if !ok {
			wake = world.Never
		}
		d.Wait(wake, func() bool { return len(d.heard) > 0 || d.nudged || d.turned || d.line.ends() })
		if d.line.ends() {
			return false
		}
		d.line.batches.Rest(d, time.Time{})
		d.turned = false // the next step takes the turn
		switch {
		case len(d.heard) > 0:
			n := d.heard[0]
			d.heard = d.heard[1:]
			if n.LetGo != nil && n.LetGo.Job > 0 {
				_ = d.Ask("remove job", n.Batch, func() error { d.Delete(jobsStream, n.LetGo.Job); return nil })
			}
			if event := recall.Notice(n, d.recalled()); event != nil {
				d.step(event)
			}
		case d.nudged:
			d.nudged = false
			d.look()
		default:
			d.step(batch.Tick{})
		}
	}
	if d.reply == nil {
		d.close()
	}
	return d.finish()
}

func (d *drive) stayAlive(t *world.Task) {
	for {
		t.Wait(t.Now.Add(AckWait/3), func() bool { return d.over })
		if d.over {
			return
		}
		if held := d.delivery; held != nil {
			t.Tell("progress", held.Subject, held.InProgress)
		}
	}
}

// recall tells the machine what the journal holds.
func (d *drive) recall() (found bool, err error) {
	plans, err := truth(d.Task).Plans(anytime, d.sub.Key)
	if err != nil {
		return false, err
	}
	calls, err := truth(d.Task).Calls(anytime, d.sub.Key)
	if err != nil {
		return false, err
	}
	for _, p := range plans {
		d.machine.Step(d.accepted.Stored, batch.Planned{Record: p.Record, Seq: p.Seq})
	}
	events := d.events(calls)
	for _, e := range events {
		d.machine.Step(d.Now, e)
	}
	return len(plans)+len(events) > 0, nil
}

// controls returns the controls of the session that mean this batch.
func (d *drive) controls() ([]batch.Event, error) {
	all, err := truth(d.Task).Controls(anytime, d.sub.Key.Tenant, d.sub.Key.Session)
	return recall.Controls(all, d.accepted, BatchTTL), err
}

func (d *drive) events(k records.Known) []batch.Event { return recall.Calls(k, d.recalled()) }

// recalled is the batch as package recall sees it.
func (d *drive) recalled() recall.Batch {
	return recall.Batch{
		Calls: len(d.sub.Plan.Calls), Claims: d.machine.Claims, Local: local,
		IsOf: func(int, messages.Result) bool { return true },
	}
}

// local returns a time of the server by the clock of the processes, which is the same here.
func local(t time.Time) time.Time { return t }

func (d *drive) claims(i int) bool { return d.machine.Claims(i) }

func (d *drive) step(e batch.Event) {
	if d.broken = d.broken || d.Breaks(); d.broken {
		d.Count("broken drivers")
		return
	}
	wants := d.line.step(d, e)
	d.follow(e)
	for len(wants) > 0 {
		want := wants[0]
		wants = wants[1:]
		for _, told := range d.perform(want) {
			d.follow(told)
			wants = append(wants, d.line.step(d, told)...)
		}
	}
}

// follow notes that there is something new of a call.
func (d *drive) follow(e batch.Event) {
	if _, is := e.(batch.Recorded); is {
		d.sure = false
	}
}

// perform carries out one effect and gives what is to be told of it.
func (d *drive) perform(want batch.Effect) []batch.Event {
	switch want := want.(type) {
	case batch.Dispatch:
		d.dispatch(want)
	case batch.StorePlan:
		return d.storePlan(want)
	case batch.Look:
		said, _ := d.controls()
		k, err := truth(d.Task).Calls(anytime, d.sub.Key)
		if err != nil {
			return said
		}
		return append(append(said, d.events(k)...), batch.Looked{})
	case batch.End:
		return d.end(want)
	case batch.Stop:
		key := d.sub.Key.Call(want.Index)
		d.Tell("stop", key.String(), func() { d.coordinator.fleet.stopCall(key) })
	case batch.Finish:
		d.reply = &messages.Reply{Status: messages.ReplyCompleted, Results: want.Results}
	}
	return nil
}

func (d *drive) dispatch(want batch.Dispatch) {
	call := d.machine.Plan().Calls[want.Index]
	subject := names.Lane(want.Exclusive, call.Pool, d.sub.Key.Call(want.Index))
	job := wire.Job{
		Session: messages.SessionID(d.sub.Key.Session), Batch: messages.BatchID(d.sub.Key.Batch), Index: want.Index, CallID: call.ID,
		Tool: call.PlannedCall.Tool, Kind: call.Kind, ConcurrencySafe: !want.Exclusive, Notify: d.Name,
		Dispatch: want.Again, TakeOver: want.TakeOver, Attempt: want.Attempt, NotAfter: d.accepted.Stored.Add(BatchTTL + d.machine.Waits()),
	}
	d.coordinator.fleet.ledger.sends(d, want.Index)
	d.Tell("dispatch", subject, func() { _, _ = d.Append(subject, job) })
}

func (d *drive) storePlan(want batch.StorePlan) (events []batch.Event) {
	err := d.Insist(func() error {
		stored, err := truth(d.Task).WritePlan(anytime, d.sub.Key, want.Record, want.Expect)
		for _, p := range stored {
			events = append(events, batch.Planned{Record: p.Record, Seq: p.Seq})
		}
		return err
	})
	d.broken = d.broken || err != nil
	return events
}

func (d *drive) end(want batch.End) []batch.Event {
	key := d.sub.Key.Call(want.Index)
	if !d.claims(want.Index) {
		if want.Result.Err.Code == messages.CodeQueueTimeout && d.publishedElsewhere(key) {
			return []batch.Event{batch.Late{}}
		}
		stored, err := d.writeResult(key, want.Result)
		if err != nil {
			return nil
		}
		return []batch.Event{batch.Ended{Index: want.Index, Result: stored}}
	}
	record := wire.CallRecord{State: wire.Ended, Nonce: d.Nonce(), Attempt: want.Result.Attempt, Result: &want.Result}
	if q, _ := d.machine.Question(want.Index); q != nil {
		record.ArgsHash, record.Approval = q.ArgsHash, q
	}
	seq, err := d.write(key, record, want.Expect, world.Never)
	if lost, ok := err.(*lostTo); ok {
		return []batch.Event{recorded(want.Index, lost.newest)}
	}
	if err != nil {
		return nil
	}
	return []batch.Event{batch.Recorded{Index: want.Index, Record: record, Seq: seq}}
}

// publishedElsewhere reports, once in a drive, that another coordinator has published the job of a
// call.
func (d *drive) publishedElsewhere(key wire.CallKey) bool {
	if d.late {
		return false
	}
	pool := d.machine.Plan().Calls[key.Index].Pool
	_ = d.Ask("jobs of", key.String(), func() error {
		for _, m := range d.Stream(jobsStream).LastOfEach(names.Lane(false, pool, key), names.Lane(true, pool, key)) {
			d.late = d.late || m.Body.(wire.Job).Notify != d.Name
		}
		return nil
	})
	return d.late
}

// finish stores the reply and takes the batch out of the log, by its delivery or by its place.
func (d *drive) finish() bool {
	if d.Insist(func() error {
		_, err := truth(d.Task).WriteReply(anytime, d.accepted, *d.reply)
		return err
	}) != nil {
		return false
	}
	d.line.isOver(d)
	_ = d.Insist(func() error {
		if held := d.delivery; held != nil && !d.Knew(d.accepted.Stored) { // else its place may be another batch's now
			confirmed := false
			err := d.Ask("ack", held.Subject, func() error { confirmed = held.Ack(); return nil })
			if err == nil && confirmed {
				return nil
			}
		}
		return truth(d.Task).Remove(anytime, d.accepted)
	})
	return true
}
