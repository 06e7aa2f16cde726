package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// onNotice passes a worker's notice on to the machine.
func (d *batchRun) onNotice(ctx context.Context, n wire.Notice) {
	event := recall.Notice(n, d.recalled(ctx))
	switch e := event.(type) {
	case nil:
		return
	case batch.Ended:
		d.noteWait(e.Index, e.Result)
	case batch.Recorded:
		d.noteRan(e.Index, e.Record)
	case batch.LetGo:
		d.removeJob(ctx, n)
		if !d.jobs.Holds(e.Index, n.LetGo.Queue) {
			return // the call now has another job, in another queue
		}
		d.jobs.GaveBack(e.Index)
	}
	d.step(ctx, event)
}

// noteWait adds the waiting time of a call to the mean in d.pace.
func (d *batchRun) noteWait(index int, result messages.Result) {
	if sent, known := d.sent[index]; known {
		delete(d.sent, index)
		d.pace.waited(time.Since(sent) - time.Duration(result.DurationMS*float64(time.Millisecond)))
	}
}

// removeJob deletes the job of a failed attempt from the queue, because its worker has left it
// there. The next attempt gets a new job.
func (d *batchRun) removeJob(ctx context.Context, n wire.Notice) {
	if n.LetGo.Job == 0 {
		return
	}
	if err := d.queue.removeAt(ctx, n.LetGo.Job); err != nil {
		d.log.Debug("the job of a failed attempt was not removed; the broker delivers it again", d.callAttr(n.Index), "err", err)
	}
}

// look reads the journal and gives its news to the machine. It runs when another goroutine has
// called lookSoon because the journal may have something new.
func (d *batchRun) look(ctx context.Context) {
	if _, rests := d.machine.Rest(); rests {
		d.askLeader(ctx)
		return
	}
	for _, event := range d.lookAll(ctx) {
		d.step(ctx, event)
	}
}

// recorded returns the record of a call as an event.
func (d *batchRun) recorded(ctx context.Context, index int, record wire.CallRecord, seq uint64) batch.Recorded {
	d.noteRan(index, record)
	return recall.Recorded(index, record, seq, func(t time.Time) time.Time { return d.conn.Local(ctx, t) })
}

// lookAll reads the journal about the open calls, and the controls of the session. It returns
// both as events. If a read fails, the next poll repeats it.
func (d *batchRun) lookAll(ctx context.Context) []batch.Event {
	open := d.machine.Open()
	if len(open) == 0 {
		return nil
	}
	var controls []batch.Event
	var controlsErr error
	var reading sync.WaitGroup
	reading.Go(func() { controls, controlsErr = d.controls(ctx) })
	known, err := d.journal.Calls(ctx, d.accepted.Key, open...)
	reading.Wait()
	if controlsErr != nil {
		d.log.Log(ctx, logfields.RetryLevel(controlsErr), "the controls of the session cannot be read; trying again at the next poll", "err", controlsErr)
	}
	if err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "the journal cannot be read; trying again at the next poll", "err", err)
		return controls
	}
	return append(append(controls, d.known(ctx, known)...), batch.Looked{})
}

// known converts records and results of the journal into events.
func (d *batchRun) known(ctx context.Context, known journal.Known) []batch.Event {
	for _, err := range known.Unread {
		d.log.Error("a record in the journal cannot be read and is left out; inspect the stream of calls", "err", err)
	}
	events := recall.Calls(known, d.recalled(ctx))
	for _, ev := range events {
		if e, is := ev.(batch.Recorded); is {
			d.noteRan(e.Index, e.Record)
		}
	}
	return events
}

// recalled returns what package recall needs to know of the batch.
func (d *batchRun) recalled(ctx context.Context) recall.Batch {
	return recall.Batch{
		Calls: len(d.in.Calls), Claims: d.machine.Claims, IsOf: d.isOf,
		Local: func(t time.Time) time.Time { return d.conn.Local(ctx, t) },
	}
}

// noteRan remembers what a record says about the run of a call, for the audit log.
func (d *batchRun) noteRan(index int, record wire.CallRecord) {
	if ran, ok := audit.RanOf(record); ok {
		d.ran[index] = ran
	}
}

// isOf reports whether a result belongs to the call at index i. It compares the index, the
// tool and the call id. It leaves the id out if that is not valid UTF-8, because a record
// cannot hold such an id unchanged.
func (d *batchRun) isOf(i int, r messages.Result) bool {
	id := d.in.Calls[i].ID
	if r.Index == i && r.Tool == d.machine.Plan().Calls[i].PlannedCall.Tool && (r.CallID == id || !utf8.ValidString(string(id))) {
		return true
	}
	d.log.Error("a stored result names another call and is left out; two batches may have had one id", d.callAttr(i), "its_index", r.Index, "its_call", logfields.Short(r.CallID), "its_tool", logfields.Short(r.Tool))
	return false
}

// errOtherPlan says that the journal holds the plan of another batch with the same id.
var errOtherPlan = errors.New("the journal holds the plan of another body under this id")

// samePlan returns errOtherPlan if the plan record was made for another body.
func samePlan(rec wire.PlanRecord, digest string) error {
	if rec.Digest != digest {
		return fmt.Errorf("%w (digest %s)", errOtherPlan, rec.Digest)
	}
	return nil
}

