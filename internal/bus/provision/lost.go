package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// LostStream is the error for a missing stream that cannot be made again from other data. A
// person has deleted the stream, or it was so damaged that the server left it out.
type LostStream struct {
	Stream string // the missing stream
	Used   string // another stream, whose messages show that the fleet has worked on this server
	others []string
}

func (l *LostStream) Error() string {
	return fmt.Sprintf("stream %s is gone, and %s shows that it was there: without it accepted batches are lost or writes run twice, so it is not made anew; "+
		"restore it from a backup, or, when nothing that was accepted matters any more, delete what is left of %s, %s and %s", l.Stream, l.Used,
		l.others[0], l.others[1], l.others[2])
}

// Lost returns a *LostStream if BATCHES, CALLS or REPLIES is missing and another of these
// three has been used. On a new server none of them has been used, so Lost returns nil.
func Lost(ctx context.Context, c *bus.Conn) error {
	names := []string{c.Names().Stream(bus.Batches), c.Names().Stream(bus.Calls), c.Names().Stream(bus.Replies)}
	var missing, used string
	for _, name := range names {
		s, err := lookAt(ctx, c, name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			missing = name
		case err != nil:
			return provisionError(name, err)
		case s.CachedInfo().State.LastSeq > 0:
			used = name
		}
	}
	if missing == "" || used == "" {
		return nil
	}
	return &LostStream{missing, used, names}
}

// lookAt opens a stream. It waits at most 3 s, because a cluster without a leader does not
// answer.
func lookAt(ctx context.Context, c *bus.Conn, name string) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return c.JetStream().Stream(ctx, name)
}
