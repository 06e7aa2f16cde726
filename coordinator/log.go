package coordinator

import (
	"context"
	"errors"
	"log/slog"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

// What a line of the log is about is told by the same words everywhere, here and in the workers: tenant, session and batch
// are tokens, as in subjects; call is the id that the model gave it, or index its place where the id is not known;
// trace_id is the trace that tells of the same. A failure has one line, where it is decided what comes of it.

// logAbout is a log with the fields that every line about a batch has.
func (c *Coordinator) logAbout(ctx context.Context, key messages.BatchKey) *slog.Logger {
	log := c.log.With("batch", key.Batch, "session", key.Session, "tenant", key.Tenant)
	if id := tracing.ID(ctx); id != "" {
		return log.With("trace_id", id)
	}
	return log
}

// logOf is a log with the fields that every line about a call has.
func (c *Coordinator) logOf(ctx context.Context, key messages.CallKey, id messages.CallID) *slog.Logger {
	return c.logAbout(ctx, key.BatchKey).With(callAttr(id, key.Index))
}

// call names a call of the batch that is driven.
func (d *drive) call(index int) slog.Attr { return callAttr(d.in.calls[index].ID, index) }

func callAttr(id messages.CallID, index int) slog.Attr {
	if id != "" {
		return slog.String("call", string(id))
	}
	return slog.Int("index", index)
}

// levelOf is how important it is that something could not be done that is done again. That there is no connection is the
// connection's line, and none for each batch.
func levelOf(err error) slog.Level {
	if errors.Is(err, bus.ErrDisconnected) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
