package sim

import (
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// drive is the driver of one batch.
type drive struct {
	journal
	coordinator *coordinator
	accepted    records.Accepted
	sub         *Submission
	machine     *batch.Machine
	delivery    *broker.Delivery // nil if there is no delivery of the batch
	heard       []wire.Notice
	broken      bool // no driver can bring the batch to its end
	reply       *messages.Reply
	over        bool // the driver has ended
	nudged      bool // another task has asked the driver to read the journal now
	staffed     bool // workers have come or gone
	jobs        *placement.Jobs
	late        bool // another coordinator may drive the batch, or has driven it
	sure        bool // the session's controls were read after the newest known record
	born        time.Time
	isFirst     bool // the batch has its first delivery

	line     *line
	turn     batch.Turn // the newest turn that the machine got
	turned   bool       // the turn has changed
	finished bool       // the batch has left the log; set when the driver ends
}

// run drives the batch, and reports whether the batch has left the log.
func (d *drive) run() (finished bool) {
	defer func() { d.over = true }()
	d.jobs = d.newJobs()
	defer func() { d.leaveQueues(finished) }()
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
	first, waited := d.accepted.Stored.After(d.line.since), d.Now.Sub(d.born) > AckWait/2
	again, resumed := !first || waited || d.delivery == nil || d.delivery.Count > 1 || d.Knew(d.accepted.Stored), false
	d.isFirst = !again
	if !again { // a coordinator reads the journal later while calls wait for long
		config.FirstPoll += time.Duration(d.coordinator.fleet.Rng.Int64N(int64(Poll - config.FirstPoll)))
	}
	d.machine = batch.New(plan.New(d.sub.Calls, d.coordinator.fleet.staff.Tools), config)
	// Read the jobs first, because a worker stores the end of a call before it removes the
	// job.
	if again {
		err := d.jobs.Adopt(anytime, d.Now)
		if err == nil {
			resumed, err = d.recall()
		}
		if err != nil {
			return false
		}
		d.late = resumed || !first
	}
	said, err := d.controls()
	if err != nil {
		return false
	}
	for _, e := range said {
		d.machine.Step(d.Now, e)
	}
	d.sure = again
	d.step(batch.Begin{Resumed: resumed, Late: d.late, Again: again, Jobs: d.jobs.Any()})
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
		d.Wait(wake, func() bool { return len(d.heard) > 0 || d.nudged || d.turned || d.staffed || d.line.ends() })
		if d.line.ends() {
			return false
		}
		d.line.batches.Rest(d, time.Time{})
		switch {
		case len(d.heard) > 0:
			n := d.heard[0]
			d.heard = d.heard[1:]
			if n.LetGo != nil && n.LetGo.Job > 0 {
				_ = d.Ask("remove job", n.Batch, func() error { d.Delete(jobsStream, n.LetGo.Job); return nil })
			}
			event := recall.Notice(n, d.recalled())
			if e, is := event.(batch.LetGo); is {
				d.jobs.GaveBack(e.Index)
			}
			if event != nil {
				d.step(event)
			}
		case d.nudged:
			d.nudged = false
			d.look()
		case d.staffed:
		default: // step takes the changed turn
			d.turned = false
			d.step(batch.Tick{})
		}
		if d.staffed && d.reply == nil && !d.broken {
			d.moveJobs()
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

// recall gives the content of the journal to the machine.
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

// controls returns the aborts and steering messages of the session that concern this batch.
func (d *drive) controls() ([]batch.Event, error) {
	all, err := truth(d.Task).Controls(anytime, d.sub.Key.Tenant, d.sub.Key.Session)
	return recall.Controls(all, d.accepted, BatchTTL), err
}

func (d *drive) events(k records.Known) []batch.Event { return recall.Calls(k, d.recalled()) }

// recalled returns what package recall needs to know about the batch.
func (d *drive) recalled() recall.Batch {
	return recall.Batch{
		Calls: len(d.sub.Plan.Calls), Claims: d.machine.Claims, Local: local,
		IsOf: func(int, messages.Result) bool { return true },
	}
}

// local converts a time of the server to the clock of the processes. In the simulation the two
// clocks are the same.
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

// follow records that the journal has a newer record, so that the session's controls must be
// read again.
func (d *drive) follow(e batch.Event) {
	if _, is := e.(batch.Recorded); is {
		d.sure = false
	}
}

// perform carries out one effect and returns the events that it causes.
func (d *drive) perform(want batch.Effect) []batch.Event {
	switch want := want.(type) {
	case batch.Dispatch:
		return d.dispatch(want)
	case batch.Tell:
		d.jobs.Forget(want.Result.Index)
	case batch.StorePlan:
		return d.storePlan(want)
	case batch.Look:
		d.staffed = true // makes run check that the jobs are in the right queues
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

func (d *drive) dispatch(want batch.Dispatch) []batch.Event {
	call := d.machine.Plan().Calls[want.Index]
	token, events := d.jobs.For(anytime, d.Now, want.Index)
	if token == "" {
		return events
	}
	subject := names.Lane(want.Exclusive, token, d.sub.Key.Call(want.Index))
	job := wire.Job{
		Session: messages.SessionID(d.sub.Key.Session), Batch: messages.BatchID(d.sub.Key.Batch), Index: want.Index, CallID: call.ID,
		Tool: call.PlannedCall.Tool, ToolDigest: call.ToolDigest, Kind: call.Kind, ConcurrencySafe: !want.Exclusive, Input: call.Input, Notify: d.Name,
		Dispatch: want.Again, TakeOver: want.TakeOver, Attempt: want.Attempt, NotAfter: d.accepted.Stored.Add(BatchTTL + d.machine.Waits()),
	}
	d.coordinator.fleet.judge.Sends(d.view(), want.Index)
	d.Tell("dispatch", subject, func() { _, _ = d.Append(subject, job) })
	return events
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
	if want.Result.Err.Code == messages.CodeToolVersionGone {
		if events, gone := d.isGone(want.Index); !gone {
			return events
		}
	}
	noWorker := want.Result.Err.Code == messages.CodeQueueTimeout || want.Result.Err.Code == messages.CodeToolVersionGone
	if !d.claims(want.Index) {
		if noWorker && d.publishedElsewhere(key) {
			return []batch.Event{batch.Late{}}
		}
		d.coordinator.fleet.judge.IsGone(d.view(), want.Result, d.machine.Plan().Calls[want.Index].ToolDigest)
		stored, err := d.writeResult(key, want.Result)
		if err != nil {
			return nil
		}
		d.withdraw(want.Index)
		return []batch.Event{batch.Ended{Index: want.Index, Result: stored}}
	}
	record := wire.CallRecord{State: wire.Ended, Nonce: d.Nonce(), Attempt: want.Result.Attempt, Result: &want.Result}
	if q, _ := d.machine.Question(want.Index); q != nil {
		record.ArgsHash, record.Approval = q.ArgsHash, q
	}
	d.coordinator.fleet.judge.IsGone(d.view(), want.Result, d.machine.Plan().Calls[want.Index].ToolDigest)
	seq, err := d.write(key, record, want.Expect, world.Never)
	if lost, ok := err.(*lostTo); ok {
		return []batch.Event{recorded(want.Index, lost.newest)}
	}
	if err != nil {
		return nil
	}
	d.withdraw(want.Index)
	return []batch.Event{batch.Recorded{Index: want.Index, Record: record, Seq: seq}}
}

// publishedElsewhere reports whether another coordinator has published the job of a call. It
// returns true at most once for each driver.
func (d *drive) publishedElsewhere(key wire.CallKey) bool {
	if d.late {
		return false
	}
	_ = d.Ask("jobs of", key.String(), func() error {
		for _, m := range d.Stream(jobsStream).LastOfEach(names.JobOf(key)...) {
			d.late = d.late || m.Body.(wire.Job).Notify != d.Name
		}
		return nil
	})
	return d.late
}

// finish stores the reply and removes the batch from the log. It removes the batch by its
// delivery, or by its sequence if there is no delivery.
func (d *drive) finish() bool {
	if d.Insist(func() error {
		_, err := truth(d.Task).WriteReply(anytime, d.accepted, *d.reply)
		return err
	}) != nil {
		return false
	}
	d.line.isOver(d)
	_ = d.Insist(func() error {
		// After a restart, the sequence in the delivery may be that of another batch.
		if held := d.delivery; held != nil && !d.Knew(d.accepted.Stored) {
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

// letGo hands an unfinished batch back to the broker.
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
