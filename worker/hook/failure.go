package hook

import (
	"errors"
	"fmt"
	"runtime"
)

// Failure says that a hook could not run, and why: it panicked, failed, was too slow or was
// stopped.
type Failure struct {
	Hook    string
	Class   Class
	Program string // or address; "" for a function in Go
	// Cancelled: the call was stopped while the hook ran, so it is not the hook's fault.
	Cancelled bool
	Cause     Cause  // for the model
	Err       error  // for the operator
	Stack     []byte // the stack of a panic
}

func (f *Failure) Error() string { return fmt.Sprintf("hook %s could not run: %v", f.Hook, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// Cause says why a hook could not run, in words that quote neither the call nor the hook.
type Cause string

// The causes.
const (
	NotStarted  Cause = "it did not start"
	Unreachable Cause = "it could not be reached"
	BadExit     Cause = "it ended with an error"
	TooSlow     Cause = "it took too long"
	BadAnswer   Cause = "its answer cannot be used"
	Panicked    Cause = "it panicked"
	Erred       Cause = "it failed"
)

// Fault is an error of a hook together with its cause. The cause of any other error is [Erred].
type Fault struct {
	Cause Cause
	Err   error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// Errors that say why a hook could not run, in addition to its own errors. They leave out the text
// of a panic, which may hold arguments.
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

// panicError returns an error for a panic. It keeps the text only of errors of the Go runtime.
func panicError(v any) error {
	if err, ok := v.(runtime.Error); ok {
		return fmt.Errorf("%w: %w", ErrPanic, err)
	}
	return fmt.Errorf("%w with a %T", ErrPanic, v)
}
