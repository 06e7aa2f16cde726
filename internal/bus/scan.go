package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// From is where a [Conn.Scan] begins: at a place of the stream, or at what was stored at a time and later. The zero value is
// its first message.
type From struct {
	Seq  uint64
	Time time.Time // counts where Seq is 0
}

// The first page of a scan is no larger than this.
const (
	firstMessages = 64
	firstBytes    = 1 << 20
)

// Scan calls each for every message that matches filter, in stream order, until each says that it needs no more or there
// is none. It holds a page of them at a time, so any number may match. Whichever replica answers may be behind: what it
// shows is so, and what is newer is found from where it ended.
func (c *Conn) Scan(ctx context.Context, stream, filter string, from From, each func(Msg) (more bool)) error {
	r := everything(filter)
	if r.Seq = max(from.Seq, 1); from.Seq == 0 && !from.Time.IsZero() {
		r.Seq, r.StartTime = 0, &from.Time
	}
	// Most who stop early need little.
	r.Batch, r.MaxBytes = firstMessages, firstBytes
	for {
		var some []Msg
		end, err := c.page(ctx, stream, r, &some)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from %s: %w", stream, streamError(err))
		}
		for _, m := range some {
			if !each(m) {
				return nil
			}
		}
		if end.pending == 0 {
			return nil
		}
		r.Seq, r.StartTime = end.last+1, nil
		r.Batch, r.MaxBytes = readMessages, readBytes
	}
}
