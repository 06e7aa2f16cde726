package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Recorder writes the lines of batches that have ended, from what their drivers and the
// journal know about the calls. The lines and the reply are stored at the same time. The batch
// leaves the log after both are stored. If a driver dies before that, the next driver finds
// the batch in the log, and writes its lines from the stored reply and the journal.
type Recorder struct {
	log     *Log
	journal Journal
	cfg     RecorderConfig
}

// Journal reads what the journal has about a batch whose driver is gone.
type Journal interface {
	Calls(ctx context.Context, key wire.BatchKey, indices ...int) (journal.Known, error)
	Plans(ctx context.Context, key wire.BatchKey) ([]journal.PlanEntry, error)
	Records(ctx context.Context, key wire.CallKey) ([]journal.CallEntry, error)
	Input(ctx context.Context, key wire.CallKey, argsHash string) (json.RawMessage, error)
}

// RecorderConfig holds the settings of a Recorder.
type RecorderConfig struct {
	Writer string // the name of the writer in the lines
	// Digest returns the digest of a tool's definition for a tenant, or "" if unknown.
	Digest func(tenant, tool string) string
	Failed func() // called when the lines of a batch could not be written
	// User returns the user for whom a batch ran, or "" if unknown. nil: no user is known.
	User func(journal.Accepted) string
}

// NewRecorder returns a recorder that writes to l. It sends nothing before Write.
func NewRecorder(l *Log, j Journal, cfg RecorderConfig) *Recorder { return &Recorder{l, j, cfg} }

// Ran is what call records say about the newest attempt of a call.
type Ran struct {
	ArgsHash   string // hex SHA-256 of the arguments
	ToolDigest string
}

// RanOf returns what one record says. ok is false if the record has nothing about arguments.
// For a record that cannot be read, RanOf returns an empty Ran and true, because the arguments
// may have changed in that record.
func RanOf(r wire.CallRecord) (ran Ran, ok bool) {
	return Ran{r.ArgsHash, r.ToolDigest}, r.ArgsHash != "" || r.ToolDigest != "" || r.State == journal.Unreadable
}

// Ending is a batch that has ended.
type Ending struct {
	Accepted journal.Accepted
	Batch    messages.Batch
	Refused  messages.Class // why the whole batch was refused; "" if it was not
	// Calls returns what is known about the calls. It is nil if the batch has no calls.
	Calls func(context.Context) ([]Call, error)
	// Results is what the reply says about the calls. Write makes bare lines from it if Calls
	// returns a permanent error, or if the full lines can never fit into a message: see [Bare].
	Results []messages.Result
}

// Write stores the missing lines of a batch. If full lines cannot be made, or can never fit
// into a message, it stores bare lines. If bare lines can never be stored either, it logs that
// and returns nil: an error would block the session for ever.
func (r *Recorder) Write(ctx context.Context, log *slog.Logger, e Ending) error {
	err := r.write(ctx, e, func(about Batch, hasher Hasher) (wire.AuditLines, error) {
		var calls []Call
		var err error
		if e.Calls != nil {
			calls, err = e.Calls(ctx)
		}
		return Lines(about, calls, hasher, r.log.Include()), err
	})
	if isPermanent(err) {
		r.cfg.Failed()
		log.Error("the full audit lines of the batch cannot be written; lines without details are written instead", "err", err)
		err = r.write(ctx, e, func(about Batch, hasher Hasher) (wire.AuditLines, error) {
			return Bare(about, e.Results, hasher), nil
		})
	}
	if err != nil {
		r.cfg.Failed()
	}
	if isPermanent(err) {
		log.Error("the audit lines of the batch cannot be written and are missing; its reply and its call records hold what is known", "err", err)
		return nil
	}
	return err
}

// errPanic means that the code that makes lines has panicked. Another try would panic too.
var errPanic = errors.New("panic")

// isPermanent reports whether another try would fail in the same way.
func isPermanent(err error) bool { return errors.Is(err, errPanic) || errors.Is(err, bus.ErrTooLarge) }

func (r *Recorder) write(
	ctx context.Context, e Ending, lines func(Batch, Hasher) (wire.AuditLines, error),
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	hasher, err := r.log.Hasher(ctx)
	if err != nil {
		return err
	}
	about := Batch{
		Key: e.Accepted.Key, Session: e.Batch.Session, ID: e.Batch.ID, Digest: messages.Digest(e.Accepted.Body), Provider: e.Batch.Provider,
		Round: e.Batch.Round, Accepted: e.Accepted.Stored, Writer: r.cfg.Writer, Now: time.Now(), TraceID: tracing.ID(ctx), Refused: e.Refused,
		Labels: e.Batch.Labels,
	}
	if r.cfg.User != nil {
		about.User = r.cfg.User(e.Accepted)
	}
	if about.TraceID == "" {
		about.TraceID = tracing.ID(tracing.Extract(ctx, e.Accepted.Header))
	}
	all, err := lines(about, hasher)
	if err != nil {
		return err
	}
	// Such a batch is answered while earlier batches of the session still run.
	if e.Refused == messages.ClassBatchConflict {
		return r.log.AppendUnordered(ctx, e.Accepted.Key, e.Accepted.Seq, all)
	}
	return r.log.Append(ctx, e.Accepted.Key, e.Accepted.Seq, all)
}

