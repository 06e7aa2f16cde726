package tool

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// LostError says that the process that ran a call has ended without a result, for example
// by a signal. Nobody knows how far the run came.
type LostError struct {
	Err error // how the process ended, for the model
	// Unsent says that the process never got the call.
	Unsent bool
}

func (e *LostError) Error() string { return e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// Unknown returns the error of a write that may or may not have happened. why says what was lost.
func Unknown(tool, why string) *messages.Error {
	return &messages.Error{Code: messages.CodeOutcomeUnknown, Retryable: true, Message: fmt.Sprintf(
		"%s may or may not have happened: %s. Do not repeat it blindly: check with a read, or ask a person.", tool, why)}
}

// Harmless reports whether the tool changes nothing.
func Harmless(promise schemas.Tool) bool {
	return promise.Kind == messages.KindRead || promise.Kind == messages.KindCompute
}

// Recover runs a call. If the process of the run is lost, the promise of the tool decides
// whether the call runs once more, with the same idempotency key:
//
//	reads, computes, idempotent writes, and calls that were not sent    it runs once more
//	checkable writes                                                    the probe decides
//	once                                                                it does not run again
//
// probe may be nil. If Recover returns a *LostError, the outcome is unknown.
func Recover(ctx context.Context, promise schemas.Tool, call Call, run Func, probe func(context.Context, Call) (Probed, error)) (Output, error) {
	out, err := run(ctx, call)
	var lost *LostError
	if !errors.As(err, &lost) || ctx.Err() != nil {
		return out, err
	}
	again := lost.Unsent || Harmless(promise) || promise.OnCrash == messages.OnCrashIdempotent
	if !again && promise.OnCrash == messages.OnCrashCheckable && probe != nil {
		probed, problem := probe(ctx, call)
		if problem != nil {
			return Output{}, err
		}
		if probed.Applied {
			return probed.Output, nil
		}
		again = true
	}
	if !again {
		return Output{}, err
	}
	return run(ctx, call)
}

// Recovering returns a runner that runs calls with [Recover]. If Recover ends
// with a *LostError, the outcome of a write is unknown, and a read has failed.
func Recovering(promise schemas.Tool, runner Runner, probe func(context.Context, Call) (Probed, error)) Runner {
	return Func(func(ctx context.Context, call Call) (Output, error) {
		out, err := Recover(ctx, promise, call, runner.Run, probe)
		var lost *LostError
		if errors.As(err, &lost) && ctx.Err() == nil && !lost.Unsent && !Harmless(promise) {
			return Output{}, Unknown(promise.Name, lost.Error())
		}
		return out, err
	})
}
