package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The record for people gets a line for every call of every batch. The lines are stored beside the reply and before the
// batch leaves the log, and the batch waits for both: one whose reply is stored and whose lines are not is found in the log
// again, by whoever comes next, and put on record from its reply and the journal. Nothing runs for that.

// frozen is what the records of a call say of the arguments and the tool of the newest attempt.
type frozen struct{ argsHash, toolDigest string }

// note keeps what a record says for the line about its call. One that cannot be read may be of other arguments.
func (d *drive) note(index int, r wire.CallRecord) {
	if r.ArgsHash != "" || r.ToolDigest != "" || r.State == journal.Unreadable {
		d.frozen[index] = frozen{r.ArgsHash, r.ToolDigest}
	}
}

// ending is a batch that has come to its end.
type ending struct {
	accepted journal.Accepted
	batch    messages.Batch
	class    messages.Class // of the refusal; "": it was not refused
	// calls is what is known of its calls.
	calls func(context.Context) ([]audit.Call, error)
	// results are of the calls too: what is put on record where nothing else can be.
	results []messages.Result
}

// putOnRecord stores the lines about a batch. What is there already stays. Lines that cannot be made, or never fit, are bare
// ones in their place; a batch of which even those cannot be stored goes without.
func (c *Coordinator) putOnRecord(ctx context.Context, log *slog.Logger, e ending) error {
	err := c.writeLines(ctx, e, func(about audit.Batch, hasher audit.Hasher) (wire.AuditLines, error) {
		calls, err := e.calls(ctx)
		return audit.Lines(about, calls, hasher, c.record.Include()), err
	})
	if hopeless(err) {
		c.cfg.Metrics.auditFailed()
		log.Error("a batch is put on record with less than is known of its calls", "err", err)
		err = c.writeLines(ctx, e, func(about audit.Batch, hasher audit.Hasher) (wire.AuditLines, error) {
			return audit.Bare(about, e.results, hasher), nil
		})
	}
	if err != nil {
		c.cfg.Metrics.auditFailed()
	}
	if hopeless(err) {
		log.Error("a batch is missing in the record for people", "err", err)
		return nil
	}
	return err
}

// errPanic is the error of a panic in the making of lines. Nobody else would fare better.
var errPanic = errors.New("panic")

// hopeless reports whether lines cannot be stored, however often it is tried: nothing would come after the batch.
func hopeless(err error) bool { return errors.Is(err, errPanic) || errors.Is(err, bus.ErrTooLarge) }

func (c *Coordinator) writeLines(ctx context.Context, e ending, lines func(audit.Batch, audit.Hasher) (wire.AuditLines, error)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	hasher, err := c.record.Hasher(ctx)
	if err != nil {
		return err
	}
	about := audit.Batch{
		Key: e.accepted.Key, Session: e.batch.Session, ID: e.batch.ID, Digest: messages.Digest(e.accepted.Body), Provider: e.batch.Provider,
		Round: e.batch.Round, Accepted: e.accepted.Stored, Writer: c.id, Now: time.Now(), TraceID: tracing.ID(ctx), Refused: e.class,
	}
	if about.TraceID == "" {
		about.TraceID = tracing.ID(tracing.Extract(ctx, e.accepted.Header))
	}
	all, err := lines(about, hasher)
	if err != nil {
		return err
	}
	if e.class == messages.ClassBatchConflict { // which is answered while those before it run
		return c.record.AppendAside(ctx, e.accepted.Key, e.accepted.Seq, all)
	}
	return c.record.Append(ctx, e.accepted.Key, e.accepted.Seq, all)
}

// noCalls is what is known of the calls of a batch that was refused before it was planned.
func noCalls(context.Context) ([]audit.Call, error) { return nil, nil }

// ending is this batch, whose reply is made.
func (d *drive) ending() ending {
	e := ending{accepted: d.accepted, batch: d.in.Batch, calls: noCalls, results: d.reply.Results}
	if d.reply.Error != nil {
		e.class = d.reply.Error.Class
	}
	switch {
	case d.closed:
		e.calls = func(ctx context.Context) ([]audit.Call, error) { return d.recalled(ctx, d.accepted, d.in, d.ended) }
	case d.ended != nil:
		e.calls = d.ran
	case d.machine != nil: // given up in the middle
		e.calls = func(ctx context.Context) ([]audit.Call, error) { return d.recalled(ctx, d.accepted, d.in, nil) }
	}
	return e
}

// ran is what is known of the calls of this batch, which all have ended.
func (d *drive) ran(ctx context.Context) ([]audit.Call, error) {
	calls := make([]audit.Call, len(d.ended))
	for i, r := range d.ended {
		calls[i] = audit.Call{
			Result: r, Input: d.in.Calls[i].Input, ArgsHash: d.frozen[i].argsHash,
			ToolDigest: cmp.Or(d.frozen[i].toolDigest, d.machine.Plan().Calls[i].ToolDigest),
		}
	}
	return calls, d.asTheyRan(ctx, d.accepted.Key, calls)
}

