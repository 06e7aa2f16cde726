package client

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Live subscribes to the live events of every session of the tenant, and yields them until ctx
// ends. It reads no timelines, so events may be missed. An event of the type gap says that events
// before it may be missing, because the connection was lost or the caller was slow. [Client.Watch]
// misses no event of one session.
//
// While the connection holds, Live yields every event of the batches that begin after it has
// returned. Of batches that run already, events of the first two seconds may be missed.
func (c *Client) Live(ctx context.Context) (iter.Seq[messages.Event], error) {
	mail := newMailbox[messages.Event]()
	every := wire.BatchKey{Tenant: c.tenant, Session: "*", Batch: "*"}
	losses := c.conn.Losses()
	unsubscribe, err := c.conn.Subscribe(c.names.Of(wire.VerbEvent, every), "", func(m bus.Msg) {
		var e messages.Event
		if json.Unmarshal(m.Data, &e) == nil {
			mail.put(e)
		}
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, unsubscribe)
	if err := c.conn.Flush(ctx); err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return func(yield func(messages.Event) bool) {
		defer c.conn.OnReconnect(mail.signal)()
		for {
			events, dropped := mail.take()
			// Check for losses after taking the events: a new connection brings its first event
			// before OnReconnect is called.
			if now := c.conn.Losses(); dropped || now != losses {
				losses = now
				missed := messages.Event{V: messages.Version, Type: messages.EventGap, Index: -1, Time: time.Now()}
				events = append([]messages.Event{missed}, events...)
			}
			for _, e := range events {
				if ctx.Err() != nil || !yield(e) {
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-mail.wake:
			}
		}
	}, nil
}
