package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Option is a part of a tool's definition beyond its kind. Limits and defaults are those of a tools
// file: see docs/tools.md.
type Option func(*promise)

// promise is the definition of a tool while New makes it.
type promise struct {
	schemas.Tool
	checks []any // func(context.Context, In) error
	probe  any   // func(context.Context, In) (*Out, bool, error)
}

// Timeout bounds one run. It is rounded up to whole milliseconds. Default: read 5 s, compute 2 s,
// write 30 s.
func Timeout(d time.Duration) Option {
	return func(p *promise) { p.TimeoutMS = wholeMilliseconds(d) }
}

// Idempotent says that a write may run again after its worker was lost in the middle. Two runs with
// the same idempotency key must have the effect of one.
func Idempotent() Option {
	return func(p *promise) { p.OnCrash = messages.OnCrashIdempotent }
}

// Checkable gives a write a probe, which finds out whether a lost run was applied. The write runs
// again only if it was not. The In and Out of the probe are those of the tool.
//
// probe changes nothing. [CallOf] has the idempotency key of the lost run. applied says whether the
// run had its effect, and out is what it returned, or nil if that is not known. An error means that
// the answer is unknown: the call then ends as outcome_unknown, and is not run again.
func Checkable[In, Out any](probe func(ctx context.Context, in In) (out *Out, applied bool, err error)) Option {
	return func(p *promise) {
		if p.OnCrash == "" {
			p.OnCrash = messages.OnCrashCheckable
		}
		if probe != nil {
			p.probe = probe
		}
	}
}

// Retry runs a call again after an error that is marked by [TryAgain]: in all at most attempts
// times, 1 to 10. The wait starts with backoff, doubles each time, and is at most maxBackoff; both
// at most an hour. 0 is the default: 500 ms and 10 s. A write has to be [Idempotent] or
// [Checkable].
func Retry(attempts int, backoff, maxBackoff time.Duration) Option {
	return func(p *promise) {
		p.Retry = schemas.Retry{Attempts: attempts, BackoffMS: wholeMilliseconds(backoff), MaxBackoffMS: wholeMilliseconds(maxBackoff)}
	}
}

// Pool names the workers that run the tool: 1 to 32 of [a-zA-Z0-9_-]. Slow tools belong in a pool
// of their own. Default "default".
func Pool(name string) Option { return func(p *promise) { p.Pool = name } }

// Version says which version of the tool this is: one to four whole numbers joined by dots, such as
// "3" or "1.10". A worker may serve several versions of one name; see docs/tools.md.
func Version(version string) Option { return func(p *promise) { p.Tool.Version = version } }

// Require adds a rule about the arguments: a CEL expression such as input.amount <= 1000. If it is
// not true, the call is refused with the message, before hooks and permissions. The rule applies
// after the schema.
func Require(expression, message string) Option {
	return func(p *promise) {
		p.Semantic = append(p.Semantic, schemas.SemanticRule{Require: expression, Message: message})
	}
}

// Check adds a check of the arguments in Go, after those of [Require]. It must change nothing, and
// may take the tool's time. Its error refuses the call, with the code invalid_arguments unless
// [Errorf] set another one. The In of the check is that of the tool.
func Check[In any](check func(ctx context.Context, in In) error) Option {
	return func(p *promise) { p.checks = append(p.checks, check) }
}

// Risk is the tool's tier: [messages.TierLow] (the default), [messages.TierMedium],
// [messages.TierHigh] or [messages.TierCritical]. A policy can only raise it. A call of the tier
// high waits for a person, a critical one for two.
func Risk(tier messages.Tier) Option { return func(p *promise) { p.Tool.Risk = tier } }

// MaxOutput bounds what the model reads, in characters. The whole of a longer output is stored.
// Default 10,000.
func MaxOutput(n int) Option { return func(p *promise) { p.Tool.MaxOutput = n } }

// Truncate says which part of an output over [MaxOutput] the model reads: [schemas.TruncateHead]
// (the default), [schemas.TruncateMiddle] (both ends) or [schemas.TruncateTail].
func Truncate(part schemas.Truncate) Option { return func(p *promise) { p.Tool.Truncate = part } }

// Readable lets the model read the whole of an output over [MaxOutput], in the same session, by the
// tool result_read, which the worker then serves too.
func Readable() Option { return func(p *promise) { p.Results = schemas.ResultsReadable } }

// ConcurrencySafe says whether calls of the tool may run beside other calls of their session, in
// the same batch or in another one. Default: true for a read and a compute, false for a write.
func ConcurrencySafe(safe bool) Option {
	return func(p *promise) { p.Tool.ConcurrencySafe = &safe }
}

// SafeWhen is the CEL expression, such as !input.exclusive, under which a call may run beside other
// calls of its session. Later batches still wait until the call has ended, because a hook may yet
// change its input. SafeWhen and [ConcurrencySafe] exclude each other.
func SafeWhen(expression string) Option { return func(p *promise) { p.Tool.SafeWhen = expression } }

// ShellCommand names the property of the input that holds a shell command. The parsed command then
// decides whether a call may run beside others, as with [SafeWhen], and permission rules such as
// Run(git status:*) match it.
func ShellCommand(property string) Option {
	return func(p *promise) { p.Tool.ShellCommand = property }
}

// InputSchema is the JSON Schema of the arguments, in place of the one made from In: draft 2020-12,
// its root of type object. In must have every property that the schema allows: a property that In
// does not have is refused.
func InputSchema(schema string) Option {
	return func(p *promise) { p.Tool.InputSchema = json.RawMessage(schema) }
}

// wholeMilliseconds rounds away from zero, so that a short time does not become the default.
func wholeMilliseconds(d time.Duration) int64 {
	switch {
	case d > 0:
		return int64((d + time.Millisecond - 1) / time.Millisecond)
	case d < 0:
		return -1
	}
	return 0
}
