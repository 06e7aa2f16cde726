package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Option is a part of a tool's definition. Limits and defaults are the same as in a tools file:
// see docs/tools.md.
type Option func(*promise)

// promise is the definition of a tool while New builds it.
type promise struct {
	schemas.Tool
	checks []any // func(context.Context, In) error
	probe  any   // func(context.Context, In) (*Out, bool, error)
}

// Timeout limits one run. It is rounded up to whole milliseconds. Default: read 5 s,
// compute 2 s, write 30 s.
func Timeout(d time.Duration) Option {
	return func(p *promise) { p.TimeoutMS = wholeMilliseconds(d) }
}

// Idempotent says that a write may run again if its worker was lost during the run. Two
// runs with the same idempotency key must have the effect of one.
func Idempotent() Option {
	return func(p *promise) { p.OnCrash = messages.OnCrashIdempotent }
}

// Checkable gives a write a probe, which finds out whether a lost run was applied. The
// Checkable gives a write a probe: a function that finds out whether a lost run was applied.
// The write runs again only if the lost run was not applied. The probe must have the In and
// Out of the tool.
//
// The probe must change nothing. [CallOf] has the idempotency key of the lost run. applied
// says whether the lost run had its effect. out is what the lost run returned, or nil if that
// is not known. An error means that the probe cannot find out what happened. The call then
// ends as outcome_unknown and does not run again.
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

// Retry makes a call run again after an error that [TryAgain] has marked, up to attempts runs
// in all (1 to 10). The wait before the second run is backoff. The wait doubles each time, up
// to maxBackoff. Both may be at most an hour; 0 means the default, 500 ms and 10 s. A write
// must also be [Idempotent] or [Checkable].
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

// Require adds a rule about the arguments: a CEL expression, such as input.amount <= 1000. If
// the expression is not true, the call is refused with the message. Rules apply after the
// schema and before hooks and permissions.
func Require(expression, message string) Option {
	return func(p *promise) {
		p.Semantic = append(p.Semantic, schemas.SemanticRule{Require: expression, Message: message})
	}
}

// Check adds a check of the arguments in Go, which runs after the rules of [Require]. The
// check must change nothing, and may take as long as the tool. Its In must be the In of the
// tool. If the check returns an error, the call is refused with that error. The code is
// invalid_arguments, unless [Errorf] has set another one.
func Check[In any](check func(ctx context.Context, in In) error) Option {
	return func(p *promise) { p.checks = append(p.checks, check) }
}

// Risk is the tool's tier: [messages.TierLow] (the default), [messages.TierMedium],
// [messages.TierHigh] or [messages.TierCritical]. A policy can raise it but not lower it. A
// call of tier high waits for one person's approval, a critical one for two.
func Risk(tier messages.Tier) Option { return func(p *promise) { p.Tool.Risk = tier } }

// MaxOutput limits what the model reads of an output, in characters. A longer output is
// stored as a whole. Default 10,000.
func MaxOutput(n int) Option { return func(p *promise) { p.Tool.MaxOutput = n } }

// Truncate says which part of an output over [MaxOutput] the model reads:
// [schemas.TruncateHead] (the default), [schemas.TruncateMiddle] (both ends) or
// [schemas.TruncateTail].
func Truncate(part schemas.Truncate) Option { return func(p *promise) { p.Tool.Truncate = part } }

// Readable lets the model read all of an output over [MaxOutput], in the same session. The
// model reads it with the tool result_read, which the worker then also serves.
func Readable() Option { return func(p *promise) { p.Results = schemas.ResultsReadable } }

// ConcurrencySafe says whether calls of the tool may run beside other calls of their session, in
// the same batch or in another one. Default: true for a read and a compute, false for a write.
func ConcurrencySafe(safe bool) Option {
	return func(p *promise) { p.Tool.ConcurrencySafe = &safe }
}

// SafeWhen is a CEL expression, such as !input.exclusive. If the expression is true, the call
// may run beside other calls of its session. Later batches still wait for the end of the call:
// a hook may change the call's input, and the expression may be false for the new input. Use
// either SafeWhen or [ConcurrencySafe].
func SafeWhen(expression string) Option { return func(p *promise) { p.Tool.SafeWhen = expression } }

// ShellCommand names the property of the input that holds a shell command. The parsed
// command decides whether a call may run beside others, as with [SafeWhen]. Permission
// rules such as Run(git status:*) match it.
func ShellCommand(property string) Option {
	return func(p *promise) { p.Tool.ShellCommand = property }
}

// InputSchema is the JSON Schema of the arguments. It replaces the schema that is made from
// In. It is draft 2020-12, and its root has the type object. In must have a field for every
// property that the schema allows, because properties without a field are refused.
func InputSchema(schema string) Option {
	return func(p *promise) { p.Tool.InputSchema = json.RawMessage(schema) }
}

// wholeMilliseconds rounds away from zero. A time below 1 ms thus does not become 0, which
// means the default.
func wholeMilliseconds(d time.Duration) int64 {
	switch {
	case d > 0:
		return int64((d + time.Millisecond - 1) / time.Millisecond)
	case d < 0:
		return -1
	}
	return 0
}
