// Package client is the agent's side for Go programs: it submits the message of a model and
// returns what to append to the conversation.
//
//	c, err := client.Connect(ctx, fleet.Options{URL: "nats://localhost:4222"})
//	reply, err := c.Run(ctx, messages.Batch{
//		ID: "turn-7", Session: "conversation-1", Provider: messages.Anthropic, Message: message,
//	})
//	history = reply.Extend(append(history, message))
//
// [messages.Reply.Done] reports that the model made no calls, so its turn is over.
//
// The id of a batch is its idempotency key. After a lost connection or a crash a program may
// run the same batch again: its calls do not run twice.
//
//	one batch     Run, or Submit and then Await or Get    submit it, and its reply
//	              Follow, Timeline                        what happens to it, what has happened
//	              Abort                                   end it now
//	a turn        Loop                                    ask the model and run its calls, in turn
//	a session     Watch, Batches                          its batches as they run, or as a list
//	              Live                                    what happens now in all sessions
//	              AbortSession, Steer                     end its batches; send the model a message
//	people        Approvals, Approval, WatchApprovals     calls that wait for a person
//	              Signer.Sign, Decide                     allow or deny one
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Option is an option of [Connect].
type Option func(*settings)

type settings = clientconn.Settings

// Tenant sets the tenant that the client acts for. Its name is a token in the fleet's
// subjects. The default, also for "", is [messages.OneTenant]: the tenant of a fleet that has
// only one.
func Tenant(tenant string) Option { return func(s *settings) { s.Tenant = tenant } }

// Tracer makes the client create the spans of submitted batches with t. Without this option
// the client uses the tracer provider of the span in the call's context, so a program with
// OpenTelemetry needs no option. The trace context reaches the fleet in both cases.
func Tracer(t trace.Tracer) Option { return func(s *settings) { s.Tracer = t } }

// Client submits batches. Safe for concurrent use.
type Client struct {
	conn   *bus.Conn
	names  wire.Names
	tenant string
	owned  bool
	tracer trace.Tracer // nil: see Tracer
	// asks returns the value of [messages.PrincipalHeader] for the batch with this digest:
	// it says which user asks for the batch. May be nil.
	asks func(digest string) string
}

// Errors of the methods. Other errors are a *[messages.Refusal] whose class says why the fleet
// refused a request, the error of a context, or a problem with the connection.
var (
	// ErrRunning is returned by Get: the batch is queued or running. Ask again later, or use Await
	// or Run.
	ErrRunning = errors.New("the batch is queued or running")
	// ErrUnknown is returned by Get, Await, Timeline and Follow for a batch that the fleet
	// does not know. The caller may submit the batch. If the batch was submitted before and
	// its reply has aged out (reply_ttl, by default 24 h), its calls run again.
	ErrUnknown = errors.New("no such batch: it was never accepted, or its reply is no longer kept")
	// ErrNoFleet means that no coordinator answers on the fleet's subjects: none runs, or the
	// prefix or the tenant is wrong. Submit and Watch do not return it. Submit stores a batch
	// without a coordinator, and Watch waits for one.
	ErrNoFleet = errors.New("no coordinator answers: start one with `toolfleet dev` or `toolfleet coordinator`")
)

// Connect connects to the NATS server of a fleet. It tries for 10 s, or until ctx ends. If the
// connection is lost later, the client reconnects by itself until it is closed. Connect does
// not check that a coordinator runs.
func Connect(ctx context.Context, o fleet.Options, options ...Option) (*Client, error) {
	var s settings
	for _, option := range options {
		option(&s)
	}
	c := &Client{conn: s.Conn, tenant: cmp.Or(s.Tenant, messages.OneTenant), tracer: s.Tracer}
	if c.conn == nil {
		conn, err := bus.Connect(ctx, bus.To(o, "toolfleet client"))
		if err != nil {
			return nil, err
		}
		c.conn, c.owned = conn, true
	}
	c.names = c.conn.Names()
	return c, nil
}

// Close closes the connection. Calls that are in progress end with an error, but the fleet
// goes on with their batches.
func (c *Client) Close() {
	if c.owned {
		c.conn.Close()
	}
}

// OnBehalf returns a client that states with each batch which user asks for it. It is for
// servers that let users log in. statement gets the digest of a batch and returns the value
// of [messages.PrincipalHeader]; "" sends no header. The client uses the connection of c.
func (c *Client) OnBehalf(statement func(digest string) string) *Client {
	other := *c
	other.owned, other.asks = false, statement
	return &other
}

// sayWhoAsks sets the header that says which user asks for a batch. Only a client made by
// OnBehalf sets it.
func (c *Client) sayWhoAsks(header bus.Header, body []byte) {
	if c.asks == nil {
		return
	}
	if statement := c.asks(messages.Digest(body)); statement != "" {
		header.Set(messages.PrincipalHeader, statement)
	}
}