// recalled is what is known of the calls of a batch that is not driven here: of those with these results, or where there
// are none (nil) of those that have run, or may have.
func (c *Coordinator) recalled(ctx context.Context, a journal.Accepted, in submission.Submission, results []messages.Result) ([]audit.Call, error) {
	known, err := c.journal.Calls(ctx, a.Key)
	if err != nil {
		return nil, err
	}
	plans, err := c.journal.Plans(ctx, a.Key)
	if err != nil && !bus.IsTerminal(err) { // a plan that cannot be read, as its driver has said, tells nothing
		return nil, err
	}
	found := make([]audit.Call, max(len(in.Calls), len(results))) // a body that can be read no more has no calls
	add := func(i int, call audit.Call) {
		if i < 0 || i >= len(found) {
			return
		}
		was := found[i]
		call.ToolDigest, call.ArgsHash = cmp.Or(call.ToolDigest, was.ToolDigest), cmp.Or(call.ArgsHash, was.ArgsHash)
		if call.Result.Status == "" {
			call.Result = was.Result
		}
		found[i] = call
	}
	for _, tool := range c.catalog.Current().Tools() {
		for i, call := range in.Calls {
			if call.Tool() == tool.Name {
				add(i, audit.Call{ToolDigest: tool.Digest})
			}
		}
	}
	for _, p := range plans {
		for _, call := range p.Record.Calls {
			add(call.Index, audit.Call{ToolDigest: call.ToolDigest})
		}
		for _, r := range p.Record.Results {
			add(r.Index, audit.Call{Result: r})
		}
	}
	for _, e := range known.Results {
		add(e.Key.Index, audit.Call{Result: e.Result})
	}
	for _, e := range known.Records {
		ran := frozen{e.Record.ArgsHash, e.Record.ToolDigest}
		if ran.argsHash == "" {
			if ran, err = c.ranWith(ctx, e); err != nil {
				return nil, err
			}
		}
		add(e.Key.Index, audit.Call{Result: resultOf(e, in), ToolDigest: ran.toolDigest, ArgsHash: ran.argsHash})
	}
	calls := []audit.Call{}
	for i, call := range found {
		if i < len(results) {
			trail := call.Result.Trail
			call.Result = results[i]
			call.Result.Index, call.Result.Trail = i, trail
		}
		if i < len(in.Calls) {
			call.Input = in.Calls[i].Input
		}
		if call.Result.Status != "" {
			calls = append(calls, call)
		}
	}
	return calls, c.asTheyRan(ctx, a.Key, calls)
}

// ranWith is what the older records of a call say, where the newest one is an end that does not.
func (c *Coordinator) ranWith(ctx context.Context, newest journal.CallEntry) (ran frozen, err error) {
	if newest.Record.State != wire.Ended || newest.Record.Attempt == 0 {
		return ran, nil
	}
	records, err := c.journal.Records(ctx, newest.Key)
	for _, e := range records {
		if e.Record.ArgsHash != "" || e.Record.State == journal.Unreadable {
			ran = frozen{e.Record.ArgsHash, e.Record.ToolDigest}
		}
	}
	return ran, err
}

// resultOf is the result in the newest record of a call. Of one that a worker has claimed, and that nobody waits for any
// more, nobody knows what becomes.
func resultOf(e journal.CallEntry, in submission.Submission) messages.Result {
	switch r, i := e.Record, e.Key.Index; {
	case r.Result != nil:
		return *r.Result
	case i < len(in.Calls) && (r.State == wire.Claimed || r.State == wire.Renewed):
		return messages.Result{
			V: messages.Version, Index: i, CallID: in.Calls[i].ID, Tool: in.Calls[i].Tool(), Status: messages.StatusOutcomeUnknown,
			Outcome: messages.Failed(messages.CodeOutcomeUnknown, ""), Attempt: r.Attempt, Worker: r.Worker,
		}
	}
	return messages.Result{}
}

// asTheyRan looks up the arguments that hooks and people have changed, where the record for people shows fields of them.
func (c *Coordinator) asTheyRan(ctx context.Context, key wire.BatchKey, calls []audit.Call) error {
	for i, call := range calls {
		ran := call.ArgsHash
		if t := call.Result.Trail; t != nil {
			ran = cmp.Or(t.ArgsHash, ran)
		}
		if ran == "" || !c.record.Include().Wants(call.Result.Tool) {
			continue
		}
		sent, err := rawjson.Canonical(call.Input)
		if err == nil && messages.Digest(sent) == ran {
			continue
		}
		if calls[i].Input, err = c.journal.Input(ctx, key.Call(call.Result.Index), ran); err != nil {
			return err
		}
	}
	return nil
}

// finishRecord puts a batch on record whose reply is stored already: whoever stored it may have got no further.
func (c *Coordinator) finishRecord(ctx context.Context, log *slog.Logger, a journal.Accepted, stored []byte) error {
	body, err := c.journal.FullReply(ctx, stored)
	if errors.Is(err, bus.ErrNotFound) || errors.Is(err, bus.ErrCorrupt) {
		log.Error("a large reply is gone; what the journal knows is put on record", "err", err)
		body, err = stored, nil
	}
	if err != nil {
		return err
	}
	reply, err := decodeReply(body)
	if err != nil {
		return err
	}
	written, err := c.record.Written(ctx, a.Key, a.Seq, a.Stored, len(reply.Results))
	if err != nil || written {
		return err
	}
	in, _ := submission.Decode(log, a, c.conn.MaxBody()) // of one that was refused as much as can be read
	e := ending{accepted: a, batch: in.Batch, results: reply.Results, calls: func(ctx context.Context) ([]audit.Call, error) {
		if len(reply.Results) == 0 {
			return c.recalled(ctx, a, in, nil)
		}
		return c.recalled(ctx, a, in, reply.Results)
	}}
	if reply.Error != nil {
		e.class = reply.Error.Class
	}
	log.Info("put on record after its reply")
	return c.putOnRecord(ctx, log, e)
}
