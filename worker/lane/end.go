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
	"github.com/toolfleet/toolfleet/messages"
)

// finish stores the result and tells the coordinator. What is stored counts, whoever stored it. A result that
// exists is stored whatever happens meanwhile, until the worker itself has to end.
func (a *attempt) finish(ctx context.Context, result messages.Result) (settlement, error) {
	ctx, done := a.lastWords(ctx)
	defer done()
	if r := &result; r.Err != nil {
		own := *r.Err
		if r.Attempt > 1 && a.service.Attempts > 1 {
			own.Message += fmt.Sprintf(" (It was attempted %d times.)", r.Attempt)
		}
		// Another attempt of ours would have had the same idempotency key. Another call of the model's would not.
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
			a.tell(messages.Notice{Result: &stored})
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

// logFailure has a line for a call, or an attempt, that failed. What the tool said is not in it.
func (a *attempt) logFailure(what string, r messages.Result) {
	level := slog.LevelInfo
	switch {
	case r.Status == messages.StatusOK:
		return
	case r.Status == messages.StatusOutcomeUnknown:
		level = slog.LevelWarn
	case r.Status == messages.StatusHookError, r.Err != nil && r.Err.Code == messages.CodeInternal:
		level = slog.LevelDebug // whoever found that has an error in the log, which says more
	}
	a.log.Log(context.Background(), level, what, "status", r.Status, "code", messages.ErrorType(r.Status, r.Err),
		"attempt", r.Attempt, "duration_ms", math.Round(r.DurationMS))
}

// overtaken settles the job of a call that is not ours any more: one that has ended needs its job no longer, and
// the job of one that runs elsewhere is not ours to settle.
func overtaken(lost *journal.Lost) settlement {
	if lost.Newest.Record.State == messages.Ended {
		return ack
	}
	return nil
}

// unkept takes away what a call gave, and leaves the reason in its place.
func unkept(result *messages.Result, why string) {
	result.Outcome, result.Ref = messages.Failed(messages.CodeTooLarge, why), nil
	if result.Status == messages.StatusOK {
		result.Err.Message += " The call itself was done."
	}
}

func (a *attempt) store(ctx context.Context, result *messages.Result) (messages.Result, error) {
	if result.Ref == nil {
		a.sign(result)
		switch err := a.journal.Offload(ctx, result); {
		case errors.Is(err, bus.ErrFull): // for days perhaps; the session does not wait as long
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
	record.State, record.Result, record.Worker, record.Span = messages.Ended, result, a.cfg.Worker, a.parent
	record.ToolDigest = a.job.ToolDigest
	record.Nonce = a.nonce + "-end"
	_, err := a.close(ctx, record)
	if errors.Is(err, bus.ErrTooLarge) { // a result is worth more than a copy of the arguments
		_, err = a.close(ctx, light(record))
	}
	return *result, err
}

// release gives up a call that is known not to have been applied, or may be run again, for another attempt after
// a while: one that claimed, in its journal; any other by telling the coordinator.
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
	record.State, record.Error, record.RetryAfterMS = messages.Released, why, wait.Milliseconds()
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
		if errors.Is(err, bus.ErrTooLarge) { // with the reason, beside arguments that just fit
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
		a.tell(messages.Notice{Record: &record, Seq: seq})
		return err
	}, nil
}
