package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"regexp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What a line of the log is about is told by the same words everywhere, here and in the workers: tenant, session and batch
// are tokens, as in subjects; call is the id that the model gave it, or index its place where the id is not known;
// trace_id is the trace that tells of the same. A failure has one line, where it is decided what comes of it.

// logAbout is a log with the fields that every line about a batch has.
func (c *Coordinator) logAbout(ctx context.Context, key wire.BatchKey) *slog.Logger {
	log := c.log.With("batch", key.Batch, "session", key.Session, "tenant", key.Tenant)
	if id := tracing.ID(ctx); id != "" {
		return log.With("trace_id", id)
	}
	return log
}

// logOf is a log with the fields that every line about a call has.
func (c *Coordinator) logOf(ctx context.Context, key wire.CallKey, id messages.CallID) *slog.Logger {
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

// logRefusal says that a batch is refused, and where in the message the reason is. The reason itself quotes what a model or an agent
// wrote, and is told with the level debug. One that is our own fault has an error in the log already.
func logRefusal(log *slog.Logger, r *messages.Refusal) {
	level, about := slog.LevelWarn, []any{"class", r.Class}
	if r.Class == messages.ClassInternal {
		level = slog.LevelDebug
	}
	if at := place.FindStringSubmatch(r.Message); at != nil {
		about = append(about, "place", at[1])
	}
	log.Log(context.Background(), level, "refused", about...)
	log.Debug("why it is refused", "reason", r.Message)
}

// place is what reasons begin with: members that the provider's shape has, and indices.
var place = regexp.MustCompile(`^([A-Za-z_]+(?:\[\d+\])*(?:\.[A-Za-z_]+(?:\[\d+\])*)*): `)

// levelOfReply is how important it is that a batch has its reply. Of one that is refused that is said already.
func levelOfReply(s messages.ReplyStatus) slog.Level {
	if s == messages.ReplyRefused {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// levelOf is how important it is that something could not be done that is done again. That there is no connection is the
// connection's line, and none for each batch.
func levelOf(err error) slog.Level {
	if errors.Is(err, bus.ErrDisconnected) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
