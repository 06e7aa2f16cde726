package pipeline

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Config holds the parts and limits of a pipeline. Only Registry is required.
type Config struct {
	Registry *tool.Registry
	Hooks    hook.Set
	Rules    permission.Rules
	// MaxInput limits the arguments of a call, in bytes. Default 1 MiB.
	MaxInput int
	// MaxOutput limits the output of a tool, in bytes. Default 64 MiB. The part that the
	// model reads is limited by the tool's own MaxOutput.
	MaxOutput int
	// Keep stores the complete output of a tool when the model gets only a part of it. Keep
	// returns the name of the output in the job's session. Nil: only that part is kept.
	Keep func(ctx context.Context, job wire.Job, whole messages.Outcome) (ref string, err error)
	// KillGrace is how long a tool may ignore the end of its context. After that its
	// goroutine is left behind. Default 2 s.
	KillGrace time.Duration
	Logger    *slog.Logger // nil: silent
	// Observe is called when a call has ended: once for each phase that the call has
	// entered, in order, with the time of the phase. May be nil.
	Observe func(phase string, took time.Duration)
	// LeftBehind is called for each goroutine of a tool that still runs after KillGrace.
	// May be nil.
	LeftBehind func(tool string)
	// HookFailed is called for each hook that could not run, except hooks that were stopped
	// together with their call. May be nil.
	HookFailed func(hook string, class hook.Class)
	// Approvals knows the people whose approval counts. If it is nil, or knows fewer people than a
	// call needs, the call is refused.
	Approvals Approvals
	// Audit stores a line of the audit log. If a call needs a line before it runs and the line
	// cannot be stored, the call does not run. Nil: there is no audit log.
	Audit func(context.Context, messages.AuditRecord) error
	// Decided is called with the decision about a call and its source (see
	// messages.Permission). It is also called if a hook decided, or a deny rule that was
	// checked before the hooks. A call that people approved is reported as allow, by
	// "person". May be nil.
	Decided func(effect, source string)
	// Tracer makes a span for each call and for each phase that the call enters. Nil: no
	// spans, but the trace context of the caller is passed on.
	Tracer trace.Tracer
	// TraceContent puts the first 16 KiB of the arguments and of the result into the span
	// of each call.
	TraceContent bool
	// Now returns the server's time, by which approvals expire. Default: the worker's
	// clock.
	Now func(context.Context) time.Time
}

// Approvals knows the people whose approval counts.
type Approvals interface {
	// Count returns how many people may decide about calls of a tenant to a tool at a time.
	Count(tenant messages.TenantID, tool string, at time.Time) int
	// Holds checks an answered question again: signatures, distinct people, ticket and
	// time. The error says why the approval is not valid.
	Holds(q messages.Approval, now time.Time) error
}

func (c Config) withDefaults() Config {
	if c.MaxInput == 0 {
		c.MaxInput = 1 << 20
	}
	if c.MaxOutput == 0 {
		c.MaxOutput = 64 << 20
	}
	if c.KillGrace == 0 {
		c.KillGrace = 2 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		c.Observe = func(string, time.Duration) {}
	}
	if c.LeftBehind == nil {
		c.LeftBehind = func(string) {}
	}
	if c.HookFailed == nil {
		c.HookFailed = func(string, hook.Class) {}
	}
	if c.Decided == nil {
		c.Decided = func(string, string) {}
	}
	if c.Audit == nil {
		c.Audit = func(context.Context, messages.AuditRecord) error { return nil }
	}
	if c.Now == nil {
		c.Now = func(context.Context) time.Time { return time.Now() }
	}
	return c
}
