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
// idempotency key, the fence. ctx must be the context that the tool was given, or one derived
// from it. Any other context gives an empty call. A test should therefore run a tool with
// [Tool.Try] and not call the tool's function.
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
// model reads the code and the text. An error that is not made by Errorf gets the code
// tool_error. As in [fmt.Errorf], %w wraps an error. If [TryAgain] has marked the wrapped
// error, the new error is marked too.
func Errorf(code messages.Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	read := messages.Error{Code: code, Message: err.Error()}
	if own := (*messages.Error)(nil); errors.As(err, &own) {
		read.Retryable = own.Retryable
	}
	return &toolError{read, err}
}

// TryAgain marks an error to say that a later run of the same call may succeed. The option
// [Retry] decides whether and when the call runs again. The result wraps err. TryAgain(nil) is
// nil.
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
