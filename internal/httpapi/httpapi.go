// Package httpapi is the HTTP API of a fleet, for agents without a NATS client.
//
// A server is a client of the fleet's endpoints on NATS and has no state of its own. Any
// number of servers can serve one fleet. A client that has lost its server can ask another
// server.
//
//	routes.go    which handler answers which request; openapi.json has the same routes
//	request.go   who asks, about which session and batch, with which body
//	problem.go   which status an error has
//	batches.go   batches and single calls: run, get, abort
//	sessions.go  steering and aborts of sessions
//	events.go    event streams
//	mcp.go       requests of MCP clients, for package mcpserver
//	people.go    questions to people, and their decisions
//
// A batch is made from the bytes of the request, so a repeated request makes the same batch.
// Package access decides who may send requests.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/tracing"
)

// Config holds the settings of a Server.
type Config struct {
	// Access finds out who sends a request. Required.
	Access access.Control
	// Origins are the web origins whose pages may use the API, for example
	// https://ops.example.com. Default: none.
	Origins []string
	// MaxOpen limits each of three things: requests whose body is being read, requests that
	// wait for a batch, and event streams. Default 4096.
	MaxOpen int
	// Signer signs which user asks for a batch. nil: the fleet learns only the tenant.
	Signer *principal.Signer
	// Version is the version of this build. MCP clients see it.
	Version string
	// Health answers /healthz, /readyz and /metrics. May be nil.
	Health http.Handler

	Logger  *slog.Logger // nil: no log
	Tracer  trace.Tracer // nil: no spans. The trace context is passed on in any case
	Metrics *Metrics     // nil: no metrics
}

func (c Config) withDefaults() Config {
	if c.MaxOpen == 0 {
		c.MaxOpen = 4096
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	c.Tracer = tracing.OrSilent(c.Tracer)
	return c
}

// Server answers the API. Safe for concurrent use.
type Server struct {
	clientOf func(tenant string) *client.Client
	cfg      Config
	log      *slog.Logger
	origins  *http.CrossOriginProtection
	reading  places // requests whose body is being read
	waiting  places // requests that wait for a batch
	streams  places // event streams
	readers  readers
	live     liveFeeds
	mcp      *mcpserver.Server
	closing  context.Context // ends when the server is told to stop
	close    context.CancelCauseFunc
}

// New returns a server that uses the clients of clientOf for its requests to the fleet.
func New(clientOf func(tenant string) *client.Client, cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Access == nil {
		return nil, errors.New("http: no access control")
	}
	s := &Server{
		clientOf: clientOf, cfg: cfg, log: cfg.Logger, origins: http.NewCrossOriginProtection(),
		reading: make(places, cfg.MaxOpen), waiting: make(places, cfg.MaxOpen), streams: make(places, cfg.MaxOpen),
		mcp: mcpserver.New(mcpserver.Config{Version: cfg.Version, Logger: cfg.Logger}),
	}
	for _, origin := range cfg.Origins {
		if err := s.origins.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("http: origin %q: %w", origin, err)
		}
	}
	s.closing, s.close = context.WithCancelCause(context.Background())
	s.readers.closing, s.live.closing = s.closing, s.closing
	s.readers.most = maxReaders
	return s, nil
}

// Time limits of a client. The server closes the connection of a client that takes longer.
const (
	headersIn = 5 * time.Second  // time to send the headers
	bodyIn    = 30 * time.Second // time to send the body
	readIn    = 20 * time.Second // time to read what the server writes
	idleFor   = time.Minute      // time between two requests on a connection
	closeIn   = 3 * time.Second  // time to read its answer after the server was told to stop
)

// maxHeaders limits the request line and the headers, in bytes. There is room for two
// percent-encoded ids of 8 KiB and a token.
const maxHeaders = 96 << 10

// errClosing ends waiting requests when the server stops.
var errClosing = errors.New("this server is stopping; ask again")

// Serve answers on a listener until ctx ends, and then returns nil. Requests that are still
// waiting get the answer that they should ask again.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headersIn, IdleTimeout: idleFor, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // clients may break off
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP at %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	s.close(errClosing)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeIn)
	defer cancel()
	if err := srv.Shutdown(closing); err != nil {
		_ = srv.Close()
	}
	s.readers.running.Wait()
	s.live.running.Wait()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP at %s: %w", l.Addr(), err)
	}
	return nil
}

// places limits how many requests of one kind are open.
type places chan struct{}

// take takes a place. The caller must release it. The error says that all places are taken.
func (p places) take() (release func(), err error) {
	select {
	case p <- struct{}{}:
		return func() { <-p }, nil
	default:
		return nil, newProblem(http.StatusServiceUnavailable, "busy", "this server has as many open requests as it takes").retryIn(time.Second)
	}
}
