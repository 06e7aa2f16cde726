package bus

import "context"

// At returns the message at a sequence of a stream. It returns ErrNotFound if the message
// was removed or is not stored yet. A replica that is behind may answer.
func (c *Conn) At(ctx context.Context, stream string, seq uint64) (Msg, error) {
	return c.direct(ctx, stream, getRequest{Seq: seq})
}

// NewestAt is like At, but it asks the leader of a cluster, so the answer is never out of
// date.
func (c *Conn) NewestAt(ctx context.Context, stream string, seq uint64) (Msg, error) {
	return c.one(ctx, stream, getRequest{Seq: seq})
}
