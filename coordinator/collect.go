package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// heard follows a worker's word. A result in it is what the worker stored, so it saves a read.
func (d *drive) heard(ctx context.Context, n wire.Notice) {
	if n.Index < 0 || n.Index >= len(d.in.Calls) {
		return
	}
	switch {
	case n.Result != nil && d.isOf(n.Index, *n.Result):
		d.step(ctx, batch.Ended{Index: n.Index, Result: *n.Result})
	case n.Record != nil && n.Record.Result == nil:
		d.step(ctx, d.recorded(ctx, n.Index, *n.Record, n.Seq))
	case n.Hand != nil:
		d.step(ctx, batch.HandedBack{Index: n.Index})
	case n.LetGo != nil:
		d.removeJob(ctx, n)
		d.step(ctx, batch.LetGo{Index: n.Index, After: time.Duration(n.LetGo.AfterMS) * time.Millisecond, Attempt: n.LetGo.Attempt})
	case n.Running:
		d.step(ctx, batch.Running{Index: n.Index})
	}
}

// removeJob takes the job of a failed attempt out of the queue, where its worker has left it: the next one
// that is published knows of the attempt.
func (d *drive) removeJob(ctx context.Context, n wire.Notice) {
	if n.LetGo.Job == 0 {
		return
	}
	if err := d.conn.Delete(ctx, d.names.Stream(bus.Jobs), n.LetGo.Job); err != nil {
		d.log.Debug("the job of a failed attempt is not removed; the broker delivers it again", d.call(n.Index), "err", err)
	}
}

// look reads the journal and tells the machine what it holds.
func (d *drive) look(ctx context.Context) {
	if _, rests := d.machine.Rest(); rests {
		d.lookOnce(ctx)
		return
	}
	for _, told := range d.lookAll(ctx) {
		d.step(ctx, told)
	}
}

// recorded is the record of a call as an event.
func (d *drive) recorded(ctx context.Context, index int, record wire.CallRecord, seq uint64) batch.Recorded {
	if ran, ok := audit.RanOf(record); ok {
		d.ran[index] = ran
	}
	event := batch.Recorded{Index: index, Record: record, Seq: seq}
	if record.State == wire.Parked && record.Approval != nil {
		event.Expires = d.conn.Local(ctx, record.Approval.Expires)
	}
	return event
}

func (d *drive) lookAll(ctx context.Context) []batch.Event {
	open := d.machine.Open()
	if len(open) == 0 {
		return nil
	}
	var said []batch.Event
	var unheard error
	var heard sync.WaitGroup
	heard.Go(func() { said, unheard = d.controls(ctx) })
	known, err := d.journal.Calls(ctx, d.accepted.Key, open...)
	heard.Wait()
	if unheard != nil {
		d.log.Log(ctx, logfields.RetryLevel(unheard), notHeard, "err", unheard)
	}
	if err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "the journal cannot be read; it is tried again at the next poll", "err", err)
		return said
	}
	return append(append(said, d.known(ctx, known)...), batch.Looked{})
}

// known is records and results as events. What does not belong to a call of this batch is nobody's: a call
// that claims, or has a journal for another reason, is what that says, any other what its result says, and both name
// the call.
func (d *drive) known(ctx context.Context, known journal.Known) []batch.Event {
	var events []batch.Event
	for _, key := range known.Hands { // first: a record tells of a later time
		if key.Index < len(d.in.Calls) {
			events = append(events, batch.HandedBack{Index: key.Index})
		}
	}
	recorded := map[int]bool{}
	for _, e := range known.Records {
		i := e.Key.Index
		if i < len(d.in.Calls) && (e.Record.Result == nil || d.isOf(i, *e.Record.Result)) {
			recorded[i] = true
			events = append(events, d.recorded(ctx, i, e.Record, e.Seq))
		}
	}
	for _, e := range known.Results {
		if i := e.Key.Index; i < len(d.in.Calls) && !recorded[i] && !d.machine.Claims(i) && d.isOf(i, e.Result) {
			events = append(events, batch.Ended{Index: i, Result: e.Result})
		}
	}
	for _, err := range known.Unread {
		d.log.Error("a record that cannot be read is left out", "err", err)
	}
	return events
}

// isOf reports whether a result is of the call at an index. An id that is no UTF-8 does not survive our
// records; such a call is known by its place.
func (d *drive) isOf(i int, r messages.Result) bool {
	id := d.in.Calls[i].ID
	if r.Index == i && r.Tool == d.machine.Plan().Calls[i].PlannedCall.Tool && (r.CallID == id || !utf8.ValidString(string(id))) {
		return true
	}
	d.log.Error("a result that is not of this call is left out", d.call(i), "its_index", r.Index, "its_call", logfields.Short(r.CallID), "its_tool", logfields.Short(r.Tool))
	return false
}

