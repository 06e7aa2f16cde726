package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// From is where a [Conn.Scan] begins: at a sequence of the stream, or at the first message
// that was stored at this time or later. The zero value is the first message of the stream.
type From struct {
	Seq  uint64
	Time time.Time // used when Seq is 0
}

// Limits of the first page of a scan.
const (
	firstMessages = 64
	firstBytes    = 1 << 20
)

// Scan calls the function each for every message that matches filter, in stream order, until
// each returns false or no message is left. It keeps one page in memory, so any number of
// messages may match. A replica that is behind may answer: then the newest messages may be
// missing. To see them, scan again from the last sequence.
func (c *Conn) Scan(ctx context.Context, stream, filter string, from From, each func(Msg) (more bool)) error {
	r := everything(filter)
	if r.Seq = max(from.Seq, 1); from.Seq == 0 && !from.Time.IsZero() {
		r.Seq, r.StartTime = 0, &from.Time
	}
	// The first page is small, because callers that stop early usually need few messages.
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

// CountAfter counts the messages after sequence seq that match filter. first is when the
// oldest of them was stored.
func (c *Conn) CountAfter(ctx context.Context, stream, filter string, seq uint64) (n uint64, first time.Time, err error) {
	var found []Msg
	end, err := c.page(ctx, stream, getRequest{NextFor: filter, Seq: seq + 1, Batch: 1}, &found)
	if errors.Is(err, ErrNotFound) {
		return 0, first, nil
	}
	if err != nil || len(found) == 0 {
		return 0, first, streamError(err)
	}
	return end.pending + 1, found[0].Time, nil
}
