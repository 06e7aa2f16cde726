package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// finish stores the result and notifies the coordinator. The first stored result counts, even when
// another worker stored it. finish tries until the result is stored, or until LastWords has passed
// since the worker had to end.
func (a *attempt) finish(ctx context.Context, result messages.Result) (settlement, error) {
	ctx, done := a.lastWords(ctx)
	defer done()
	if r := &result; r.Err != nil {
		own := *r.Err
		if r.Attempt > 1 && a.service.Attempts > 1 {
			own.Message += fmt.Sprintf(" (It was attempted %d times.)", r.Attempt)
		}
		// Another attempt of ours would have had the same idempotency key. A new call by the model
		// would not, so the model must not be told to retry a call whose outcome is unknown.
		own.Retryable = own.Retryable && r.Status != messages.StatusOutcomeUnknown
		r.Err = &own
	}
	if result.Trail == nil && result.Failure() { // no run has made it
		a.failure = messages.ErrorType(result.Status, result.Err)
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		stored, err := a.store(ctx, &result)
		var lost *journal.Lost
		switch {
		case err == nil:
			a.tell(wire.Notice{Result: &stored})
			a.became = string(stored.Status)
			a.logFailure("call failed", stored)
			a.cfg.Observe(ctx, a.pool, stored)
			return ack, nil
		case errors.As(err, &lost):
			a.log.Warn("result not stored: the call has ended or was taken over meanwhile", "state", lost.Newest.Record.State)
			return overtaken(lost), nil
		case errors.Is(err, bus.ErrTooLarge):
			unkept(&result, "The result is too large to be kept.")
		default:
			a.log.Warn("result not stored; trying again", "err", err, "wait", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

// logFailure logs a call, or an attempt, that failed. The tool's own words are not in the line.
func (a *attempt) logFailure(what string, r messages.Result) {
	level := slog.LevelInfo
	switch {
	case r.Status == messages.StatusOK:
		return
	case r.Status == messages.StatusOutcomeUnknown:
		level = slog.LevelWarn
	case r.Status == messages.StatusHookError, r.Err != nil && r.Err.Code == messages.CodeInternal:
		level = slog.LevelDebug // the place that found it has logged an error, which says more
	}
	a.log.Log(context.Background(), level, what, "status", r.Status, "code", messages.ErrorType(r.Status, r.Err),
		"attempt", r.Attempt, "duration_ms", math.Round(r.DurationMS))
}

// overtaken settles the job of a call that is not ours any more. If the call has ended, the job is
// done. If the call runs elsewhere, its job is not ours to settle.
func overtaken(lost *journal.Lost) settlement {
	if lost.Newest.Record.State == wire.Ended {
		return ack
	}
	return nil
}

// unkept replaces the outcome of a call by the reason why it was not kept.
func unkept(result *messages.Result, why string) {
	result.Outcome, result.Ref = messages.Failed(messages.CodeTooLarge, why), nil
	if result.Status == messages.StatusOK {
		result.Err.Message += " The call itself was done."
	}
}

// store moves a large result to the object store and writes the result: as the ending record of the
// journal for a call that claims, and among the results, where the first one counts, for any other.
func (a *attempt) store(ctx context.Context, result *messages.Result) (messages.Result, error) {
	if result.Ref == nil {
		a.sign(result)
		switch err := a.journal.Offload(ctx, result); {
		// This may last for days, and the session cannot wait as long.
		case errors.Is(err, bus.ErrFull):
			a.log.Error("a large result is given up: the object store is full", "err", err)
			unkept(result, "The result is too large for a message, and the store of large results is full.")
			a.sign(result)
		case err != nil:
			return *result, err
		}
	}
	if !a.claims() {
		return a.journal.WriteResult(ctx, a.key, *result)
	}
	record, _ := a.mine()
	record.State, record.Result, record.Worker, record.Span = wire.Ended, result, a.cfg.Worker, a.parent
	record.ToolDigest = a.job.ToolDigest
	record.Nonce = a.nonce + "-end"
	_, err := a.close(ctx, record)
	if errors.Is(err, bus.ErrTooLarge) { // a result is worth more than a copy of the arguments
		_, err = a.close(ctx, light(record))
	}
	return *result, err
}

// release gives up a call that is known not to have been applied, or that may run again, so that
// another attempt can follow after a while. A claimed call is released in its journal. For any
// other the coordinator is notified.
func (a *attempt) release(ctx context.Context, why *messages.Error, wait time.Duration) (settlement, error) {
	a.became = released
	switch {
	case a.holds():
	case why != nil:
		return a.retryLater(wait), nil
	default:
		return a.letGo("given up for another attempt", wait, 0), nil
	}
	ctx, done := a.lastWords(ctx)
	defer done()
	record, _ := a.mine()
	record.State, record.Error, record.RetryAfterMS = wire.Released, why, wait.Milliseconds()
	record.Nonce = a.nonce + "-released"
	var seq uint64
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		var err error
		seq, err = a.close(ctx, record)
		var lost *journal.Lost
		if errors.As(err, &lost) {
			return overtaken(lost), nil
		}
		if err == nil {
			break
		}
		// The arguments just fit, but not with the reason beside them.
		if errors.Is(err, bus.ErrTooLarge) {
			return nil, fmt.Errorf("release: %w", err)
		}
		a.log.Warn("release not stored; trying again", "err", err, "wait", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("release: %w", errors.Join(err, context.Cause(ctx)))
		}
	}
	record = light(record)
	return func(d *bus.Delivery) error {
		err := d.Ack()
		a.tell(wire.Notice{Record: &record, Seq: seq})
		return err
	}, nil
}