// errOtherPlan: the journal holds the plan of another body under the batch's id.
var errOtherPlan = errors.New("the journal holds the plan of another body under this id")

// samePlan refuses the plan of another body under the same id.
func (d *drive) samePlan(rec wire.PlanRecord) error {
	if rec.Digest != d.digest {
		return fmt.Errorf("%w (digest %s)", errOtherPlan, rec.Digest)
	}
	return nil
}

// storePlan stores the plan record and tells what is then stored: ours, or that of a coordinator that was faster.
// Nothing exclusive can start before, so there is nothing better to do than to go on trying.
func (d *drive) storePlan(ctx context.Context, want batch.StorePlan) []batch.Event {
	var events []batch.Event
	d.insist(ctx, "store plan", func() error {
		stored, err := d.journal.WritePlan(ctx, d.accepted.Key, want.Record, want.Expect)
		for _, entry := range stored {
			if err := d.samePlan(entry.Record); err != nil {
				d.fatal = err
				return nil
			}
			events = append(events, batch.Planned{Record: entry.Record, Seq: entry.Seq})
		}
		return err
	})
	return events
}

// end stores a result for a call that nobody runs, and tells what is then stored: it, or the record of a
// worker that was faster.
func (d *drive) end(ctx context.Context, want batch.End) []batch.Event {
	key := d.accepted.Key.Call(want.Index)
	d.log.Warn("call ended from outside", d.call(want.Index), "tool", want.Result.Tool, "status", want.Result.Status, "code", want.Result.Err.Code)
	if !d.machine.Claims(want.Index) {
		if want.Result.Err.Code == messages.CodeQueueTimeout && d.publishedElsewhere(ctx, want.Index) {
			return []batch.Event{batch.Late{}}
		}
		stored, err := d.journal.WriteResult(ctx, key, want.Result)
		if err != nil {
			d.log.Log(ctx, logfields.RetryLevel(err), "the end of a call is not stored; it is tried again", d.call(want.Index), "err", err)
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
		d.log.Log(ctx, logfields.RetryLevel(err), "the end of a call is not stored; it is tried again", d.call(want.Index), "err", err)
		return nil
	}
	d.withdraw(ctx, want.Index)
	if asked && want.Result.Err.Code == messages.CodeApprovalExpired {
		d.questions.Audit(ctx, key, messages.AuditExpired, *q)
	}
	return []batch.Event{batch.Recorded{Index: want.Index, Record: record, Seq: seq}}
}

// publishedElsewhere reports, once in a drive, that the job of a call was published by another coordinator: whoever runs it tells
// that one, and here nothing is heard of it. A batch that came to be driven as the next head may be delivered only
// then, for the first time and to another, so a first delivery does not mean that nobody was before.
func (d *drive) publishedElsewhere(ctx context.Context, index int) bool {
	if d.late {
		return false
	}
	queued, err := d.queued(ctx, index)
	for _, msg := range queued {
		var job wire.Job
		d.late = d.late || err == nil && json.Unmarshal(msg.Data, &job) == nil && job.Notify != d.id
	}
	return d.late
}

// queued is the jobs of a call that are in its lanes, queued or in the hands of workers.
func (d *drive) queued(ctx context.Context, index int) ([]bus.Msg, error) {
	key, pool := d.accepted.Key.Call(index), d.machine.Plan().Calls[index].Pool
	return d.conn.LastOfEach(ctx, d.names.Stream(bus.Jobs), d.names.Lane(false, pool, key), d.names.Lane(true, pool, key))
}

// withdraw takes the job of a call that has ended out of the queue, so that no worker starts on it. One that has it in
// hand is not disturbed.
func (d *drive) withdraw(ctx context.Context, index int) {
	queued, err := d.queued(ctx, index)
	for _, job := range queued {
		err = errors.Join(err, d.conn.Delete(ctx, d.names.Stream(bus.Jobs), job.Seq))
	}
	if err != nil {
		d.log.Debug("a job was not withdrawn; whoever takes it finds its call over", d.call(index), "err", err)
	}
}

// insistSays is the time between two lines about the same thing that does not go.
const insistSays = time.Minute

// insist repeats what must happen before the batch can go on, until it does, ctx ends, or it never can.
func (d *drive) insist(ctx context.Context, what string, try func() error) {
	if err := d.untilDone(ctx, what, try); err != nil {
		d.fatal = err
	}
}

// untilDone is insist for any goroutine.
func (d *drive) untilDone(ctx context.Context, what string, try func() error) error {
	var logged time.Time // the last log line
	return bus.Retry(ctx, bus.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second, OnFailure: func(err error, _ time.Duration) {
		if time.Since(logged) > insistSays {
			d.log.Log(ctx, logfields.RetryLevel(err), what+" failed; trying again", "err", err)
			logged = time.Now()
		}
	}}, try)
}
