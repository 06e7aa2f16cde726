package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/lane"
)

// worker is what package lane does with its deliveries, around the real lane.Decide.
type worker struct {
	*process
	fleet  *Fleet
	policy policy
	inHand []*attempt
}

func (f *Fleet) startWorker() {
	w := &worker{process: f.start("w", f.startWorker), fleet: f, policy: f.policy}
	f.workers = append(f.workers, w)
	w.told = func(key wire.CallKey) {
		for _, a := range w.inHand {
			if a.key == key {
				a.stopped = true
			}
		}
	}
	w.spawn("pull", func(t *task) {
		for {
			t.wait(never, func() bool { return len(w.inHand) < Slots && f.Waiting(f.jobs) })
			if d := t.pull(f.jobs); d != nil {
				w.take(d)
			}
		}
	})
}

// attempt is one job on its way through a worker.
type attempt struct {
	journal
	worker   *worker
	job      wire.Job
	key      wire.CallKey
	delivery *Delivery // the newest of the job
	nonce    string
	last     uint64          // the newest record that is ours or that we claim behind
	record   wire.CallRecord // that record
	input    json.RawMessage // frozen
	argsHash string          // of input
	claimed  bool
	run      *run      // of the tool; nil before it starts
	stopped  bool      // nobody wants the run any more
	over     bool      // the tool has ended, or was killed
	safe     time.Time // until then nobody else may hold the claim to have lapsed; a moment for the kill is taken off
}

// take has a delivery in hand, unless it is one more of a job that is.
func (w *worker) take(d *Delivery) {
	job := d.Body.(wire.Job)
	key := wire.BatchKey{Tenant: messages.OneTenant, Session: string(job.Session), Batch: string(job.Batch)}.Call(job.Index)
	for _, a := range w.inHand {
		if a.key == key && a.job.TakeOver == job.TakeOver && a.job.ConcurrencySafe == job.ConcurrencySafe {
			a.delivery = d
			return
		}
	}
	a := &attempt{worker: w, job: job, key: key, delivery: d}
	w.inHand = append(w.inHand, a)
	w.spawn("attempt", func(t *task) {
		a.journal, a.nonce = journal{t}, t.nonce()
		a.handle()
		a.over = true
		w.inHand = without(w.inHand, a)
	})
}

func (a *attempt) handle() {
	switch {
	case a.Now.After(a.job.NotAfter):
		a.term()
		return
	case a.job.TakeOver > 0 || a.job.Dispatch > 0 || a.delivery.Count > 1:
		if settled, err := a.settled(); settled || err != nil {
			return
		}
	}
	a.worker.spawn("signs", a.giveSigns)
	if a.job.ConcurrencySafe && a.worker.fleet.handsBack(a.job.Tool) {
		a.giveBack()
		return
	}
	a.freeze()
	if !a.allowed() {
		return
	}
	if a.claims() {
		mine, err := a.claim()
		if err != nil {
			return // lost, or silence for so long that the lease is
		}
		if !mine {
			if settled, err := a.settled(); !settled && err == nil {
				a.term()
			}
			return
		}
	}
	a.work()
}

func (a *attempt) claims() bool { return a.job.Kind == messages.KindWrite || a.job.TakeOver > 0 }

// settled looks into the journal, and settles the delivery where that says that there is nothing to do here.
func (a *attempt) settled() (bool, error) {
	if !a.claims() {
		r, found, err := a.result(a.key)
		if err != nil {
			return false, err
		}
		if found {
			a.say(batch.Ended{Index: a.key.Index, Result: r})
			a.ack()
			return true, nil
		}
		if a.job.Dispatch == 0 && a.delivery.Count == 1 { // nobody has had it in hand, who could have parked it
			return false, nil
		}
	}
	newest, err := a.newest(a.key)
	if err != nil {
		return false, err
	}
	switch lane.Decide(a.job.TakeOver, newest.record, newest.seq) {
	case lane.Tell:
		a.say(batch.Ended{Index: a.key.Index, Result: *newest.record.Result})
		a.ack()
		return true, nil
	case lane.Leave:
		if newest.record.State == wire.Parked { // whoever parked it may not have told this coordinator
			a.say(recorded(a.key.Index, newest))
		}
		a.term()
		return true, nil
	case lane.TakeOver:
		a.last, a.record = newest.seq, newest.record
	}
	return false, nil
}

