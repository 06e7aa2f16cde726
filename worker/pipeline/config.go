package pipeline

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Config is what a pipeline is made of. Only Registry is required.
type Config struct {
	Registry *tool.Registry
	Hooks    hook.Set
	Rules    permission.Rules
	// MaxInput is how many bytes of arguments are read. Default 1 MiB.
	MaxInput int
	// MaxOutput is how many bytes a tool may give. Default 16 MiB. What the model gets to read of them
	// is bounded by the tool's own MaxOutput.
	MaxOutput int
	// KillGrace is how long a tool may ignore the end of its context before it is left behind. Default 2 s.
	KillGrace time.Duration
	Logger    *slog.Logger // nil: silent
	// Observe is told how long each phase of a call took that the call entered, in the order of the
	// phases, when the call has ended. May be nil.
	Observe func(phase string, took time.Duration)
	// LeftBehind is told of each goroutine of a tool that was left running after its time. May be nil.
	LeftBehind func(tool string)
	// HookFailed is told of each hook that could not run, but for those that were cut off with their call. May be nil.
	HookFailed func(hook string, class hook.Class)
	// Approvals knows whose agreement counts. Nil, or of length 0: nobody can be asked.
	Approvals Approvals
	// Audit stores a line of the record for people. Where one is due before a call may run and it cannot be stored,
	// the call is not run. Nil: there is no such record.
	Audit func(context.Context, messages.AuditRecord) error
	// Decided is told of what phase four, or who refused a call before it, has decided, and by what it was decided: see
	// messages.Permission. What people have agreed to is allow, by a person. May be nil.
	Decided func(effect, source string)
	// Tracer makes a span for each call and for each phase it enters. Nil: none, and the context of whoever asked is handed on.
	Tracer trace.Tracer
	// TraceContent puts the arguments and the result of each call into its span, the first 16 KiB of each.
	TraceContent bool
	// Now is the server's clock, by which a question expires. Default the worker's own.
	Now func(context.Context) time.Time
}

// Approvals is the people whose agreement counts.
type Approvals interface {
	Len() int // how many they are
	// Holds checks an answered question once more: signatures, distinct people, ticket and time.
	Holds(q messages.Approval, now time.Time) error
}

func (c Config) withDefaults() Config {
	if c.MaxInput == 0 {
		c.MaxInput = 1 << 20
	}
	if c.MaxOutput == 0 {
		c.MaxOutput = 16 << 20
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