// Recall returns what the journal knows about the calls of a batch. If results is set, it
// returns the calls of the results. Otherwise it returns the calls that have run or may have
// run. sent has the calls as the agent sent them, or none if the batch cannot be read.
func (r *Recorder) Recall(
	ctx context.Context, key wire.BatchKey, sent []messages.ToolCall, results []messages.Result,
) ([]Call, error) {
	known, err := r.journal.Calls(ctx, key)
	if err != nil {
		return nil, err
	}
	plans, err := r.journal.Plans(ctx, key)
	// Continue without a plan that cannot be read. The batch's driver has logged the error.
	if err != nil && !bus.IsTerminal(err) {
		return nil, err
	}
	found := make([]Call, max(len(sent), len(results)))
	add := func(i int, call Call) {
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
	for i, call := range sent {
		add(i, Call{ToolDigest: r.cfg.Digest(key.Tenant, call.Tool())})
	}
	for _, p := range plans {
		for _, call := range p.Record.Calls {
			add(call.Index, Call{ToolDigest: call.ToolDigest})
		}
		for _, result := range p.Record.Results {
			add(result.Index, Call{Result: result})
		}
	}
	for _, e := range known.Results {
		add(e.Key.Index, Call{Result: e.Result})
	}
	for _, e := range known.Records {
		ran := Ran{e.Record.ArgsHash, e.Record.ToolDigest}
		if ran.ArgsHash == "" {
			if ran, err = r.ranBefore(ctx, e); err != nil {
				return nil, err
			}
		}
		add(e.Key.Index, Call{Result: resultOf(e, sent), ToolDigest: ran.ToolDigest, ArgsHash: ran.ArgsHash})
	}
	calls := []Call{}
	for i, call := range found {
		if i < len(results) {
			trail := call.Result.Trail
			call.Result = results[i]
			call.Result.Index, call.Result.Trail = i, trail
		}
		if i < len(sent) {
			call.Input = sent[i].Input
		}
		if call.Result.Status != "" {
			calls = append(calls, call)
		}
	}
	return calls, r.FindInputs(ctx, key, calls)
}

// ranBefore is for a call whose newest record ends it. It returns what older records say about
// the newest attempt. If the call has no attempt, it returns an empty Ran.
func (r *Recorder) ranBefore(ctx context.Context, newest journal.CallEntry) (ran Ran, err error) {
	if newest.Record.State != wire.Ended || newest.Record.Attempt == 0 {
		return ran, nil
	}
	records, err := r.journal.Records(ctx, newest.Key)
	for _, e := range records {
		if e.Record.ArgsHash != "" || e.Record.State == journal.Unreadable {
			ran = Ran{e.Record.ArgsHash, e.Record.ToolDigest}
		}
	}
	return ran, err
}

// resultOf returns the result in the newest record of a call. If the call is still claimed,
// its outcome is unknown, because the coordinator no longer waits for its worker.
func resultOf(e journal.CallEntry, sent []messages.ToolCall) messages.Result {
	switch record, i := e.Record, e.Key.Index; {
	case record.Result != nil:
		return *record.Result
	case i < len(sent) && (record.State == wire.Claimed || record.State == wire.Renewed):
		return messages.Result{
			V: messages.Version, Index: i, CallID: sent[i].ID, Tool: sent[i].Tool(), Status: messages.StatusOutcomeUnknown,
			Outcome: messages.Failed(messages.CodeOutcomeUnknown, ""), Attempt: record.Attempt, Worker: record.Worker,
		}
	}
	return messages.Result{}
}

// FindInputs replaces the arguments that were sent by the arguments that ran. It does so for
// calls whose arguments hooks or people have changed, if lines have fields of the tool's
// arguments.
func (r *Recorder) FindInputs(ctx context.Context, key wire.BatchKey, calls []Call) error {
	for i, call := range calls {
		ran := call.ArgsHash
		if t := call.Result.Trail; t != nil {
			ran = cmp.Or(t.ArgsHash, ran)
		}
		if ran == "" || !r.log.Include().Wants(call.Result.Tool) {
			continue
		}
		sent, err := rawjson.Canonical(call.Input)
		if err == nil && messages.Digest(sent) == ran {
			continue
		}
		if calls[i].Input, err = r.journal.Input(ctx, key.Call(call.Result.Index), ran); err != nil {
			return err
		}
	}
	return nil
}
