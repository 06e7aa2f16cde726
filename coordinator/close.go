package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/approvals"
	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file closes a batch that no driver can bring to its end: the coordinator ends each open
// call by compare-and-set in the journal. If a worker has claimed a call, the call stays open
// until the lease of the claim has lapsed. The batch gets its reply after all its calls have
// ended. The next write of the session waits for the reply, so it never runs beside a call of
// this batch.

// errPanic is the cause of closing when the code that drives a batch panics. Another driver
// would panic too.
var errPanic = errors.New("panic")

// guard calls the function do. If do panics, guard returns an error that wraps errPanic.
func guard(log *slog.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic while the batch was driven; its open calls are ended", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return do()
}

// whyClosed returns why no driver can bring the batch to its end, in words for the model. It
// returns "" for an error that may go away, because such a batch is not closed.
func whyClosed(err error) string {
	switch {
	case errors.Is(err, errPanic):
		return "an internal error"
	case errors.Is(err, errOtherPlan):
		return "the plan of another batch under its id"
	case errors.Is(err, bus.ErrTooLarge):
		return "a plan that is too large to be recorded"
	case errors.Is(err, bus.ErrCorrupt):
		return "a damaged record in the journal"
	}
	return ""
}

// close ends every open call of the batch and makes its reply. If another driver may succeed,
// it leaves the batch open and returns cause. If ctx ends first, it returns another error.
func (d *batchRun) close(ctx context.Context, cause error) error {
	why := whyClosed(cause)
	if why == "" || ctx.Err() != nil {
		return cause
	}
	d.log.Error("the batch cannot be driven to its end; its open calls are ended", "err", cause)
	d.fatal, d.closed = nil, true
	results, err := d.newCloser(why).run(ctx)
	if err != nil {
		return err
	}
	d.spans.Fail(messages.ClassInternal)
	if errors.Is(cause, errOtherPlan) { // the results in the journal are those of the other batch
		d.reply = new(submission.Refused(d.in.Batch, d.digest, &messages.Refusal{
			Class: messages.ClassInternal, Message: "The batch could not be brought to its end, because of " + why + ". Use a new id.",
		}))
		return nil
	}
	d.assemble(ctx, results)
	return d.fatal
}

// closeUndecoded ends the open calls of a batch that this coordinator cannot decode. A
// coordinator of another version may have decoded the batch and started some of its calls.
func (d *batchRun) closeUndecoded(ctx context.Context) error {
	if d.fresh(ctx) {
		return nil
	}
	d.in.Calls = nil
	_, err := d.newCloser("its message, which cannot be read here").run(ctx)
	return err
}

// closer ends the open calls of a batch without a batch.Machine.
type closer struct {
	journal   *journal.Journal
	questions *approvals.Service
	kindOf    func(tool string) messages.Kind
	queue     queue
	poll      time.Duration
	log       *slog.Logger
	key       wire.BatchKey
	calls     []messages.ToolCall
	why       string // in words for the model
	closing   batch.Closing
	results   []messages.Result // in call order; a call without a status is open
}

func (d *batchRun) newCloser(why string) *closer {
	return &closer{
		journal: d.journal, questions: d.questions, queue: d.queue, poll: d.cfg.Poll, log: d.log, key: d.accepted.Key,
		calls: d.in.Calls, why: why, closing: batch.Closing{Lease: d.cfg.QueueTimeout, Grace: d.cfg.Grace},
		results: make([]messages.Result, len(d.in.Calls)),
		kindOf: func(tool string) messages.Kind {
			t, _ := d.announced.Of(d.accepted.Key.Tenant).Lookup(tool)
			return t.Kind
		},
	}
}

