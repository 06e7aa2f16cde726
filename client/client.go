// Package client is the agent's side for Go programs: submit the message that a model made, get back what
// to append to the conversation.
//
//	c, err := client.Connect(ctx, client.Options{URL: "nats://localhost:4222"})
//	reply, err := c.Run(ctx, messages.Batch{
//		ID: "turn-7", Session: "conversation-1", Provider: messages.Anthropic, Message: message}, nil)
//	history = append(history, message, reply.Reinjection)
//
// The id of a batch is its idempotency key: whatever happens to the connection or to the program, the same
// batch may be run again and is not executed twice.
package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// Options say where the fleet is and who we are.
type Options struct {
	URL    string // default nats://127.0.0.1:4222; several separated by commas
	Creds  string // path of a NATS credentials file
	NKey   string // path of the seed of an nkey
	Name   string // shown in the server's list of connections
	Prefix string // default "toolfleet"
	Tenant string // token in the subjects; default "_", the only tenant
	// InboxPrefix is where answers come in, for a user that may not listen everywhere. Default _INBOX.
	InboxPrefix string
	// Tracer makes the spans of the batches that are sent. Nil: where the context of a call holds a span, its own provider does,
	// so that a program with OpenTelemetry needs no option. That context goes on to the fleet in any case.
	Tracer trace.Tracer
}

// Client submits batches. Safe for concurrent use.
type Client struct {
	conn   *bus.Conn
	names  messages.Names
	tenant string
	owned  bool
	tracer trace.Tracer // nil: see Options
}

// What Get and Run report of a batch without a reply.
var (
	ErrRunning = errors.New("the batch is queued or running")
	ErrUnknown = errors.New("no such batch: it was never accepted, or its reply is no longer kept")
	// ErrNoFleet: nothing answers on the fleet's subjects.
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

// Over is a client on a connection that stays the caller's. Programs outside of this module use Connect.
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

// comingBack is how long nobody may listen before that is reported: a coordinator may be restarting.
const comingBack = 3 * time.Second

func (c *Client) key(s messages.SessionID, b messages.BatchID) messages.BatchKey {
	return messages.KeyOf(c.tenant, s, b)
}

// Run submits a batch, tells each of its events (each may be nil) and returns its reply. A refused batch
// is a *messages.Refusal besides the reply. When the connection is lost on the way, or a coordinator goes,
// Run finds out how the batch stands and waits on; when ctx ends first, the batch goes on without us. That nobody
// answers any more is told, once for each time, as an event of the type waiting. Only where nobody ever did it is ErrNoFleet.
func (c *Client) Run(ctx context.Context, b messages.Batch, each func(messages.Event)) (messages.Reply, error) {
	body, err := c.encode(&b)
	if err != nil {
		return messages.Reply{}, err
	}
	return c.run(ctx, b, body, each)
}

// RunBody is [Client.Run] for a batch that is encoded already: it is sent as it is, so that the same
// bytes, whoever sends them, are the same batch.
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
	// Events are asked for also when nobody wants them: they are the sign that somebody waits for the batch.
	header := bus.Header{messages.ProgressHeader: {"1"}}
	ctx, span := c.send(ctx, trace.SpanKindClient, messages.VerbRun, b, header)
	defer func() { sent(ctx, span, reply, err) }()
	key := c.key(b.Session, b.ID)
	n, stop, err := c.listen(key, messages.Digest(body))
	if err != nil {
		return messages.Reply{}, err
	}
	defer stop()
	var deserted time.Time // since when nobody listens
	var met, told bool     // somebody was there, so the batch may be accepted; that nobody is any more was told
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		reply, err := c.ask(ctx, c.names.Of(messages.VerbRun, key), n, header, body, each)
		var refusal *messages.Refusal
		switch {
		case err == nil:
			return reply, nil
		case errors.As(err, &refusal) && refusal.Class != messages.Busy:
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
			met = met || !errors.Is(err, bus.ErrDisconnected) // then it was not even sent
		}
		if refusal != nil {
			wait = max(100*time.Millisecond, time.Duration(refusal.RetryAfterMS)*time.Millisecond)
		}
		select { // lost on the way: submitting again answers for what runs or ran
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// Submit publishes a batch and returns when it is durable. Its reply comes on the reply subject and can be
// fetched with Await or Get.
func (c *Client) Submit(ctx context.Context, b messages.Batch) error {
	body, err := c.encode(&b)
	if err != nil {
		return err
	}
	header := bus.Header{}
	ctx, span := c.send(ctx, trace.SpanKindProducer, messages.VerbBatch, b, header)
	_, err = c.conn.Append(ctx, c.names.Of(messages.VerbBatch, c.key(b.Session, b.ID)), header, body)
	switch {
	case errors.Is(err, bus.ErrExists):
		err = nil // it is running already
	case err != nil:
		err = fmt.Errorf("submit batch %s: %w", b.ID, err)
	}
	sent(ctx, span, messages.Reply{}, err)
	return err
}

// Await waits for the reply of a batch that was submitted.
func (c *Client) Await(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Reply, error) {
	n, stop, err := c.listen(c.key(s, b), "")
	if err != nil {
		return messages.Reply{}, err
	}
	defer stop()
	for {
		reply, err := c.get(ctx, s, b, n, nil)
		var refusal *messages.Refusal
		if err == nil || errors.Is(err, ErrUnknown) || errors.As(err, &refusal) && refusal.Class != messages.Busy || bus.IsTerminal(err) {
			return reply, err
		}
		select {
		case <-n.arrived:
			return read(n.reply)
		case <-time.After(2 * time.Second): // one that was missed, or is too large for a message
		case <-ctx.Done():
			return reply, fmt.Errorf("batch %s: %w", b, context.Cause(ctx))
		}
	}
}

// Get is the reply of a batch, or ErrRunning, or ErrUnknown.
func (c *Client) Get(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Reply, error) {
	return c.get(ctx, s, b, unheard, nil)
}

// GetFull is Get with the outputs in the results too.
func (c *Client) GetFull(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Reply, error) {
	return c.get(ctx, s, b, unheard, []byte(`{"results":"full"}`))
}

func (c *Client) get(ctx context.Context, s messages.SessionID, b messages.BatchID, n *news, body []byte) (messages.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reply, err := c.ask(ctx, c.names.Of(messages.VerbGet, c.key(s, b)), n, nil, body, nil)
	for errors.Is(err, errReconnected) {
		reply, err = c.ask(ctx, c.names.Of(messages.VerbGet, c.key(s, b)), n, nil, body, nil)
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

func (c *Client) fits(body []byte) error {
	if limit := c.conn.MaxPayload() - 64<<10; len(body) > limit {
		return &messages.Refusal{Class: messages.TooLarge, Message: fmt.Sprintf("the batch has %d bytes; the limit is %d", len(body), limit)}
	}
	return nil
}
