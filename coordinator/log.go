package coordinator

import (
	"context"
	"log/slog"
	"regexp"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/messages"
)

// callAttr names a call of the batch in a log line.
func (d *batchRun) callAttr(index int) slog.Attr { return logfields.Attr(d.in.Calls[index].ID, index) }

// logRefusal says that a batch is refused, and where in the message the reason is. The reason quotes
// what a model or an agent wrote, so it has the level debug. A refusal because of a fault of the fleet
// has an error in the log already.
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

// place matches what reasons begin with: the path of a member in the provider's message.
var place = regexp.MustCompile(`^([A-Za-z_]+(?:\[\d+\])*(?:\.[A-Za-z_]+(?:\[\d+\])*)*): `)

// levelOfReply is the level of the line about a reply. A refusal was logged already.
func levelOfReply(s messages.ReplyStatus) slog.Level {
	if s == messages.ReplyRefused {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
