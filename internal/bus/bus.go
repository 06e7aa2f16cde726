// Package bus is the only door to NATS. The rest of the code says what it wants stored, read, pulled or
// asked in terms of this package, and gets errors it can branch on.
//
//	core       Publish, Respond, Subscribe, Request, Stream, Serve     may be lost; nothing rests on them
//	streams    Append, CompareAndSet, Send, Delete                      what the fleet remembers
//	reading    Last, First, All, LastOfEach, Glance                     without a consumer, straight from the store
//	work       EnsureConsumer, Puller, Slots, Delivery                  pull exactly what can be worked on
//	buckets    Bucket, PutObject, GetObject                             definitions, presence, large bodies
//
// What it holds to:
//
//   - A call that returned nil did what it says. A write whose acknowledgement did not come is [ErrUnknown],
//     never nil and never "failed": read before deciding.
//   - A write while disconnected fails at once and is not stored later behind its caller's back.
//   - Reads see every write that was acknowledged before they were asked, however many servers hold the stream. Only
//     Glance, and what a Bucket tells that is not named FromLeader, may come from a replica that is behind.
//   - Connections come back by themselves, for ever; pullers and watchers with them.
//
// Subjects, stream and bucket names come from messages.Names and are given whole: Names().Stream(Calls), not
// Calls. What the messages mean is the business of the callers.
package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/messages"
)

// Options say which server to connect to and as whom.
type Options struct {
	URL string // one or more, with commas between them
	// InProcess connects to a server in this process, without a socket. URL is then only a name.
	InProcess interface{ InProcessConn() (net.Conn, error) }
	Name      string // shown in the server's connection list

	Creds, NKey           string // files
	User, Password, Token string
	TLSCA                 string // file
	TLSCert, TLSKey       string // files

	Prefix string // of every subject; "" = messages.DefaultPrefix
	// InboxPrefix is where answers come in. A user with narrow permissions has one of its own. "" = _INBOX.
	InboxPrefix string
	Logger      *slog.Logger // nil = silent
	// Timeout bounds Connect when its context does not. 0 = 10 s.
	Timeout time.Duration
}

// callTimeout bounds a call to the server, however far the caller's deadline is: an answer that has not come by then
// was lost with a connection or a leader, and will not come.
const callTimeout = 5 * time.Second

// closeTimeout bounds how long Close waits for what is still to be sent and handled.
const closeTimeout = 10 * time.Second

// Conn is a connection that comes back. Its methods may be used by any goroutine.
type Conn struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	names  messages.Names
	log    *slog.Logger
	opts   Options
	closed chan struct{} // closed once the connection is, for good
	holder atomic.Pointer[holder]
	clock  serverClock
	drops  atomic.Uint64 // how often a subscription began to lose what came too fast
	// connectedAt is when the present connection was made, in nanoseconds of our clock.
	connectedAt atomic.Int64
	// missing says that what is pulled from is not there. KeepRemade hears it.
	missing chan struct{}

	mu          sync.Mutex
	onReconnect map[int]func() // guarded by mu
	nextID      int            // guarded by mu
}

// Connect tries until it succeeds, the context ends, or the server refuses who we are.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	c := &Conn{
		names:       messages.Names{Prefix: o.Prefix},
		log:         o.Logger,
		opts:        o,
		closed:      make(chan struct{}),
		onReconnect: map[int]func(){},
		missing:     make(chan struct{}, 1),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	options, err := c.natsOptions()
	if err != nil {
		return nil, err
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if c.nc, err = options.Connect(); err == nil {
			err = c.hears(ctx)
		}
		if err == nil {
			break
		}
		if IsTerminal(err) || errors.Is(err, fs.ErrNotExist) || !pause(ctx, jitter(wait)) {
			return nil, c.connectError(err)
		}
	}
	c.connectedAt.Store(time.Now().UnixNano())
	if c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(callTimeout)); err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return c, nil
}

// connectError says what to do next.
func (c *Conn) connectError(err error) error {
	where, err := withoutSecrets(c.opts.URL), error(hidden{err})
	if c.opts.InProcess != nil {
		where = "the server in this process"
	}
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return fmt.Errorf("connect to %s: %w; say who this is with --nkey or --creds (NATS_NKEY, NATS_CREDS)", where, err)
	case errors.Is(err, errDeaf):
		return fmt.Errorf("connect to %s: %w; --inbox-prefix (nats.inbox_prefix) names the place where it may, for example _INBOX.worker", where, err)
	case IsTerminal(err):
		return fmt.Errorf("connect to %s: %w", where, err)
	}
	return fmt.Errorf("connect to %s: %w; is a NATS server there? `toolfleet nats` starts one, --nats or NATS_URL names another", where, err)
}