// giveBack is for a call whose frozen input turns out to be one that must run alone.
func (a *attempt) giveBack() {
	if a.handBack(a.key) != nil {
		return
	}
	a.term()
	a.say(batch.HandedBack{Index: a.key.Index})
}

// claim marks in the journal that the call is now started. It reports whether the call is ours.
func (a *attempt) claim() (mine bool, err error) {
	record := wire.CallRecord{
		State: wire.Claimed, Nonce: a.nonce, Attempt: a.record.Attempt + 1, Worker: a.name,
		OnCrash: a.worker.fleet.tool(a.job.Tool).OnCrash, LeaseMS: Lease.Milliseconds(), Lapsed: a.record.Lapsed,
		ArgsHash: a.argsHash, Input: a.input, Approval: a.record.Approval,
	}
	if a.job.Kind != messages.KindWrite { // nothing is changed by another run
		record.OnCrash = messages.OnCrashIdempotent
	}
	if q := record.Approval; q != nil && q.ArgsHash == a.argsHash { // the question holds the input
		record.Input = nil
	}
	if before := a.record; before.State == wire.Claimed || before.State == wire.Renewed {
		record.Lapsed++
	}
	asked := a.Now
	var lost *lostTo
	if err := a.insist(func() error {
		a.last, err = a.claimBehind(record)
		if l, ok := err.(*lostTo); ok {
			lost = l
			return nil
		}
		return err
	}); err != nil {
		return false, err
	}
	if lost != nil {
		return false, nil
	}
	record.Fence = a.last
	a.record, a.claimed = record, true
	if a.Now.Sub(asked) > Lease/3 { // nothing is started on half a lease
		asked = a.Now
		if err := a.renew(never); err != nil {
			return false, err
		}
	}
	a.safe = asked.Add(Lease - Grace)
	a.worker.spawn("keeper", func(t *task) { a.keep(journal{t}) })
	a.worker.spawn("watchdog", a.watch)
	return true, nil
}

func (a *attempt) claimBehind(record wire.CallRecord) (uint64, error) {
	seq, err := a.write(a.key, record, a.last, never)
	if err != nil {
		return a.last, err
	}
	return seq, nil
}

// watch kills the tool when its lease was not renewed in time, whatever else the worker waits for.
func (a *attempt) watch(t *task) {
	for !a.over {
		until := a.safe
		t.wait(until, func() bool { return a.over })
		if !a.over && !t.Now.Before(a.safe) {
			a.loseLease()
		}
	}
}

func (a *attempt) loseLease() {
	a.tally["leases lost"]++
	a.over = true
	if a.run != nil {
		a.worker.fleet.over(a)
		a.run.dead = true
	}
}

// keep renews the lease at every third of it.
func (a *attempt) keep(j journal) {
	wait := Lease / 3
	for {
		j.wait(j.Now.Add(wait), func() bool { return a.over })
		if a.over {
			return
		}
		asked := j.Now
		err := a.renewBy(j, asked.Add(Lease/5))
		switch _, lost := err.(*lostTo); {
		case a.over:
			return
		case err == nil:
			wait = Lease/3 - j.Now.Sub(asked)
			a.safe = asked.Add(Lease - Grace)
			a.sayBy(j.task, batch.Recorded{Index: a.key.Index, Record: a.record, Seq: a.last})
		case lost:
			a.loseLease()
			return
		default:
			wait = 250 * time.Millisecond
		}
	}
}

func (a *attempt) renew(deadline time.Time) error { return a.renewBy(a.journal, deadline) }

func (a *attempt) renewBy(j journal, deadline time.Time) error {
	for {
		record := a.record
		record.State, record.Nonce = wire.Renewed, j.nonce()
		seq, err := j.write(a.key, record, a.last, deadline)
		if lost, ok := err.(*lostTo); ok && a.isOurs(lost.newest) { // stored after all, at a time that nobody here knows
			a.last, a.record = lost.newest.seq, lost.newest.record
			continue
		}
		if err == nil {
			a.last, a.record = seq, record
		}
		return err
	}
}

// isOurs reports whether a record continues our claim.
func (a *attempt) isOurs(e entry) bool {
	return e.record.State == wire.Renewed && e.record.Fence == a.record.Fence && a.record.Fence != 0
}

