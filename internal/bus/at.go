package bus

import "context"

// At is the message at a place of a stream. ErrNotFound when there is none, any more or yet.
func (c *Conn) At(ctx context.Context, stream string, seq uint64) (Msg, error) {
	return c.direct(ctx, stream, getRequest{Seq: seq})
}

// NewestAt is At, and never behind: where several servers hold the stream its leader is asked.
func (c *Conn) NewestAt(ctx context.Context, stream string, seq uint64) (Msg, error) {
	return c.one(ctx, stream, getRequest{Seq: seq})
}
