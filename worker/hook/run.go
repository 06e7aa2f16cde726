package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/toolfleet/toolfleet/messages"
)

// Result is the answers of a list of hooks as one.
type Result struct {
	Opinion Opinion
	By      string // the hook whose opinion it is: the first with the strictest one
	Reason  string // that hook's
	// Input is what the hooks made of the input; nil when none changed it. PatchedBy names those that did.
	Input     json.RawMessage
	PatchedBy []string
	// Output or Content is what the hooks made of the output; both nil when none changed it.
	Output  json.RawMessage
	Content []messages.Block
	// Stop names the first hook that wants the agent to stop, with StopReason; "" for none.
	Stop       string
	StopReason string
	Context    []string // for the model, in order
	// Refused is the gate that could not run, so that the call must not.
	Refused *Failure
	// Failures is every hook that could not run, observers too.
	Failures []*Failure
	Messages []Message // the same story for those who watch, in order
}

// Failure says that a hook could not run, and why: it panicked, erred, was too slow or was cut off.
type Failure struct {
	Hook  string
	Class Class
	// Cancelled: the call ended around the hook, which is not the hook's fault.
	Cancelled bool
	Err       error
	Stack     []byte // of a panic
}

func (f *Failure) Error() string { return fmt.Sprintf("hook %s could not run: %v", f.Hook, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// Why a hook could not run, beside errors of its own. The text of a panic is left out: it may hold arguments.
var (
	ErrBudget = errors.New("it took longer than its budget")
	ErrPanic  = errors.New("it panicked")
)

// MessageType names what a [Message] tells of, as the event feeds of agents know it.
type MessageType string

// The messages about hooks.
const (
	Cancelled            MessageType = "hook_cancelled"              // the call ended while the hook ran
	ErrorDuringExecution MessageType = "hook_error_during_execution" // the hook could not run
	StoppedContinuation  MessageType = "hook_stopped_continuation"   // the hook wants the agent to stop
	PermissionDecision   MessageType = "hook_permission_decision"    // the hook had an opinion
	AdditionalContext    MessageType = "hook_additional_context"     // the hook had something to tell the model
)

// Message is news of one hook for whoever watches.
type Message struct {
	Type    MessageType `json:"type"`
	Hook    string      `json:"hook"`
	Opinion Opinion     `json:"opinion,omitempty"`
	Text    string      `json:"text,omitempty"` // the reason, or the context; never an argument or an error's text
}

// Before runs the hooks for the call in order, each on the input that the one before left. A deny, and a
// gate that could not run, end the list.
func (s Set) Before(ctx context.Context, call Call) Result {
	var r Result
	for _, h := range s.hooks {
		if h.Before == nil || !h.matches(call.Tool) {
			continue
		}
		v, failure := attempt(ctx, h, func(ctx context.Context) (Verdict, error) {
			v, err := h.Before(ctx, call.clone())
			if err == nil && !slices.Contains([]Opinion{None, Allow, Ask, Deny}, v.Opinion) {
				err = fmt.Errorf("opinion %.20q: want allow, ask, deny or none", v.Opinion)
			}
			return v, err
		})
		if failure != nil {
			if r.fail(failure); r.Refused != nil {
				return r
			}
			continue
		}
		if v.Input != nil {
			call.Input = bytes.Clone(v.Input)
			r.Input = call.Input
			r.PatchedBy = append(r.PatchedBy, h.Name)
		}
		r.opine(h.Name, v.Opinion, v.Reason)
		r.tell(h.Name, v.Context, v.Stop, v.StopReason)
		if v.Opinion == Deny {
			return r
		}
	}
	return r
}

// After runs the hooks for the call in order, each on the output that the one before left. None of them
// ends the list: what has happened has happened, and every observer sees it.
func (s Set) After(ctx context.Context, call Call, done Done) Result {
	var r Result
	for _, h := range s.hooks {
		if h.After == nil || !h.matches(call.Tool) {
			continue
		}
		change, failure := attempt(ctx, h, func(ctx context.Context) (Change, error) {
			own := done
			own.Outcome = cloneOutcome(done.Outcome)
			return h.After(ctx, call.clone(), own)
		})
		if failure != nil {
			r.fail(failure)
			continue
		}
		if done.Outcome.Err == nil && (change.Output != nil || change.Content != nil) {
			r.Output, r.Content = bytes.Clone(change.Output), cloneBlocks(change.Content)
			done.Outcome.Output, done.Outcome.Content = r.Output, r.Content
			r.PatchedBy = append(r.PatchedBy, h.Name)
		}
		r.tell(h.Name, change.Context, change.Stop, change.StopReason)
	}
	r.Refused = nil // it is too late to refuse
	return r
}

func (r *Result) fail(f *Failure) {
	r.Failures = append(r.Failures, f)
	if f.Cancelled {
		r.Messages = append(r.Messages, Message{Type: Cancelled, Hook: f.Hook})
	} else {
		r.Messages = append(r.Messages, Message{Type: ErrorDuringExecution, Hook: f.Hook})
	}
	if f.Class == Gate {
		r.Refused = f
	}
}

func (r *Result) opine(hook string, o Opinion, reason string) {
	if o == None {
		return
	}
	r.Messages = append(r.Messages, Message{Type: PermissionDecision, Hook: hook, Opinion: o, Text: reason})
	strictness := []Opinion{None, Allow, Ask, Deny}
	if slices.Index(strictness, o) > slices.Index(strictness, r.Opinion) {
		r.Opinion, r.By, r.Reason = o, hook, reason
	}
}

func (r *Result) tell(hook, context string, stop bool, stopReason string) {
	if context != "" {
		r.Context = append(r.Context, context)
		r.Messages = append(r.Messages, Message{Type: AdditionalContext, Hook: hook, Text: context})
	}
	if !stop {
		return
	}
	r.Messages = append(r.Messages, Message{Type: StoppedContinuation, Hook: hook, Text: stopReason})
	if r.Stop == "" {
		r.Stop, r.StopReason = hook, stopReason
	}
}

// attempt gives f the hook's budget, on a goroutine of its own so that one that ignores its context holds up nobody.
func attempt[T any](ctx context.Context, h Hook, f func(context.Context) (T, error)) (T, *Failure) {
	type answer struct {
		value T
		err   error
		stack []byte
	}
	budget, cancel := context.WithTimeoutCause(ctx, h.Budget, ErrBudget)
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		a := answer{err: ErrPanic} // also where the goroutine ends without returning
		defer func() {
			if v := recover(); v != nil {
				a = answer{err: panicError(v), stack: debug.Stack()}
			}
			answers <- a
		}()
		value, err := f(budget)
		a = answer{value: value, err: err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-budget.Done():
		a.err = context.Cause(budget)
	}
	if a.err == nil {
		return a.value, nil
	}
	var none T
	return none, &Failure{Hook: h.Name, Class: h.Class, Cancelled: ctx.Err() != nil, Err: a.err, Stack: a.stack}
}

// panicError keeps the text of the runtime's own errors only.
func panicError(v any) error {
	if err, ok := v.(runtime.Error); ok {
		return fmt.Errorf("%w: %w", ErrPanic, err)
	}
	return fmt.Errorf("%w with a %T", ErrPanic, v)
}

func (c Call) clone() Call {
	c.Input = bytes.Clone(c.Input)
	return c
}

func cloneOutcome(o messages.Outcome) messages.Outcome {
	o.Output = bytes.Clone(o.Output)
	o.Content = cloneBlocks(o.Content)
	if o.Err != nil {
		err := *o.Err
		if details, ok := err.Details.(json.RawMessage); ok {
			err.Details = json.RawMessage(bytes.Clone(details))
		}
		o.Err = &err
	}
	return o
}

func cloneBlocks(blocks []messages.Block) []messages.Block {
	blocks = slices.Clone(blocks)
	for i := range blocks {
		if r := blocks[i].Resource; r != nil {
			own := *r
			blocks[i].Resource = &own
		}
	}
	return blocks
}