var userInfo = regexp.MustCompile(`://[^\s/]*@`)

// withoutSecrets takes users, passwords and tokens out of the URLs in a text.
func withoutSecrets(text string) string { return userInfo.ReplaceAllString(text, "://(hidden)@") }

// hidden is an error whose text names no secrets: a URL that cannot be read is quoted by whoever tried.
type hidden struct{ error }

func (h hidden) Error() string { return withoutSecrets(h.error.Error()) }
func (h hidden) Unwrap() error { return h.error }

// natsOptions reads the files that are named, so that a wrong one is found before anything is tried.
func (c *Conn) natsOptions() (*nats.Options, error) {
	o := c.opts
	options := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		// No buffer: a publish that "failed" must not be stored after the reconnect.
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.PermissionErrOnSubscribe(true),
		// Every read of several messages makes a queue of this length; the client's own default takes half a megabyte.
		nats.SyncQueueLen(4096),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrSlowConsumer) {
				c.drops.Add(1)
			}
			if sub != nil {
				c.log.Error("NATS refused or dropped something", "subject", sub.Subject, "err", err)
				return
			}
			c.log.Error("NATS refused something", "err", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				c.log.Warn("connection to NATS lost", "err", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { c.reconnected() }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	}
	if o.InProcess != nil {
		options = append(options, nats.InProcessServer(o.InProcess))
	}
	if o.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	if o.Creds != "" {
		options = append(options, nats.UserCredentials(o.Creds))
	}
	if o.NKey != "" {
		key, err := nats.NkeyOptionFromSeed(o.NKey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey seed %s: %w", o.NKey, err)
		}
		options = append(options, key)
	}
	if o.User != "" {
		options = append(options, nats.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		options = append(options, nats.Token(o.Token))
	}
	if o.TLSCA != "" {
		options = append(options, nats.RootCAs(o.TLSCA))
	}
	if o.TLSCert != "" || o.TLSKey != "" {
		options = append(options, nats.ClientCert(o.TLSCert, o.TLSKey))
	}
	out := nats.GetDefaultOptions()
	out.Servers = strings.FieldsFunc(o.URL, func(r rune) bool { return r == ',' || r == ' ' })
	for _, set := range options {
		if err := set(&out); err != nil {
			return nil, fmt.Errorf("configure the connection to NATS: %w", err)
		}
	}
	return &out, nil
}

// Names makes the subjects, streams and buckets of this fleet.
func (c *Conn) Names() messages.Names { return c.names }

// MaxPayload is the largest message the server takes, in bytes, headers included.
func (c *Conn) MaxPayload() int { return int(c.nc.MaxPayload()) }

// Connected reports whether the connection is up at this moment.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Close sends what is still to be sent, lets the handlers of subscriptions finish what they have, and closes.
// A second call does nothing.
func (c *Conn) Close() {
	if err := c.nc.Drain(); err != nil {
		c.nc.Close()
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-c.closed:
	case <-timer.C:
		c.nc.Close()
		<-c.closed
		time.Sleep(drainLooks) // until the drain has seen it, so that nothing of the connection is left
	}
}

// drainLooks is a little longer than the time between two looks of a drain whether it is over.
const drainLooks = 20 * time.Millisecond

// OnReconnect calls f after every reconnect, one call at a time, until remove. What was asked of the old
// connection is gone: f is the place to ask again. f must not block.
func (c *Conn) OnReconnect(f func()) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextID
	c.nextID++
	c.onReconnect[id] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.onReconnect, id)
	}
}

// Losses grows whenever something may have been lost that a subscription was to bring: with every reconnect before anything
// comes over the new connection, so who compares it at each message knows what comes after a gap, and when messages were
// dropped because they were not taken fast enough.
func (c *Conn) Losses() uint64 { return c.nc.Stats().Reconnects + c.drops.Load() }

func (c *Conn) reconnected() {
	c.connectedAt.Store(time.Now().UnixNano())
	c.log.Info("connected to NATS again", "server", c.nc.ConnectedUrlRedacted())
	c.mu.Lock()
	ids := make([]int, 0, len(c.onReconnect))
	for id := range c.onReconnect {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	calls := make([]func(), len(ids))
	for i, id := range ids {
		calls[i] = c.onReconnect[id]
	}
	c.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// bounded gives a call to the server its deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}

// ended gives a call to somebody else, who may take as long as the caller likes, a deadline when it has none.
func ended(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return bounded(ctx)
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// jitter spreads a wait over half to all of d, so that a fleet does not knock in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// api is the subject of a JetStream request.
func api(parts ...string) string { return "$JS.API." + strings.Join(parts, ".") }
