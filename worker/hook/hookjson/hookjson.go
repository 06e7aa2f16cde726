// Package hookjson is the JSON that toolfleet exchanges with hooks outside its process. A hook
// reads a [Request] and answers with the object that [Request.Read] describes. Programs,
// long-lived programs and services use the same JSON. They differ only in how they are asked:
// see [Target].
//
//	call -> Request -> Target -> Answer -> hook.Verdict or hook.Change
package hookjson

import (
	"context"
	"log/slog"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// Target asks a hook. It is safe for concurrent use.
type Target interface {
	// Name returns the operator's name for the target: a program, or the address of a
	// service.
	Name() string
	// Ask sends a request and reads the answer. An error means that the hook could not run. If
	// the error is a [hook.Fault], it has the cause.
	Ask(ctx context.Context, q Request) (Answer, error)
}

// keeper is a Target that keeps something running.
type keeper interface {
	Start(ctx context.Context) error
	Stop()
}

// New returns h with the two targets as its functions. Either target may be nil.
func New(h hook.Hook, before, after Target) hook.Hook {
	if before != nil {
		h.BeforeProgram = before.Name()
		h.Before = func(ctx context.Context, call hook.Call) (hook.Verdict, error) {
			a, err := before.Ask(ctx, Before(call))
			return hook.Verdict{
				Opinion: a.opinion, Reason: a.reason, Input: a.input, Stop: a.stop, StopReason: a.stopReason, Context: a.context,
			}, err
		}
	}
	if after != nil {
		h.AfterProgram = after.Name()
		h.After = func(ctx context.Context, call hook.Call, done hook.Done) (hook.Change, error) {
			a, err := after.Ask(ctx, After(call, done))
			return hook.Change{Output: a.output, Content: a.content, Stop: a.stop, StopReason: a.stopReason, Context: a.context}, err
		}
	}
	for _, target := range []Target{before, after} {
		if k, ok := target.(keeper); ok {
			h.Keep = append(h.Keep, hook.Kept{Start: k.Start, Stop: k.Stop})
		}
	}
	return h
}

// Logger returns log with what identifies the call of the request.
func (q Request) Logger(ctx context.Context, log *slog.Logger) *slog.Logger {
	return log.With("session", q.Session, "batch", q.Batch, "call", q.CallID, "trace_id", tracing.ID(ctx), "event", q.Event)
}
