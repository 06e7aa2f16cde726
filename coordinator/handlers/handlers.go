// Package handlers answers the requests of agents and operators on NATS:
//
//	run      submit a batch and answer with its reply         run.go
//	get      a reply, a status, a history, a session's list   get.go, history.go, list.go
//	control  abort or steer a session                         control.go
//	tools    the definitions that an agent may call           tools.go
//	queue    the consumer of a queue, for a worker            queue.go
//
// A handler does not drive batches. It writes into the log or the journal, reads what is
// stored there, and waits for what is published. Every coordinator has the same handlers, and
// any coordinator can answer any request: a handler finds a batch by its id, no matter which
// coordinator drives it.
//
// Requests about approvals are in coordinator/approvals.
package handlers

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Driver drives batches.
type Driver interface {
	// ResumeSuspended drives the oldest batch of a session again if that batch only waits for
	// people. It returns when that run is over, or at once if it has nothing to do.
	ResumeSuspended(ctx context.Context, tenant, session string)
}

// Tools knows the fleet's tools.
type Tools interface {
	// Of returns the tools that a tenant may call.
	Of(tenant string) schemas.Catalog
}

// Config holds the settings of Handlers.
type Config struct {
	Poll     time.Duration        // time between reads while a request waits
	BatchTTL time.Duration        // how long a batch may be open
	Refused  func(messages.Class) // counts a refused request. May be nil
	// Counts reports whether a decision that was stored at this time counts: the approver whom
	// the decision names has signed it, and had the right to make it. nil: no decision counts.
	Counts func(messages.Decision, time.Time) bool
	Owners toolset.Owners // the pools that belong to one tenant
	Logger *slog.Logger   // nil: no log
}

// Handlers answers requests. Safe for concurrent use.
type Handlers struct {
	conn    *bus.Conn
	names   wire.Names
	journal *journal.Journal
	driver  Driver
	tools   Tools
	cfg     Config
	log     *slog.Logger
	limiter *perTenantLimiter // limits requests for histories, lists and tools

	catalogues Catalogues
}

// New returns handlers that use the connection. It sends nothing before a request comes.
func New(conn *bus.Conn, driver Driver, tools Tools, catalogues Catalogues, cfg Config) *Handlers {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Counts == nil {
		cfg.Counts = func(messages.Decision, time.Time) bool { return false }
	}
	if cfg.Refused == nil {
		cfg.Refused = func(messages.Class) {}
	}
	return &Handlers{
		conn: conn, names: conn.Names(), journal: journal.New(conn), driver: driver, tools: tools, cfg: cfg, log: cfg.Logger,
		limiter: newPerTenantLimiter(maxHistories), catalogues: catalogues,
	}
}

// Endpoints returns the endpoints for [service.Serve]. When ctx ends, the handlers stop
// working on the requests that they are answering.
func (h *Handlers) Endpoints(ctx context.Context) []service.Endpoint {
	return []service.Endpoint{
		{Name: "run", Subject: h.names.EveryBatch(wire.VerbRun), Handle: func(m bus.Msg) { h.run(ctx, m) }},
		{Name: "get", Subject: h.names.EveryBatch(wire.VerbGet), Handle: func(m bus.Msg) { h.get(ctx, m) }},
		{Name: "control", Subject: h.names.EverySession(wire.VerbControl), Handle: func(m bus.Msg) { h.control(ctx, m) }},
		{Name: "tools", Subject: h.names.OfTenant(wire.VerbTools, "*"), Handle: func(m bus.Msg) { h.listTools(ctx, m) }},
		{Name: "queue", Subject: h.names.Queue("*"), Handle: func(m bus.Msg) { h.makeQueue(ctx, m) }},
	}
}
