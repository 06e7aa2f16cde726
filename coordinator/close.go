package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// A batch that no driver can bring to its end is closed: each open call is ended in the journal by
// compare-and-set, live claims are waited for until they lapse, and only then is the batch answered.
// The next write of the session cannot start before that, so no call of this batch runs beside it.

// errPanic is a panic while a batch was driven. Another driver would panic, too.
var errPanic = errors.New("panic")

// guard calls do and returns its panic as an error that wraps errPanic.
func (d *batchRun) guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("panic while the batch was driven; its open calls are ended", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return do()
}

// whyClosed says why no driver can bring the batch to its end, in words for the model; empty when
// another try may succeed. No other reason closes a batch: a reason that may pass never does.
func whyClosed(err error) string {
	switch {
	case errors.Is(err, errPanic):
		return "an internal error"
	case errors.Is(err, errOtherPlan):
		return "the journal holds the plan of another batch under its id"
	case errors.Is(err, bus.ErrTooLarge):
		return "its plan is too large to be recorded"
	case errors.Is(err, bus.ErrCorrupt):
		return "a stored record of it is damaged"
	}
	return ""
}

// close ends every open call of the batch and makes its reply. It returns cause if another try may
// succeed, or if ctx ends first.
func (d *batchRun) close(ctx context.Context, cause error) error {
	why := whyClosed(cause)
	if why == "" || ctx.Err() != nil {
		return cause
	}
	d.log.Error("the batch cannot be driven to its end; its open calls are ended", "err", cause)
	d.fatal, d.closed = nil, true
	results, err := d.closeCalls(ctx, why)
	if err != nil {
		return err
	}
	d.spans.Fail(messages.ClassInternal)
	if errors.Is(cause, errOtherPlan) { // the results belong to the other batch
		d.reply = new(submission.Refused(d.in.Batch, d.digest, &messages.Refusal{
			Class: messages.ClassInternal, Message: "The batch could not be brought to its end: " + why + ". Use a new id.",
		}))
		return nil
	}
	d.assemble(ctx, results)
	return d.fatal
}

