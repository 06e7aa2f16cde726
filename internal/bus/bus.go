// Package bus and the packages below it are the only parts of toolfleet that talk to NATS.
// Other packages use them to store, read, pull and request. Their errors say what the caller
// can do next.
//
//	core      Publish, Respond, Subscribe, Request, Stream  messages that may be lost
//	streams   Append, CompareAndSet, Send, Delete           messages that are stored
//	reading   Last, First, All, LastOfEach, Glance          reads of streams, without a consumer
//	buckets   Bucket                                        definitions, presence of workers
//
// The packages below this one build on it:
//
//	provision  makes and checks streams, buckets and consumers
//	pull       pulls messages from a consumer, as many as the process can work on
//	objects    stores large bodies
//	service    answers requests
//	inspect    reads the state of servers, streams and pools
//
// The package promises:
//
//   - If a call returns nil, it has done what it says. A write without an acknowledgement
//     returns [ErrUnknown]: it may be stored or not, so read before you decide.
//   - A write without a connection fails at once. It is not stored later.
//   - A read sees every write that was acknowledged before it, even if several servers have
//     the stream. The exceptions are At, Glance, Scan, Values, CountAfter, Bucket.Get and
//     Bucket.Watch: a replica that is behind may answer them.
//   - A lost connection comes back by itself, without a limit on the tries. Pullers and
//     watchers continue after that.
//
// Callers give full names of subjects, streams and buckets, which they get from wire.Names:
// Names().Stream(Calls), not Calls. The callers decide what the messages mean.
package bus

import (
	"cmp"
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
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Options say to which server to connect, and as which user.
type Options struct {
	URL string // one or more URLs, separated by commas
	// InProcess connects to a server in this process, without a socket. Only error texts use
	// URL then.
	InProcess interface{ InProcessConn() (net.Conn, error) }
	Name      string // shown in the server's connection list

	Creds, NKey           string // paths of files
	User, Password, Token string
	TLSCA                 string // path of a file
	TLSCert, TLSKey       string // paths of files

	Prefix string // first part of every subject; "" = wire.DefaultPrefix
	// InboxPrefix is the first part of the subjects on which answers arrive. A user with
	// narrow permissions needs its own prefix. "" = _INBOX.
	InboxPrefix string
	Logger      *slog.Logger // nil = no log
	// Timeout limits Connect, in addition to its context. 0 = DefaultTimeout.
	Timeout time.Duration
	// OnUnreached is called once, when the first try of Connect has failed and Connect
	// continues to try. where is the URL without secrets. May be nil.
	OnUnreached func(where string, timeout time.Duration)
}

// DefaultTimeout limits Connect if Options.Timeout is 0.
const DefaultTimeout = 10 * time.Second

// To returns the Options for a fleet. name is the name of the connection if the fleet's
// options have none.
func To(o fleet.Options, name string) Options {
	return Options{
		URL: o.URL, Name: cmp.Or(o.Name, name), Prefix: o.Prefix, InboxPrefix: o.InboxPrefix,
		Creds: o.Creds, NKey: o.NKey, User: o.User, Password: o.Password, Token: o.Token,
		TLSCA: o.TLSCA, TLSCert: o.TLSCert, TLSKey: o.TLSKey,
	}
}

// CallTimeout is the longest time for one call to the server, even if the caller's deadline is
// later. If no answer comes in this time, it was lost with a connection or a leader.
const CallTimeout = 5 * time.Second

// closeTimeout limits how long Close waits for unsent messages and running handlers.
const closeTimeout = 10 * time.Second

// Conn is a connection that reconnects by itself. Its methods may be used by any goroutine.
type Conn struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	names  wire.Names
	log    *slog.Logger
	opts   Options
	nkey   *nkeyFile     // nil if Options has no NKey
	closed chan struct{} // closed when the connection is closed for good
	holder atomic.Pointer[holder]
	clock  serverClock
	drops  atomic.Uint64 // how many times messages were dropped because a handler was slow
	// connectedAt is when the present connection was made, in Unix nanoseconds by this
	// process's clock.
	connectedAt atomic.Int64
	missing     chan struct{} // see the method Missing

	mu          sync.Mutex
	onReconnect map[int]func() // guarded by mu
	nextID      int            // guarded by mu
}

