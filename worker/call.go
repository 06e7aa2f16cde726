package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

type callKey struct{}

func withCall(ctx context.Context, call tool.Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// CallOf returns the call that a tool runs for: its session and batch, the attempt, the idempotency
// key, the fence. ctx is the context that the tool was given, or one made from it; with any other,
// such as that of a unit test, the call is empty.
func CallOf(ctx context.Context) tool.Call {
	call, _ := ctx.Value(callKey{}).(tool.Call)
	if call.Progress == nil {
		call.Progress = func(messages.Progress) {}
	}
	return call
}

// Progress tells watchers how far the run of ctx is: the fraction that is done, 0 to 1, or 0 for
// not known, and a few words. It never blocks. Reports that follow each other fast are thinned out.
func Progress(ctx context.Context, fraction float64, text string) {
	CallOf(ctx).Progress(messages.Progress{Fraction: fraction, Text: text})
}

// Errorf returns an error with a code for programs, in snake_case, such as "not_found". The model
// reads code and text. An error without a code has tool_error.
func Errorf(code messages.Code, format string, args ...any) error {
	return &messages.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// TryAgain marks an error: a later run of the same call may succeed. [Retry] says whether and when
// there is one. TryAgain(nil) is nil.
func TryAgain(err error) error {
	if err == nil {
		return nil
	}
	marked := messages.Error{Code: messages.CodeToolError, Message: err.Error()}
	if own := (*messages.Error)(nil); errors.As(err, &own) {
		marked = *own
	}
	marked.Retryable = true
	return &marked
}