// closeCalls ends the calls that have no end yet, and returns the results of all, in call order.
func (d *batchRun) closeCalls(ctx context.Context, why string) (results []messages.Result, err error) {
	closing := &batch.Closing{Lease: d.cfg.QueueTimeout, Grace: d.cfg.Grace}
	results = make([]messages.Result, len(d.in.Calls))
	for {
		wait, err := d.closeOnce(ctx, closing, results, why)
		if err != nil {
			d.log.Log(ctx, logfields.RetryLevel(err), "not all calls of the batch could be ended; trying again", "err", err)
		}
		if err == nil && wait == 0 {
			return results, nil
		}
		pause(ctx, min(max(wait, 100*time.Millisecond), d.cfg.Poll))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// closeOnce reads each call once and ends those that no worker runs. It returns how long the others may
// take; 0: every call has ended.
func (d *batchRun) closeOnce(ctx context.Context, closing *batch.Closing, results []messages.Result, why string) (wait time.Duration, err error) {
	key, now := d.accepted.Key, time.Now()
	newest, err := d.ends(ctx, results)
	if err != nil {
		return 0, err
	}
	open := 0
	for _, i := range d.closable(results, newest) {
		entry := newest[i]
		next := closing.Call(now, i, entry.Record, entry.Seq)
		if !next.End {
			open++
			wait = max(wait, next.Until.Sub(now))
			continue
		}
		record := entry.Record // what it says of the arguments and the tool stays
		result := d.closedResult(i, record, next.Unknown, why)
		if entry.Seq == 0 { // a worker of a call that does not claim looks for its result
			stored, resultErr := d.journal.WriteResult(ctx, key.Call(i), result)
			if resultErr != nil {
				open, err = open+1, errors.Join(err, resultErr)
				continue
			}
			result = stored
		}
		record.V, record.State, record.Nonce, record.Attempt, record.Result = messages.Version, wire.Ended, rand.Text(), result.Attempt, &result
		if record.Approval != nil {
			record.Approval = approval.WithoutArguments(*record.Approval)
		}
		record.Input, record.Hooks = nil, nil
		switch _, writeErr := d.journal.Write(ctx, key.Call(i), record, entry.Seq); {
		case writeErr == nil && i < len(results):
			results[i] = result
			fallthrough
		case writeErr == nil:
			d.closeQuestion(ctx, i, entry.Record)
		default: // overtaken, or undecided: the next read tells
			open++
			var lost *journal.Lost
			if !errors.As(writeErr, &lost) {
				err = errors.Join(err, writeErr)
			}
		}
	}
	if open > 0 {
		return max(wait, time.Millisecond), err
	}
	return 0, errors.Join(err, d.withdrawAll(ctx))
}

// closable returns the calls that have not ended: those of the batch, and those that only the journal
// has, because another batch with this id had them.
func (d *batchRun) closable(results []messages.Result, newest map[int]journal.CallEntry) (open []int) {
	for i := range results {
		if results[i].Status == "" {
			open = append(open, i)
		}
	}
	for i, entry := range newest {
		if i >= len(results) && entry.Record.State != wire.Ended {
			open = append(open, i)
		}
	}
	return open
}

// closeQuestion withdraws the question about a call that has ended.
func (d *batchRun) closeQuestion(ctx context.Context, index int, was wire.CallRecord) {
	if was.State == wire.Parked {
		d.questions.Withdraw(ctx, d.accepted.Key.Call(index), "", "gone")
	}
}

// closeUndecoded ends the open calls of a batch that cannot be decoded. A driver of another version may
// have been able to read it, and have begun it.
func (d *batchRun) closeUndecoded(ctx context.Context) error {
	d.mu.Lock()
	fresh := d.delivery != nil && d.delivery.Delivered == 1
	d.mu.Unlock()
	if fresh && !d.conn.Before(ctx, d.accepted.Stored) {
		return nil
	}
	d.in.Calls = nil
	_, err := d.closeCalls(ctx, "its message, which cannot be read here")
	return err
}

// ends fills in the stored results, and returns the newest record of each call.
func (d *batchRun) ends(ctx context.Context, results []messages.Result) (newest map[int]journal.CallEntry, err error) {
	known, err := d.journal.Calls(ctx, d.accepted.Key)
	if err != nil {
		return nil, err
	}
	plans, err := d.journal.Plans(ctx, d.accepted.Key)
	if err != nil && !errors.Is(err, bus.ErrCorrupt) {
		return nil, err
	}
	ended := func(i int, r messages.Result) {
		if i >= 0 && i < len(results) && results[i].Status == "" {
			results[i] = r
			results[i].Index, results[i].CallID = i, d.in.Calls[i].ID
		}
	}
	newest = map[int]journal.CallEntry{}
	for _, e := range known.Records {
		newest[e.Key.Index] = e
		if e.Record.State == wire.Ended && e.Record.Result != nil {
			ended(e.Key.Index, *e.Record.Result)
		}
	}
	for _, plan := range plans {
		for _, r := range plan.Record.Results {
			ended(r.Index, r)
		}
	}
	for _, e := range known.Results {
		if _, recorded := newest[e.Key.Index]; !recorded {
			ended(e.Key.Index, e.Result)
		}
	}
	return newest, nil
}

// closedResult returns the result of a call that was open when its batch was closed.
func (d *batchRun) closedResult(i int, record wire.CallRecord, unknown bool, why string) messages.Result {
	var call messages.ToolCall
	if i < len(d.in.Calls) {
		call = d.in.Calls[i]
	}
	result := messages.Result{
		V: messages.Version, Index: i, CallID: call.ID, Tool: call.Tool(), Status: messages.StatusError, Attempt: record.Attempt,
		Outcome: messages.Failed(messages.CodeInternal, "Not known to have run: the batch could not be brought to its end, because of "+why+"."),
	}
	if tool, found := d.catalog.Current().Lookup(call.Tool()); found {
		result.Kind = tool.Kind
	}
	if unknown {
		result.Status, result.Outcome = messages.StatusOutcomeUnknown, messages.Failed(messages.CodeOutcomeUnknown,
			"The batch could not be brought to its end, because of "+why+", while a worker had this call. "+
				"It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.")
		result.Worker, result.Started, result.Permission = record.Worker, record.Started, record.Permission
	}
	return result
}

// withdrawAll takes the jobs of the batch out of the queue. A worker that has one already finds that its
// call has ended.
func (d *batchRun) withdrawAll(ctx context.Context) error {
	jobs := d.names.Stream(bus.Jobs)
	queued, err := d.conn.LastOfEach(ctx, jobs, d.names.JobsOf(d.accepted.Key)...)
	for _, job := range queued {
		err = errors.Join(err, d.conn.Delete(ctx, jobs, job.Seq))
	}
	return err
}
