package bus

import "context"

// At returns the message at sequence seq of a stream. The error is ErrNotFound when the message was
// removed or is not stored yet. A replica that is behind may answer.
func (c *Conn) At(ctx context.Context, stream string, seq uint64) (Msg, error) {
	return c.direct(ctx, stream, getRequest{Seq: seq})
}

// NewestAt is At, and never behind: where several servers hold the stream its leader is asked.
func (c *Conn) NewestAt(ctx context.Context, stream string, seq uint64) (Msg, error) {
	return c.one(ctx, stream, getRequest{Seq: seq})
}