// storePlan stores the plan record and returns the stored records as events. If another
// coordinator has stored a plan first, the events show that plan. storePlan tries until it
// succeeds, because no exclusive call and no write may start before a plan is stored.
func (d *batchRun) storePlan(ctx context.Context, want batch.StorePlan) []batch.Event {
	var events []batch.Event
	d.insist(ctx, "storing the plan", func() error {
		stored, err := d.journal.WritePlan(ctx, d.accepted.Key, want.Record, want.Expect)
		for _, entry := range stored {
			if err := samePlan(entry.Record, d.digest); err != nil {
				d.fatal = err
				return nil
			}
			events = append(events, batch.Planned{Record: entry.Record, Seq: entry.Seq})
		}
		return err
	})
	return events
}

// end stores the result of a call that no worker will end. It returns an event about what the
// journal then holds: this result, or the record that a worker wrote first.
func (d *batchRun) end(ctx context.Context, want batch.End) []batch.Event {
	key := d.accepted.Key.Call(want.Index)
	if want.Result.Err.Code == messages.CodeToolVersionGone {
		if events, gone := d.isGone(ctx, want.Index); !gone {
			return events
		}
	}
	d.log.Warn("a call was ended by the coordinator", d.callAttr(want.Index), "tool", want.Result.Tool, "status", want.Result.Status, "code", want.Result.Err.Code)
	if !d.machine.Claims(want.Index) {
		if noWorker(want.Result.Err.Code) && d.publishedElsewhere(ctx, want.Index) {
			return []batch.Event{batch.Late{}}
		}
		stored, err := d.journal.WriteResult(ctx, key, want.Result)
		if err != nil {
			d.log.Log(ctx, logfields.RetryLevel(err), "the end of a call was not stored; trying again at the next poll", d.callAttr(want.Index), "err", err)
			return nil
		}
		d.withdraw(ctx, want.Index)
		return []batch.Event{batch.Ended{Index: want.Index, Result: stored}}
	}
	record := wire.CallRecord{
		V: messages.Version, State: wire.Ended, Nonce: rand.Text(), Attempt: want.Result.Attempt, Result: &want.Result, Span: d.machine.Span(want.Index),
	}
	ran := d.ran[want.Index]
	record.ArgsHash, record.ToolDigest = ran.ArgsHash, ran.ToolDigest
	q, asked := d.machine.Question(want.Index)
	if q != nil {
		record.ArgsHash, record.ToolDigest, record.Approval = q.ArgsHash, q.ToolDigest, approval.WithoutArguments(*q)
		want.Result.Permission = approval.Permission(*q, "ask")
	}
	if record.ArgsHash != "" {
		want.Result.Trail = &messages.Trail{ArgsHash: record.ArgsHash}
	}
	seq, err := d.journal.Write(ctx, key, record, want.Expect)
	var lost *journal.Lost
	switch {
	case errors.As(err, &lost):
		return []batch.Event{d.recorded(ctx, want.Index, lost.Newest.Record, lost.Newest.Seq)}
	case err != nil:
		d.log.Log(ctx, logfields.RetryLevel(err), "the end of a call was not stored; trying again at the next poll", d.callAttr(want.Index), "err", err)
		return nil
	}
	d.withdraw(ctx, want.Index)
	if asked && want.Result.Err.Code == messages.CodeApprovalExpired {
		d.questions.Audit(ctx, key, messages.AuditExpired, *q)
	}
	return []batch.Event{batch.Recorded{Index: want.Index, Record: record, Seq: seq}}
}

// isGone reports whether no worker has the tool of a call. It reads the list of workers again:
// while this process was stopped by its machine, it may have missed a worker that came.
func (d *batchRun) isGone(ctx context.Context, index int) (events []batch.Event, gone bool) {
	fleet, err := d.toolsets.read(ctx)
	if err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "the workers cannot be read, so a call waits on for one; trying again at the next poll", d.callAttr(index), "err", err)
		return nil, false
	}
	if events, gone = d.jobs.Gone(index, fleet); !gone {
		delete(d.missed, index)
		d.recheck = true
	}
	return events, gone
}

// noWorker reports whether the code means that no worker took the call.
func noWorker(code messages.Code) bool {
	return code == messages.CodeQueueTimeout || code == messages.CodeToolVersionGone
}

// publishedElsewhere reports whether another coordinator has published the job of a call.
// If so, the worker of that job sends its notices to that coordinator and not here. The
// method returns true at most once in a run.
//
// Even the first delivery of a batch needs this check: another coordinator may have driven
// the batch without a delivery, as a batch behind the head of the session.
func (d *batchRun) publishedElsewhere(ctx context.Context, index int) bool {
	if d.late {
		return false
	}
	queued, err := d.queue.of(ctx, index)
	for _, msg := range queued {
		var job wire.Job
		d.late = d.late || err == nil && rawjson.Unmarshal(msg.Data, &job) == nil && job.Notify != d.id
	}
	return d.late
}

// withdraw deletes the job of a call that has ended from the queue.
func (d *batchRun) withdraw(ctx context.Context, index int) {
	if err := d.queue.withdraw(ctx, index); err != nil {
		d.log.Debug("the job of an ended call was not withdrawn; its worker finds that the call has ended", d.callAttr(index), "err", err)
	}
}