// work runs the tool, and stores what became of it.
func (a *attempt) work() {
	if a.over {
		return // the lease is lost before anything was started
	}
	a.run = a.worker.fleet.began(a)
	a.wait(a.Now.Add(a.run.takes), func() bool { return a.over || a.stopped })
	if a.over {
		return // killed: what is known is in the journal, and the job comes again
	}
	a.over = true
	a.worker.fleet.over(a)
	result := a.run.end(a.Now, a.stopped)
	if result.Err != nil && result.Err.Retryable && a.tries() < attempts {
		a.release(result.Err)
		return
	}
	a.finish(result)
}

// attempts is how often a call is tried that fails in a way that another attempt may cure.
const attempts = 3

// tries counts the attempts of the call, this one included.
func (a *attempt) tries() int {
	if a.claims() {
		return a.record.Attempt
	}
	return a.job.Attempt + a.delivery.Count
}

// release gives up an attempt that is known not to have been applied, for another one after a while: one that
// claimed in its journal, any other by telling the coordinator.
func (a *attempt) release(why *messages.Error) {
	const after = 500 * time.Millisecond
	if !a.claims() { // the job stays until the coordinator replaces it by one that knows of the attempt
		d := a.delivery
		a.nak(d, after+AckWait/3)
		said := notice{a.key, batch.LetGo{Index: a.key.Index, After: after, Attempt: a.tries()}, d.Seq}
		a.tell("notice", fmt.Sprintf("%s to %s", a.key, a.job.Notify), func() { a.Publish(names.Notify(a.job.Notify), said) })
		return
	}
	record := a.record
	record.State, record.Nonce, record.RetryAfterMS, record.Error = wire.Released, a.nonce+"-released", after.Milliseconds(), why
	_ = a.insist(func() error {
		seq, err := a.close(record)
		switch lost, ok := err.(*lostTo); {
		case err == nil:
			a.ack()
			a.say(batch.Recorded{Index: a.key.Index, Record: record, Seq: seq})
		case ok && lost.newest.record.State == wire.Ended:
			a.ack()
			return nil
		case ok:
			return nil
		}
		return err
	})
}

// finish stores the result. What is stored counts, whoever stored it.
func (a *attempt) finish(result messages.Result) {
	_ = a.insist(func() error {
		stored, err := a.store(result)
		if lost, ok := err.(*lostTo); ok {
			if lost.newest.record.State == wire.Ended {
				a.ack()
			}
			return nil
		}
		if err == nil {
			a.say(batch.Ended{Index: a.key.Index, Result: stored})
			a.ack()
		}
		return err
	})
}

func (a *attempt) store(result messages.Result) (messages.Result, error) {
	if !a.claims() {
		return a.writeResult(a.key, result)
	}
	record := a.record
	record.State, record.Nonce, record.Result = wire.Ended, a.nonce+"-end", &result
	_, err := a.close(record)
	return result, err
}

// close writes the record that ends our claim, or the call, behind our newest one.
func (a *attempt) close(record wire.CallRecord) (uint64, error) {
	for {
		seq, err := a.write(a.key, record, a.last, never)
		lost, ok := err.(*lostTo)
		if !ok || !a.isOurs(lost.newest) {
			return seq, err
		}
		a.last = lost.newest.seq
	}
}

// giveSigns tells broker and coordinator that the call is alive.
func (a *attempt) giveSigns(t *task) {
	for wait := 100 * time.Millisecond; ; wait = AckWait / 3 {
		t.wait(t.Now.Add(wait), func() bool { return a.over })
		if a.over {
			return
		}
		held := a.delivery
		t.tell("progress", held.Subject, held.InProgress)
		if a.claimed {
			a.sayBy(t, batch.Recorded{Index: a.key.Index, Record: a.record, Seq: a.last})
		}
		a.sayBy(t, batch.Running{Index: a.key.Index})
	}
}

func (a *attempt) say(e batch.Event) { a.sayBy(a.task, e) }

func (a *attempt) sayBy(t *task, e batch.Event) {
	t.tell("notice", fmt.Sprintf("%s to %s", a.key, a.job.Notify), func() { t.Publish(names.Notify(a.job.Notify), notice{key: a.key, said: e}) })
}

func (a *attempt) ack() {
	d := a.delivery
	a.tell("ack", d.Subject, func() { d.Ack() })
}

func (a *attempt) term() {
	d := a.delivery
	a.tell("term", d.Subject, d.Term)
}
