// Package client is the agent's side for Go programs: submit the message that a model made, get
// back what to append to the conversation.
//
//	c, err := client.Connect(ctx, client.Options{URL: "nats://localhost:4222"})
//	reply, err := c.Run(ctx, messages.Batch{
//		ID: "turn-7", Session: "conversation-1", Provider: messages.Anthropic, Message: message,
//	}, nil)
//	history = append(history, message, reply.Reinjection)
//
// The id of a batch is its idempotency key: whatever happens to the connection or to the program,
// the same batch may be run again and is not executed twice.
package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Options say where the fleet is and how to connect to it.
type Options struct {
	URL    string // default nats://127.0.0.1:4222; several separated by commas
	Creds  string // path of a NATS credentials file
	NKey   string // path of the seed of an nkey
	Name   string // shown in the server's list of connections
	Prefix string // default "toolfleet"
	Tenant string // token in the subjects; default "_", the only tenant
	// InboxPrefix is the subject prefix for answers, for a user that may not subscribe everywhere.
	// Default _INBOX.
	InboxPrefix string
	// Tracer makes the spans of the batches that are sent. When it is nil and the context of a call
	// holds a span, that span's provider makes them, so a program with OpenTelemetry needs no
	// option. The trace context is passed on to the fleet in any case.
	Tracer trace.Tracer
}

// Client submits batches. Safe for concurrent use.
type Client struct {
	conn   *bus.Conn
	names  wire.Names
	tenant string
	owned  bool
	tracer trace.Tracer // nil: see Options
}

// What Get and Run return for a batch without a reply.
var (
	ErrRunning = errors.New("the batch is queued or running")
	ErrUnknown = errors.New("no such batch: it was never accepted, or its reply is no longer kept")
	// ErrNoFleet means that no coordinator answers on the fleet's subjects.
	ErrNoFleet = errors.New("no coordinator answers: start one with `toolfleet dev` or `toolfleet coordinator`")
)

// Connect connects to the fleet's NATS server.
func Connect(ctx context.Context, o Options) (*Client, error) {
	name := o.Name
	if name == "" {
		name = "toolfleet client"
	}
	conn, err := bus.Connect(ctx, bus.Options{URL: o.URL, Creds: o.Creds, NKey: o.NKey, Name: name, Prefix: o.Prefix, InboxPrefix: o.InboxPrefix})
	if err != nil {
		return nil, err
	}
	c := Over(conn, o.Tenant)
	c.owned, c.tracer = true, o.Tracer
	return c, nil
}

// Over returns a client on a connection that stays the caller's: Close leaves it open. A tenant of
// "" is the only tenant. Programs outside of this module use Connect.
func Over(conn *bus.Conn, tenant string) *Client {
	if tenant == "" {
		tenant = messages.OneTenant
	}
	return &Client{conn: conn, names: conn.Names(), tenant: tenant}
}

// Close closes the connection that Connect made.
func (c *Client) Close() {
	if c.owned {
		c.conn.Close()
	}
}

// comingBack is how long no coordinator may answer before that is reported: one may be restarting.
const comingBack = 3 * time.Second

func (c *Client) key(s messages.SessionID, b messages.BatchID) wire.BatchKey {
	return wire.KeyOf(c.tenant, s, b)
}

// Run submits a batch, calls each for its events (each may be nil) and returns its reply. For a
// refused batch the error is a *messages.Refusal and the reply is returned too; Run retries a
// refusal of the class busy. When the connection is lost or a coordinator stops, Run asks again how
// the batch stands and keeps waiting. If ctx ends first, the batch goes on and its reply can be
// fetched.
//
// If no coordinator answers for 3 s, Run emits one EventWaiting per outage. It returns ErrNoFleet
// only if none ever answered.
func (c *Client) Run(ctx context.Context, b messages.Batch, each func(messages.Event)) (messages.Reply, error) {
	body, err := c.encode(&b)
	if err != nil {
		return messages.Reply{}, err
	}
	return c.run(ctx, b, body, each)
}

// RunBody is [Client.Run] for a batch that is encoded already. It sends the bytes unchanged: the
// same bytes are the same batch, whichever program sends them.
func (c *Client) RunBody(ctx context.Context, body []byte, each func(messages.Event)) (messages.Reply, error) {
	b, err := messages.DecodeBatch(body)
	if err == nil {
		err = c.fits(body)
	}
	if err != nil {
		return messages.Reply{}, err
	}
	return c.run(ctx, b, body, each)
}