// comingBack is how long a missing coordinator counts as one that restarts. After that time
// it counts as an outage.
const comingBack = 3 * time.Second

func (c *Client) key(s messages.SessionID, b messages.BatchID) wire.BatchKey {
	return wire.KeyOf(c.tenant, s, b)
}

// RunOption is an option of [Client.Run].
type RunOption interface{ run(*runOptions) }

// SubmitOption is an option of [Client.Submit], and of [Client.Run] too.
type SubmitOption interface {
	RunOption
	submit(*runOptions)
}

type runOptions struct {
	each     func(messages.Event) // never nil
	body     []byte               // nil: the batch is encoded
	patience time.Duration        // how long refusals of the class busy are retried; negative: forever
}

// OnEvent calls each for the live events of the batch, on the goroutine of Run. A slow
// function delays the reply. Events may be lost; [Client.Follow] loses none.
//
// Run itself emits one event per outage: a coordinator has answered before, and none has
// answered for 3 s. That event has the type waiting and the index -1.
func OnEvent(each func(messages.Event)) RunOption { return onEvent(each) }

type onEvent func(messages.Event)

func (each onEvent) run(o *runOptions) { o.each = each }

// RetryBusy limits how long Run retries a batch that the fleet refuses as busy. After d,
// Run returns the refusal, unless the fleet has accepted the batch by then. Without
// RetryBusy, Run retries until its context ends.
func RetryBusy(d time.Duration) RunOption { return retryBusy(d) }

type retryBusy time.Duration

func (d retryBusy) run(o *runOptions) { o.patience = time.Duration(d) }

// WithBody sends body, which is a batch in JSON, unchanged. The batch argument of Run or
// Submit is then ignored. The fleet treats two submits as the same batch only if their
// bytes are equal, so all programs that send a batch must send the same bytes.
func WithBody(body []byte) SubmitOption { return withBody(body) }

type withBody []byte

func (body withBody) run(o *runOptions)    { o.body = body }
func (body withBody) submit(o *runOptions) { o.body = body }

// Run submits a batch and returns its reply. It may be called again with the same batch, by this
// program or another: the calls are not run again, and the reply is the same.
//
// Run waits as long as the batch takes. If the connection is lost or a coordinator stops, Run
// sends the request again and goes on waiting. Run also retries a refusal of the class busy.
// If ctx ends first, the batch goes on, and [Client.Get] can fetch its reply.
//
// The outputs of the calls are in the reply's Reinjection. The reply's Results leave the
// outputs out; Get with [FullResults] puts them there too. Run, Await and Get return the whole
// reply, even if it is too large for one message, so its Ref is nil.
//
// For a refused batch the error is a *messages.Refusal, and the reply is returned too. The
// error is [ErrNoFleet] if no coordinator has answered for 3 s, and none has answered this Run
// before.
func (c *Client) Run(ctx context.Context, b messages.Batch, options ...RunOption) (messages.Reply, error) {
	o := defaultRun()
	for _, option := range options {
		option.run(&o)
	}
	b, err := c.prepare(b, &o)
	if err != nil {
		return messages.Reply{}, err
	}
	return c.run(ctx, b, o)
}

func defaultRun() runOptions { return runOptions{each: func(messages.Event) {}, patience: -1} }

// prepare returns the batch that is sent, and sets o.body to its JSON. If o.body is set
// already, it wins: prepare ignores b and returns the batch in that body.
func (c *Client) prepare(b messages.Batch, o *runOptions) (_ messages.Batch, err error) {
	if o.body == nil {
		o.body, err = c.encode(&b)
	} else if b, err = messages.DecodeBatch(o.body); err == nil {
		err = c.fits(o.body)
	}
	return b, err
}

