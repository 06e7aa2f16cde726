package hook

import (
	"errors"
	"fmt"
	"runtime"
)

// Failure says that a hook could not run, and why: it panicked, failed, took too long or
// was stopped.
type Failure struct {
	Hook    string
	Class   Class
	Program string // the program or address; "" for a function in Go
	// Cancelled says that the call was stopped while the hook ran. The hook is then not to
	// blame.
	Cancelled bool
	Cause     Cause  // the reason in words for the model
	Err       error  // the reason in full, for the operator
	Stack     []byte // the stack of a panic
}

func (f *Failure) Error() string { return fmt.Sprintf("hook %s could not run: %v", f.Hook, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// Cause says why a hook could not run. Its words quote neither the call nor the hook.
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

// Fault is an error of a hook with its cause. An error that is no Fault has the cause [Erred].
type Fault struct {
	Cause Cause
	Err   error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// Errors for a hook that used up its budget or panicked. The text of a panic is left out,
// because it may contain arguments.
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

// panicError returns an error for a panic. It keeps the text only if the panic is a runtime
// error of Go.
func panicError(v any) error {
	if err, ok := v.(runtime.Error); ok {
		return fmt.Errorf("%w: %w", ErrPanic, err)
	}
	return fmt.Errorf("%w with a %T", ErrPanic, v)
}
