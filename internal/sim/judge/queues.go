package judge

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file is the part of the ledger about workers and queues.

// IsGone checks the end of a call that no worker took. While the call waited, there must have
// been no worker for it.
func (l *Ledger) IsGone(d Drive, r messages.Result, digest string) {
	patience := map[messages.Code]time.Duration{
		messages.CodeToolVersionGone: 10 * time.Second, messages.CodeQueueTimeout: 90 * time.Second, messages.CodeWorkerLost: 90 * time.Second,
	}[r.Err.Code]
	if patience == 0 {
		return
	}
	if r.Err.Code == messages.CodeWorkerLost {
		l.batches[d.Sub.Key].silent[r.Index] = true
	}
	l.Count("calls that no worker took: " + string(r.Err.Code))
	if r.Err.Code == messages.CodeToolVersionGone && l.deserted(time.Minute+staff.Lapse) {
		l.Fail("call %d of %s ends for want of its version, and no worker of its pool is there: one may come that has it", r.Index, d.Sub.Key)
	}
	for _, w := range l.fleet.Workers() {
		free := r.Err.Code == messages.CodeToolVersionGone || w.Free
		if free && l.takesJobs(w) && !w.Leaves && w.File.Serves(r.Tool, digest) && l.calm(w.awake()) > patience {
			l.Fail("call %d of %s ends as %s, and %s serves its tool for %v", r.Index, d.Sub.Key, r.Err.Code, w.Name, l.Now.Sub(w.Since))
		}
	}
}

// Takes checks the rule for the queue of a toolset: a worker takes a job from the queue only
// if it has the tool of the job.
func (l *Ledger) Takes(a *Attempt, token string) {
	if token != staff.Pool && !a.Served {
		l.Fail("%s takes the job of call %s from queue %s, and does not have %s in that version", a.Name, a.Key, token, a.Job.Tool)
	}
}

// deserted reports whether no worker has been present for at least this long.
func (l *Ledger) deserted(age time.Duration) bool {
	for _, w := range l.fleet.Workers() {
		if l.Alive(w.Process) || w.Ended.IsZero() || l.Now.Sub(w.Ended) < age {
			return false
		}
	}
	return true
}

// awake returns since when the worker has been announced without a sleep. While a worker
// sleeps, its announcement may be deleted because of its age. If a restart of the server then
// loses the announcement too, the worker does not make it again.
func (w Worker) awake() time.Time { return latest(w.Since, w.Slept) }

// takesJobs reports whether a worker is alive, is announced, and takes jobs.
func (l *Ledger) takesJobs(w Worker) bool {
	return !w.Since.IsZero() && l.Alive(w.Process) && !w.Drains
}

// queuesMove checks that no job stays in a queue without workers while another queue has
// workers with its tool. Such a job must soon be moved. If its batch is over, it must soon be
// removed. If its call has ended or waits for a person, the job may stay until the batch ends.
func (l *Ledger) queuesMove() {
	for _, m := range l.Stream(store.Jobs).Messages() {
		token, key, err := store.Names.Job(m.Subject)
		if err != nil {
			panic(err)
		}
		account := l.batches[key.BatchKey]
		newest, _ := l.waits(key)
		job, since := m.Body.(wire.Job), m.Time
		// A call that was handed back waits for a job in the other lane, so its job in the old
		// lane is useless.
		useless := account.ended[key.Index] || newest.record.State == wire.Parked || account.handed[key.Index] && job.ConcurrencySafe
		over := account.reply != nil
		if over {
			since = latest(since, account.replied)
		}
		taken, served := false, false
		for _, w := range l.fleet.Workers() {
			if l.takesJobs(w) {
				taken = taken || w.Queue == token || token == staff.Pool
				served = served || !w.Leaves && w.File.Serves(job.Tool, job.ToolDigest)
				since = latest(since, w.awake())
			}
		}
		switch age := l.calm(since); {
		case taken, !over && useless, !over && !served && token == wire.WaitingQueue(staff.Pool):
		case !over && l.quietSince(since) && l.Now.Sub(since) > prompt, !over && age > restAtMost+slack, age > 2*SweepEvery+slack:
			l.Fail("the job of call %s is in queue %s since %v, and no worker takes jobs from there", key, token, l.Now.Sub(m.Time))
		}
	}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
