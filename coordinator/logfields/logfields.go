// Package logfields has the fields that say what a log line of a coordinator is about.
// Workers use the same names.
//
//	tenant, session, batch   tokens, as in subjects
//	call                     the id that the model gave the call
//	index                    the place of the call in its batch, if it has no id
//	trace_id                 the trace that shows the same work
//
// A failure is logged once, by the code that decides what to do about it.
package logfields

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Batch returns log with the fields of a batch, and with the trace of ctx if there is one.
func Batch(ctx context.Context, log *slog.Logger, key wire.BatchKey) *slog.Logger {
	log = log.With("batch", key.Batch, "session", key.Session, "tenant", key.Tenant)
	if id := tracing.ID(ctx); id != "" {
		return log.With("trace_id", id)
	}
	return log
}

// Call returns log with the fields of a call and its batch. The id may be empty.
func Call(ctx context.Context, log *slog.Logger, key wire.CallKey, id messages.CallID) *slog.Logger {
	return Batch(ctx, log, key.BatchKey).With(Attr(id, key.Index))
}

// Attr names a call by its id, or by its index if it has none.
func Attr(id messages.CallID, index int) slog.Attr {
	if id != "" {
		return slog.String("call", string(id))
	}
	return slog.Int("index", index)
}

// RetryLevel returns the level of a log line about an error after which the caller tries
// again. It returns debug while the connection is down, because the connection logs that
// itself.
func RetryLevel(err error) slog.Level {
	if errors.Is(err, bus.ErrDisconnected) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// MaxText is the length in bytes up to which Short leaves a text unchanged.
const MaxText = 256

// Short cuts a text from outside, so that an outsider cannot fill the log or the audit log.
func Short[T ~string](s T) T {
	if len(s) <= MaxText {
		return s
	}
	return T(strings.ToValidUTF8(string(s[:MaxText]), "")) + "..."
}

// Refused logs that a batch is refused. The line names the class and the place in the message.
// The reason may quote a model or an agent, so a second line at the debug level has it. If the
// fleet is to blame, the error is logged already, and both lines are at the debug level.
func Refused(log *slog.Logger, r *messages.Refusal) {
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

// place matches the path of a member of the provider's message. A reason may begin with
// such a path.
var place = regexp.MustCompile(`^([A-Za-z_]+(?:\[\d+\])*(?:\.[A-Za-z_]+(?:\[\d+\])*)*): `)
