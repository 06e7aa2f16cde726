// Package approvals asks people about calls and takes their decisions.
//
//	decide   take a signed decision about one call      decide.go
//	show     one open question, from the leader         show.go
//	list     the open questions of a tenant             show.go
//
// The driver of a batch puts the questions of its calls on the list of open questions, and
// removes them when they are closed (questions.go). The list, the published changes and the
// audit lines are for information: no batch waits for them.
//
// The permissions of the server keep agents from publishing on the subjects of these requests.
// This package does not rely on that: a decision counts only because of its signature. A
// decision is a record in the journal of its call, after the record of the question. It is
// written by compare-and-set. If several coordinators take decisions about one question at
// once, the decision that is stored first counts.
//
// The rules for decisions are in internal/approval. What a batch does with a decision is in
// coordinator/batch.
package approvals

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Driver drives batches.
type Driver interface {
	// Resume drives the oldest batch of a session again. It returns when that run is over.
	Resume(ctx context.Context, tenant, session string)
}

// Tools knows the fleet's tools.
type Tools interface {
	// Version returns the definition of a tenant's tool with this digest.
	Version(tenant, tool, digest string) (schemas.Tool, bool)
	// Refresh reads one tool from the leader.
	Refresh(ctx context.Context, tenant, name string) error
}

// Metrics counts decisions, and audit lines that could not be written.
type Metrics interface {
	// Decided counts a decision. last means that the question needs no further decision.
	Decided(ctx context.Context, d messages.Decision, q messages.Approval, waited time.Duration, last bool)
	Refused(messages.Class)
	AuditFailed()
}

// Config holds the settings of a Service.
type Config struct {
	Writer    string             // the name of the writer in audit lines
	Approvers approval.Approvers // the people whose decisions count. Default: none
	Tracer    trace.Tracer       // nil: no spans
	Logger    *slog.Logger       // nil: no log
}

// Service answers requests about approvals, and keeps the list of open questions. Safe for
// concurrent use.
type Service struct {
	conn    *bus.Conn
	names   wire.Names
	journal *journal.Journal
	audit   *audit.Log
	driver  Driver
	tools   Tools
	metrics Metrics
	cfg     Config
	log     *slog.Logger
	refused *refusalLimiter // limits the log and audit lines about refused decisions
}

// New returns a service that uses the connection. It sends nothing before a request comes.
func New(conn *bus.Conn, log *audit.Log, driver Driver, tools Tools, metrics Metrics, cfg Config) *Service {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Tracer = tracing.OrSilent(cfg.Tracer)
	return &Service{
		conn: conn, names: conn.Names(), journal: journal.New(conn), audit: log, driver: driver, tools: tools, metrics: metrics,
		cfg: cfg, log: cfg.Logger, refused: newRefusalLimiter(),
	}
}

// Endpoints returns the endpoints for [service.Serve]. When ctx ends, the service stops
// working on the requests that it is answering.
func (s *Service) Endpoints(ctx context.Context) []service.Endpoint {
	return []service.Endpoint{
		{Name: "decide", Subject: s.names.EveryCall(wire.VerbDecide), Handle: func(m bus.Msg) { s.decide(ctx, m) }},
		{Name: "show", Subject: s.names.EveryCall(wire.VerbShow), Handle: func(m bus.Msg) { s.show(ctx, m) }},
		{Name: "list", Subject: s.names.OfTenant(wire.VerbList, "*"), Handle: func(m bus.Msg) { s.list(ctx, m) }},
	}
}

func refusal(class messages.Class, format string, args ...any) *messages.Refusal {
	return &messages.Refusal{Class: class, Message: fmt.Sprintf(format, args...)}
}
