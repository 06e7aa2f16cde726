package hook

import (
	"errors"
	"fmt"
	"runtime"
)

// Failure says that a hook could not run, and why: it panicked, failed, was too slow or was cut
// off.
type Failure struct {
	Hook    string
	Class   Class
	Program string // "" for a function in Go
	// Cancelled means that the call ended around the hook, which is not the hook's fault.
	Cancelled bool
	Cause     Cause  // for the model
	Err       error  // for the operator
	Stack     []byte // of a panic
}

func (f *Failure) Error() string { return fmt.Sprintf("hook %s could not run: %v", f.Hook, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// Cause is why a hook could not run, in words that hold nothing of the call or of what the hook
// said.
type Cause string

// The causes.
const (
	NotStarted Cause = "it did not start"
	BadExit    Cause = "it ended with an error"
	TooSlow    Cause = "it took too long"
	BadAnswer  Cause = "its answer cannot be used"
	Panicked   Cause = "it panicked"
	Erred      Cause = "it failed"
)

// Fault is an error of a hook together with its cause. The cause of any other error is [Erred].
type Fault struct {
	Cause Cause
	Err   error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// Reasons why a hook could not run, beside its own errors. They leave out the text of a panic,
// which may hold arguments.
var (
	ErrBudget = errors.New("it took longer than its budget")
	ErrPanic  = errors.New("it panicked")
)

func causeOf(err error) Cause {
	var fault *Fault
	switch {
	case errors.Is(err, ErrBudget):
		return TooSlow
	case errors.Is(err, ErrPanic):
		return Panicked
	case errors.As(err, &fault):
		return fault.Cause
	}
	return Erred
}

// panicError keeps the text of the Go runtime's own errors only.
func panicError(v any) error {
	if err, ok := v.(runtime.Error); ok {
		return fmt.Errorf("%w: %w", ErrPanic, err)
	}
	return fmt.Errorf("%w with a %T", ErrPanic, v)
}