func (c *Client) run(ctx context.Context, b messages.Batch, o runOptions) (reply messages.Reply, err error) {
	// Ask for events in any case: the waiting events among them show that the coordinator
	// still works on the request.
	header := bus.Header{messages.ProgressHeader: {"1"}}
	c.sayWhoAsks(header, o.body)
	ctx, span := c.send(ctx, trace.SpanKindClient, wire.VerbRun, b, header)
	defer func() { sent(ctx, span, reply, err) }()
	key := c.key(b.Session, b.ID)
	n, stop, err := c.listen(key, messages.Digest(o.body))
	if err != nil {
		return messages.Reply{}, err
	}
	defer stop()
	var deserted time.Time // since when no coordinator answers
	var crowded time.Time  // since when the fleet refuses the batch as busy
	// met says that a coordinator has answered, so the batch may have been accepted. told says that
	// the present outage was reported to OnEvent.
	var met, told bool
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		reply, err := c.ask(ctx, c.names.Of(wire.VerbRun, key), n, header, o.body, o.each)
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
			if long && !told {
				told = true
				o.each(messages.Event{V: messages.Version, Type: messages.EventWaiting, Session: b.Session, Batch: b.ID, Index: -1, Time: time.Now()})
			}
		case bus.IsTerminal(err):
			return reply, fmt.Errorf("batch %s: %w", b.ID, err)
		}
		if !errors.Is(err, bus.ErrNoResponders) {
			deserted, told = time.Time{}, false
			met = met || !errors.Is(err, bus.ErrDisconnected) // with no connection nothing was sent
		}
		if refusal == nil {
			crowded = time.Time{}
		} else {
			if crowded.IsZero() {
				crowded = time.Now()
			}
			if o.patience >= 0 && time.Since(crowded) >= o.patience && ctx.Err() == nil {
				// A coordinator that shuts down refuses as busy too, even a batch that the fleet
				// already has.
				if !c.has(ctx, b) {
					return reply, err
				}
				crowded = time.Time{}
			}
			wait = max(100*time.Millisecond, time.Duration(refusal.RetryAfterMS)*time.Millisecond)
		}
		// Send the batch again: the request was lost, or the fleet was busy. That is safe, because
		// the fleet runs a batch once and answers every request for it.
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// has reports whether the fleet certainly has a batch: the batch runs, or has a reply.
func (c *Client) has(ctx context.Context, b messages.Batch) bool {
	_, err := c.get(ctx, b.Session, b.ID, unheard, nil)
	var refusal *messages.Refusal
	if errors.As(err, &refusal) {
		return refusal.Class != messages.ClassBusy
	}
	return err == nil || errors.Is(err, ErrRunning)
}

// Submit publishes a batch and returns when the batch is durable. Fetch the reply with
// [Client.Await] or [Client.Get]. It is no error if the batch exists already. If the fleet
// will refuse the batch, Submit still returns nil, and the reply has the refusal. After any
// other error the batch may or may not be stored; submitting it again is safe.
func (c *Client) Submit(ctx context.Context, b messages.Batch, options ...SubmitOption) error {
	o := defaultRun()
	for _, option := range options {
		option.submit(&o)
	}
	b, err := c.prepare(b, &o)
	if err != nil {
		return err
	}
	header := bus.Header{}
	c.sayWhoAsks(header, o.body)
	ctx, span := c.send(ctx, trace.SpanKindProducer, wire.VerbBatch, b, header)
	_, err = c.conn.Append(ctx, c.names.Of(wire.VerbBatch, c.key(b.Session, b.ID)), header, o.body)
	switch {
	case errors.Is(err, bus.ErrExists):
		err = nil // the batch is stored already
	case err != nil:
		err = fmt.Errorf("submit batch %s: %w", b.ID, err)
	}
	sent(ctx, span, messages.Reply{}, err)
	return err
}

// Await waits for the reply of a submitted batch until ctx ends. For a refused batch the error
// is a *messages.Refusal, and the reply is returned too. For an unknown batch the error is
// [ErrUnknown].
//
// Await waits for the published reply. It also asks for the reply every 2 s, because the
// published reply may be missed, or may be too large for a message.
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

// GetOption is an option of [Client.Get].
type GetOption func(*messages.Get)

// FullResults puts the output of each call into its result. Without it the outputs are only in
// [messages.Reply.Reinjection]. For a running batch, Get then also returns the results of ended
// calls, beside [ErrRunning].
func FullResults() GetOption { return func(g *messages.Get) { g.Results = messages.ResultsFull } }

// Get returns the reply of a batch that has ended. Otherwise the error is [ErrRunning],
// [ErrUnknown] or [ErrNoFleet]. For a refused batch the error is a *messages.Refusal, and the
// reply is returned too. Get takes at most 10 s.
func (c *Client) Get(ctx context.Context, s messages.SessionID, b messages.BatchID, options ...GetOption) (messages.Reply, error) {
	var body []byte // nil: the reply as it is stored
	if len(options) > 0 {
		var get messages.Get
		for _, option := range options {
			option(&get)
		}
		body = rawjson.MustMarshal(get)
	}
	return c.get(ctx, s, b, unheard, body)
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

// MaxBatch returns the size of the largest batch that the fleet accepts, in bytes. It is the
// server's largest message, less 64 KiB for headers and subject.
func (c *Client) MaxBatch() int { return c.conn.MaxPayload() - 64<<10 }

func (c *Client) fits(body []byte) error {
	if limit := c.MaxBatch(); len(body) > limit {
		return &messages.Refusal{Class: messages.ClassTooLarge, Message: fmt.Sprintf("the batch has %d bytes; the limit is %d", len(body), limit)}
	}
	return nil
}