// Connect tries until it succeeds. It gives up if the context or Options.Timeout ends, if a
// file in the options is missing, or if the server refuses this user.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	timeout := o.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	c := &Conn{
		names:       wire.Names{Prefix: o.Prefix},
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
	unreached := sync.OnceFunc(func() {
		if o.OnUnreached != nil {
			o.OnUnreached(withoutSecrets(o.URL), timeout)
		}
	})
	err = Retry(ctx, Backoff{
		First: 50 * time.Millisecond, Most: 2 * time.Second, Jitter: true,
		Again:     func(err error) bool { return !IsTerminal(err) && !errors.Is(err, fs.ErrNotExist) },
		OnFailure: func(error, time.Duration) { unreached() },
	}, func() (err error) {
		if c.nc, err = options.Connect(); err == nil {
			err = c.hears(ctx)
		}
		return err
	})
	if err != nil {
		return nil, c.connectError(err)
	}
	c.connectedAt.Store(time.Now().UnixNano())
	if c.nkey != nil {
		c.nkey.conn.Store(c.nc)
	}
	if c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(CallTimeout)); err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return c, nil
}

// connectError adds to an error of Connect what the operator should do next.
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

// withoutSecrets replaces users, passwords and tokens in the URLs of a text.
func withoutSecrets(text string) string { return userInfo.ReplaceAllString(text, "://(hidden)@") }

// hidden is an error whose text shows no secrets. The text of an error of the NATS client may
// have the URL.
type hidden struct{ error }

func (h hidden) Error() string { return withoutSecrets(h.error.Error()) }
func (h hidden) Unwrap() error { return h.error }

// natsOptions returns the options of the NATS client. It reads the nkey seed and the TLS
// files, to report a wrong file before the first try to connect. The client reads them again
// at every connect, so changed files take effect without a restart.
func (c *Conn) natsOptions() (*nats.Options, error) {
	o := c.opts
	options := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		// There is no buffer: a publish that returned an error must not be sent after a
		// reconnect.
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.PermissionErrOnSubscribe(true),
		// Every read of several messages allocates a queue of this length. The client's
		// default takes half a megabyte for each.
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
		c.nkey = &nkeyFile{path: o.NKey, in: o.InProcess, dial: net.Dialer{Timeout: dialTimeout}}
		key, err := c.nkey.option()
		if err != nil {
			return nil, err
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

// Names returns the subjects, streams and buckets of this fleet.
func (c *Conn) Names() wire.Names { return c.names }

// Logger returns the logger of this package and those below it.
func (c *Conn) Logger() *slog.Logger { return c.log }

// JetStream returns the JetStream handle of the NATS client. Only the packages below this
// one use it.
func (c *Conn) JetStream() jetstream.JetStream { return c.js }

// Missing returns a channel that gets a value when a puller finds no consumer or stream to
// pull from. The goroutine that makes missing streams and consumers receives from the channel.
// A puller does not wait until its value is received.
func (c *Conn) Missing() chan struct{} { return c.missing }

// MaxPayload returns the size in bytes of the largest message that the server accepts, headers
// included.
func (c *Conn) MaxPayload() int { return int(c.nc.MaxPayload()) }

// Connected reports whether the connection is up now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Close sends all unsent messages, lets the handlers of subscriptions finish, and closes
// the connection. It waits at most 10 s. A second call does nothing.
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
		time.Sleep(drainLooks) // in this time the client's drain goroutine looks once more and ends
	}
}

// drainLooks is a little more than the interval at which the NATS client checks whether a
// drain is done.
const drainLooks = 20 * time.Millisecond

// OnReconnect calls f after every reconnect, one call at a time, until remove is called.
// Requests on the old connection are lost, so f has to send the caller's requests again. f
// must not block.
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

// Losses returns a number that grows when a subscription may have missed messages: at every
// reconnect, before the first message of the new connection, and when messages were dropped
// because a handler was slow. If the number has grown between two messages, messages may be
// missing between these two.
func (c *Conn) Losses() uint64 { return c.nc.Stats().Reconnects + c.drops.Load() }

// reconnected calls the functions of OnReconnect in the order in which they were registered.
// It does not hold mu meanwhile, so that the functions may call OnReconnect and remove.
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

// bounded limits ctx to CallTimeout.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, CallTimeout)
}

// ended limits ctx to CallTimeout if ctx has no deadline. It is for requests to another
// process, for which the caller's deadline counts.
func ended(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return bounded(ctx)
}

// pause waits for d. It returns false if ctx ends first.
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

// Jitter returns a random wait between d/2 and d, so that the processes of a fleet do not
// all retry at the same moment.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// api returns the subject of a JetStream request.
func api(parts ...string) string { return "$JS.API." + strings.Join(parts, ".") }