// run ends the open calls, and returns the results of all calls in call order.
func (c *closer) run(ctx context.Context) (results []messages.Result, err error) {
	for {
		wait, err := c.once(ctx)
		if err != nil {
			c.log.Log(ctx, logfields.RetryLevel(err), "not all calls of the batch could be ended; trying again", "err", err)
		}
		if err == nil && wait == 0 {
			return c.results, nil
		}
		pause(ctx, min(max(wait, 100*time.Millisecond), c.poll))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// once reads every call and ends those that no worker runs. wait is the time until the next
// try. It is 0 when every call has ended.
func (c *closer) once(ctx context.Context) (wait time.Duration, err error) {
	now := time.Now()
	newest, err := c.readEnds(ctx)
	if err != nil {
		return 0, err
	}
	open := 0
	for _, i := range c.open(newest) {
		entry := newest[i]
		next := c.closing.Call(now, i, entry.Record, entry.Seq)
		if !next.End {
			open++
			wait = max(wait, next.Until.Sub(now))
			continue
		}
		record := entry.Record // the new record keeps the arguments and the tool of the old one
		result := c.result(i, record, next.Unknown)
		// A worker looks only for a result before it runs a call without a record.
		if entry.Seq == 0 {
			stored, resultErr := c.journal.WriteResult(ctx, c.key.Call(i), result)
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
		switch _, writeErr := c.journal.Write(ctx, c.key.Call(i), record, entry.Seq); {
		case writeErr == nil && i < len(c.results):
			c.results[i] = result
			fallthrough
		case writeErr == nil:
			if entry.Record.State == wire.Parked {
				c.questions.Withdraw(ctx, c.key.Call(i), "", messages.PendingGone)
			}
		// A worker wrote first, or the outcome of this write is unknown. The next read shows
		// the record.
		default:
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
	return 0, errors.Join(err, c.queue.withdrawAll(ctx))
}

// open returns the indexes of the open calls. Some indexes may be beyond the calls of this
// batch: an earlier batch with the same id may have had more calls, and the journal still has
// their records.
func (c *closer) open(newest map[int]journal.CallEntry) (open []int) {
	for i := range c.results {
		if c.results[i].Status == "" {
			open = append(open, i)
		}
	}
	for i, entry := range newest {
		if i >= len(c.results) && entry.Record.State != wire.Ended {
			open = append(open, i)
		}
	}
	return open
}

// readEnds copies the stored results of calls into c.results, and returns the newest record of
// each call.
func (c *closer) readEnds(ctx context.Context) (newest map[int]journal.CallEntry, err error) {
	known, err := c.journal.Calls(ctx, c.key)
	if err != nil {
		return nil, err
	}
	plans, err := c.journal.Plans(ctx, c.key)
	if err != nil && !errors.Is(err, bus.ErrCorrupt) {
		return nil, err
	}
	ends, newest := recall.Ends(known, plans)
	for i, r := range ends {
		if i >= 0 && i < len(c.results) && c.results[i].Status == "" {
			c.results[i] = r
			c.results[i].Index, c.results[i].CallID = i, c.calls[i].ID
		}
	}
	return newest, nil
}

// result returns the result of a call that was open when its batch was closed.
func (c *closer) result(i int, record wire.CallRecord, unknown bool) messages.Result {
	var call messages.ToolCall
	if i < len(c.calls) {
		call = c.calls[i]
	}
	result := messages.Result{
		V: messages.Version, Index: i, CallID: call.ID, Tool: call.Tool(), Kind: c.kindOf(call.Tool()), Status: messages.StatusError, Attempt: record.Attempt,
		Outcome: messages.Failed(messages.CodeInternal, "Not known to have run: the batch could not be brought to its end, because of "+c.why+"."),
	}
	if unknown {
		result.Status, result.Outcome = messages.StatusOutcomeUnknown, messages.Failed(messages.CodeOutcomeUnknown,
			"The batch could not be brought to its end, because of "+c.why+", while a worker had this call. "+
				"It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.")
		result.Worker, result.Started, result.Permission = record.Worker, record.Started, record.Permission
	}
	return result
}
