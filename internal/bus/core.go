package bus

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bus/status"
)

// Header has the headers of a message, spelled as they are sent.
type Header map[string][]string

// Get returns the first value of name in any letter case, or "". Clients in other languages
// spell the same header in different ways.
func (h Header) Get(name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	for k, v := range h {
		if len(v) > 0 && strings.EqualFold(k, name) {
			return v[0]
		}
	}
	return ""
}

// Set replaces the values of name in exactly this spelling. For NATS, another letter case is
// another header.
func (h Header) Set(name, value string) { h[name] = []string{value} }

// Msg is a received message.
type Msg struct {
	Subject string
	Reply   string // where the sender wants an answer; "" = no answer wanted
	Header  Header // may be nil
	Data    []byte

	// Seq is the message's sequence in its stream, and Time is when the server stored it.
	// Both are zero if the message is not in a stream.
	Seq  uint64
	Time time.Time
}

func received(m *nats.Msg) Msg {
	return Msg{Subject: m.Subject, Reply: m.Reply, Header: Header(m.Header), Data: m.Data}
}

func outgoing(subject string, h Header, data []byte) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header(h), Data: data}
}

// with returns a copy of h with one more header. It leaves h unchanged, because h belongs to
// the caller.
func (h Header) with(name, value string) Header {
	out := make(Header, len(h)+1)
	for k, v := range h {
		out[k] = v
	}
	out.Set(name, value)
	return out
}

// Publish sends a message to the present subscribers of the subject, if there are any.
func (c *Conn) Publish(subject string, h Header, data []byte) error {
	if err := c.nc.PublishMsg(outgoing(subject, h, data)); err != nil {
		return fmt.Errorf("publish %s: %w", subject, ClientError(err))
	}
	return nil
}

// Respond answers a message. It does nothing if the sender wants no answer.
func (c *Conn) Respond(to Msg, h Header, data []byte) error {
	if to.Reply == "" {
		return nil
	}
	return c.Publish(to.Reply, h, data)
}

// Subscribe calls handle for every message, one after another, on a goroutine of the
// subscription. With a queue, each message goes to only one member of the queue. After
// unsubscribe no new call of handle begins, but one may still be running.
func (c *Conn) Subscribe(subject, queue string, handle func(Msg)) (unsubscribe func(), err error) {
	sub, err := c.nc.QueueSubscribe(subject, queue, func(m *nats.Msg) { handle(received(m)) })
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, ClientError(err))
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// SubscribeInOrder calls handle for every message of all subjects, one after another and in
// the order of arrival, on a goroutine. At most 1,024 messages wait for handle; further
// messages are dropped. After unsubscribe, handle may still be called for waiting messages.
func (c *Conn) SubscribeInOrder(subjects []string, handle func(Msg)) (unsubscribe func(), err error) {
	news, over := make(chan *nats.Msg, 1024), make(chan struct{})
	var subs []*nats.Subscription
	unsubscribe = sync.OnceFunc(func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
		close(over)
	})
	for _, subject := range subjects {
		sub, err := c.nc.ChanSubscribe(subject, news)
		if err != nil {
			unsubscribe()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, ClientError(err))
		}
		subs = append(subs, sub)
	}
	go func() {
		for {
			select {
			case <-over:
				return
			case m := <-news:
				handle(received(m))
			}
		}
	}()
	return unsubscribe, nil
}

// Request sends a request and waits for the first answer. The error is ErrNoResponders,
// ErrDisconnected, ErrTooLarge, or the error of the context.
func (c *Conn) Request(ctx context.Context, subject string, h Header, data []byte) (Msg, error) {
	ctx, cancel := ended(ctx)
	defer cancel()
	m, err := c.nc.RequestMsgWithContext(ctx, outgoing(subject, h, data))
	if err != nil {
		return Msg{}, fmt.Errorf("request %s: %w", subject, ClientError(err))
	}
	return received(m), nil
}

// Stream sends one request. It calls the function each for every answer, until each returns
// false or ctx ends.
func (c *Conn) Stream(ctx context.Context, subject string, h Header, data []byte, each func(Msg) (more bool)) error {
	ctx, cancel := ended(ctx)
	defer cancel()
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("request %s: %w", subject, ClientError(err))
	}
	defer func() { _ = sub.Unsubscribe() }()
	ask := outgoing(subject, h, data)
	ask.Reply = inbox
	if err := c.nc.PublishMsg(ask); err != nil {
		return fmt.Errorf("request %s: %w", subject, ClientError(err))
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("request %s: %w", subject, ClientError(err))
		}
		if status.Of(m) == status.NoResponders {
			return fmt.Errorf("request %s: %w", subject, ErrNoResponders)
		}
		if !each(received(m)) {
			return nil
		}
	}
}

// Flush returns when the server has received everything that was sent before.
func (c *Conn) Flush(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flush: %w", ClientError(err))
	}
	return nil
}
