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

// LiveOption is an option of [Client.Live], and of [Client.Watch] too.
type LiveOption interface {
	WatchOption
	live(*live)
}

// live is one [Client.Live].
type live struct {
	client     *Client
	subscribed func() // called once the server has the subscription; nil: nothing is called
	mail       *mailbox[messages.Event]
	losses     uint64 // of the connection, up to the newest event that was taken
}

// Live yields the live events of every session of the tenant, until ctx ends. It reads no
// timelines, so it may miss events if the connection is lost or the caller is slow. It then
// yields an event of the type gap: events before the gap may be missing. [Client.Watch] misses
// no event of one session.
//
// While the connection holds, Live yields every event of the batches that begin after it has
// subscribed: see [Subscribed]. If a batch runs already when Live subscribes, Live may miss
// the batch's events of the first two seconds.
//
// Live ends without an error when ctx ends. If it cannot subscribe, because the connection
// was closed for good, it yields the error once, as the only pair.
func (c *Client) Live(ctx context.Context, options ...LiveOption) iter.Seq2[messages.Event, error] {
	return func(yield func(messages.Event, error) bool) {
		l := &live{client: c, mail: newMailbox[messages.Event]()}
		for _, option := range options {
			option.live(l)
		}
		unsubscribe, err := l.subscribe(ctx)
		if err != nil {
			yield(messages.Event{}, err)
			return
		}
		defer unsubscribe()
		l.run(ctx, yield)
	}
}

// subscribe returns once the server has the subscription, or ctx ends.
func (l *live) subscribe(ctx context.Context) (unsubscribe func(), err error) {
	conn := l.client.conn
	every := wire.BatchKey{Tenant: l.client.tenant, Session: "*", Batch: "*"}
	l.losses = conn.Losses()
	unsubscribe, err = conn.Subscribe(l.client.names.Of(wire.VerbEvent, every), "", func(m bus.Msg) {
		var e messages.Event
		if json.Unmarshal(m.Data, &e) == nil {
			l.mail.put(e)
		}
	})
	if err == nil {
		_ = conn.Flush(ctx) // without a connection, the subscription is made at the reconnect
	}
	return unsubscribe, err
}

func (l *live) run(ctx context.Context, yield func(messages.Event, error) bool) {
	if l.subscribed != nil && ctx.Err() == nil {
		l.subscribed()
	}
	conn := l.client.conn
	defer conn.OnReconnect(l.mail.signal)()
	for {
		events, dropped := l.mail.take()
		// Check for losses after taking the events: a new connection brings its first event before
		// OnReconnect is called.
		if now := conn.Losses(); dropped || now != l.losses {
			l.losses = now
			missed := messages.Event{V: messages.Version, Type: messages.EventGap, Index: -1, Time: time.Now()}
			events = append([]messages.Event{missed}, events...)
		}
		for _, e := range events {
			if ctx.Err() != nil || !yield(e, nil) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-l.mail.wake:
		}
	}
}
