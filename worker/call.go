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

// CallOf returns the call for which a tool runs: its session and batch, the attempt, the
// idempotency key, the fence. ctx must be the context that the tool was given, or one
// derived from it. For any other context the call is empty. So test a tool with [Tool.Try],
// and not by calling its function.
func CallOf(ctx context.Context) tool.Call {
	call, _ := ctx.Value(callKey{}).(tool.Call)
	if call.Progress == nil {
		call.Progress = func(messages.Progress) {}
	}
	return call
}

// Progress reports how far the run of ctx is: the fraction that is done (0 to 1, or 0 if
// unknown) and a few words. It never blocks. If reports follow each other quickly, some are
// dropped.
func Progress(ctx context.Context, fraction float64, text string) {
	CallOf(ctx).Progress(messages.Progress{Fraction: fraction, Text: text})
}

// Errorf returns an error with a code for programs, in snake_case, such as "not_found". The
// model reads the code and the text. Other errors get the code tool_error. As in
// [fmt.Errorf], %w wraps an error; a mark of [TryAgain] on that error is kept.
func Errorf(code messages.Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	read := messages.Error{Code: code, Message: err.Error()}
	if own := (*messages.Error)(nil); errors.As(err, &own) {
		read.Retryable = own.Retryable
	}
	return &toolError{read, err}
}

// TryAgain marks an error to say that a later run of the same call may succeed. [Retry]
// decides whether and when that run happens. The result wraps err. TryAgain(nil) is nil.
func TryAgain(err error) error {
	if err == nil {
		return nil
	}
	marked := messages.Error{Code: messages.CodeToolError, Message: err.Error()}
	if own := (*messages.Error)(nil); errors.As(err, &own) {
		marked = *own
	}
	marked.Retryable = true
	return &toolError{marked, err}
}

// toolError is an error of a tool: what the model reads of it, and what it wraps.
type toolError struct {
	read  messages.Error
	cause error
}

func (e *toolError) Error() string { return e.read.Error() }

func (e *toolError) Unwrap() []error { return []error{&e.read, e.cause} }
