package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// ensureCurrent makes a durable anew that is ahead of its stream: one that has delivered what the stream never had. A power
// failure does that to a stream that is not synced, whose consumers are. It would deliver nothing until the stream has
// caught up. What it had not settled is delivered again, which a delivery always may be.
//
// The consumer is asked first: what it has delivered by then, the stream has had when it is asked.
func (c *Conn) ensureCurrent(ctx context.Context, want Consumer) error {
	for range 3 { // another process may do the same at this moment
		have, err := c.js.Consumer(ctx, want.Stream, want.Name)
		var stream jetstream.Stream
		if err == nil {
			stream, err = c.js.Stream(ctx, want.Stream)
		}
		if err == nil && have.CachedInfo().Delivered.Stream <= stream.CachedInfo().State.LastSeq {
			return nil
		}
		if err == nil {
			c.log.Warn("a consumer is ahead of its stream, as after a power failure; it is made anew", "stream", want.Stream,
				"consumer", want.Name, "delivered", have.CachedInfo().Delivered.Stream, "last", stream.CachedInfo().State.LastSeq)
			if err = c.js.DeleteConsumer(ctx, want.Stream, want.Name); err == nil || errors.Is(err, jetstream.ErrConsumerNotFound) {
				_, err = c.js.CreateOrUpdateConsumer(ctx, want.Stream, want.config())
			}
		}
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("consumer %s of %s: %w", want.Name, want.Stream, err)
		}
	}
	return fmt.Errorf("consumer %s of %s stays ahead of its stream; delete it, and it is made anew", want.Name, want.Stream)
}