func (c *Client) run(ctx context.Context, b messages.Batch, body []byte, each func(messages.Event)) (reply messages.Reply, err error) {
	// Ask for events even when each is nil: the waiting events among them show that the coordinator
	// still works on the request.
	header := bus.Header{messages.ProgressHeader: {"1"}}
	ctx, span := c.send(ctx, trace.SpanKindClient, wire.VerbRun, b, header)
	defer func() { sent(ctx, span, reply, err) }()
	key := c.key(b.Session, b.ID)
	n, stop, err := c.listen(key, messages.Digest(body))
	if err != nil {
		return messages.Reply{}, err
	}
	defer stop()
	var deserted time.Time // since when no coordinator answers
	// met: a coordinator was there, so the batch may have been accepted.
	// told: the current outage was reported.
	var met, told bool
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		reply, err := c.ask(ctx, c.names.Of(wire.VerbRun, key), n, header, body, each)
		var refusal *messages.Refusal
		switch {
		case err == nil:
			return reply, nil
		case errors.As(err, &refusal) && refusal.Class != messages.ClassBusy:
			return reply, err
		case ctx.Err() != nil:
			return reply, fmt.Errorf("batch %s: %w; it goes on without us, and its reply can be fetched", b.ID, context.Cause(ctx))
		case errors.Is(err, bus.ErrNoResponders):
			if deserted.IsZero() {
				deserted = time.Now()
			}
			long := time.Since(deserted) > comingBack
			if long && !met {
				return reply, ErrNoFleet
			}
			if long && !told && each != nil {
				told = true
				each(messages.Event{V: messages.Version, Type: messages.EventWaiting, Session: b.Session, Batch: b.ID, Index: -1, Time: time.Now()})
			}
		case bus.IsTerminal(err):
			return reply, fmt.Errorf("batch %s: %w", b.ID, err)
		}
		if !errors.Is(err, bus.ErrNoResponders) {
			deserted, told = time.Time{}, false
			met = met || !errors.Is(err, bus.ErrDisconnected) // else not even sent
		}
		if refusal != nil {
			wait = max(100*time.Millisecond, time.Duration(refusal.RetryAfterMS)*time.Millisecond)
		}
		// The request was lost on the way. To submit again is safe: the answer is for the batch
		// that runs or ran.
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// Submit publishes a batch and returns when it is durable. The reply is published on the reply
// subject and can be fetched with Await or Get. A batch that exists already is no error.
func (c *Client) Submit(ctx context.Context, b messages.Batch) error {
	body, err := c.encode(&b)
	if err != nil {
		return err
	}
	header := bus.Header{}
	ctx, span := c.send(ctx, trace.SpanKindProducer, wire.VerbBatch, b, header)
	_, err = c.conn.Append(ctx, c.names.Of(wire.VerbBatch, c.key(b.Session, b.ID)), header, body)
	switch {
	case errors.Is(err, bus.ErrExists):
		err = nil // the batch is stored already
	case err != nil:
		err = fmt.Errorf("submit batch %s: %w", b.ID, err)
	}
	sent(ctx, span, messages.Reply{}, err)
	return err
}

// Await waits for the reply of a submitted batch. Every 2 s it also asks for the reply, in case the
// published one was missed or is too large for a message. It returns ErrUnknown for an unknown
// batch.
func (c *Client) Await(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Reply, error) {
	n, stop, err := c.listen(c.key(s, b), "")
	if err != nil {
		return messages.Reply{}, err
	}
	defer stop()
	for {
		reply, err := c.get(ctx, s, b, n, nil)
		var refusal *messages.Refusal
		if err == nil || errors.Is(err, ErrUnknown) || errors.As(err, &refusal) && refusal.Class != messages.ClassBusy || bus.IsTerminal(err) {
			return reply, err
		}
		select {
		case <-n.arrived:
			return read(n.reply)
		// The published reply was missed, or is too large for a message.
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return reply, fmt.Errorf("batch %s: %w", b, context.Cause(ctx))
		}
	}
}

// Get returns the reply of a batch, or ErrRunning, ErrUnknown or ErrNoFleet. It waits at most 10 s.
func (c *Client) Get(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Reply, error) {
	return c.get(ctx, s, b, unheard, nil)
}

// GetFull is Get with the full outputs in the results.
func (c *Client) GetFull(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Reply, error) {
	return c.get(ctx, s, b, unheard, []byte(`{"results":"full"}`))
}

func (c *Client) get(ctx context.Context, s messages.SessionID, b messages.BatchID, n *news, body []byte) (messages.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reply, err := c.ask(ctx, c.names.Of(wire.VerbGet, c.key(s, b)), n, nil, body, nil)
	for errors.Is(err, errReconnected) {
		reply, err = c.ask(ctx, c.names.Of(wire.VerbGet, c.key(s, b)), n, nil, body, nil)
	}
	if errors.Is(err, bus.ErrNoResponders) {
		return reply, ErrNoFleet
	}
	return reply, err
}

func (c *Client) encode(b *messages.Batch) ([]byte, error) {
	b.V = messages.Version
	body, err := b.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode batch %s: %w", b.ID, err)
	}
	return body, c.fits(body)
}

// fits refuses a body that does not fit into one message with 64 KiB to spare for headers and
// subject.
func (c *Client) fits(body []byte) error {
	if limit := c.conn.MaxPayload() - 64<<10; len(body) > limit {
		return &messages.Refusal{Class: messages.ClassTooLarge, Message: fmt.Sprintf("the batch has %d bytes; the limit is %d", len(body), limit)}
	}
	return nil
}
