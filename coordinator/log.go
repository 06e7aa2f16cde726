package coordinator

import (
	"context"
	"log/slog"
	"regexp"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/messages"
)

// What a line of the log is about is told by the same words everywhere, here and in the workers: tenant, session and batch
// are tokens, as in subjects; call is the id that the model gave it, or index its place where the id is not known;
// trace_id is the trace that tells of the same. A failure has one line, where it is decided what comes of it.

// call names a call of the batch that is driven.
func (d *drive) call(index int) slog.Attr { return logfields.Attr(d.in.Calls[index].ID, index) }

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
