package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

// Result combines the answers of a list of hooks.
type Result struct {
	Opinion Opinion
	By      string // the first hook that has the strictest opinion
	Reason  string // the reason of that hook
	// Input is the input after the changes of the hooks, or nil if no hook changed it.
	// PatchedBy names the hooks that changed the input or the output.
	Input     json.RawMessage
	PatchedBy []string
	// Output or Content is the output after the changes of the hooks. Both are nil if no
	// hook changed it.
	Output  json.RawMessage
	Content []messages.Block
	// Stop names the first hook that wants the agent to stop, or "". StopReason is the reason
	// of that hook.
	Stop       string
	StopReason string
	Context    []string // texts for the model, in order
	// Refused says which gate could not run, so that the call must not run. Nil: no gate
	// failed.
	Refused *Failure
	// Failures lists all hooks that could not run, observers too.
	Failures []*Failure
	Count    int                    // hooks that ran or failed to run
	Messages []messages.HookMessage // also sent to watchers as events, in order

	emit func(messages.HookMessage)
}

// Before runs the hooks for the call in order. Each gets the input as the previous one left
// it. It ends at the first deny, and at the first gate that could not run. emit gets each
// message as it happens; it may be nil.
func (s Set) Before(ctx context.Context, call Call, emit func(messages.HookMessage)) Result {
	r := Result{emit: emit}
	for _, h := range s.hooks {
		if h.Before == nil || !h.matches(call.Tool) {
			continue
		}
		r.Count++
		v, failure := attempt(ctx, h, h.BeforeProgram, func(ctx context.Context) (Verdict, error) {
			v, err := h.Before(ctx, call.clone())
			if err == nil && !slices.Contains([]Opinion{None, Allow, Ask, Deny}, v.Opinion) {
				err = &Fault{BadAnswer, errors.New("its opinion is none of allow, ask, deny and none")}
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
		r.add(h.Name, v.Context, v.Stop, v.StopReason)
		if v.Opinion == Deny {
			return r
		}
	}
	return r
}

// After runs the hooks for the call in order. Each hook gets the output as the previous one
// left it. A failed hook does not keep later hooks from running, because the tool has run and
// every observer should see that. emit is as in [Set.Before].
func (s Set) After(ctx context.Context, call Call, done Done, emit func(messages.HookMessage)) Result {
	r := Result{emit: emit}
	for _, h := range s.hooks {
		if h.After == nil || !h.matches(call.Tool) {
			continue
		}
		r.Count++
		change, failure := attempt(ctx, h, h.AfterProgram, func(ctx context.Context) (Change, error) {
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
		r.add(h.Name, change.Context, change.Stop, change.StopReason)
	}
	r.Refused = nil // the tool has run, so it is too late to refuse
	return r
}

func (r *Result) fail(f *Failure) {
	r.Failures = append(r.Failures, f)
	if f.Cancelled {
		r.addMessage(messages.HookMessage{Type: messages.HookCancelled, Hook: f.Hook})
	} else {
		r.addMessage(messages.HookMessage{Type: messages.HookErrorInExecution, Hook: f.Hook})
	}
	if f.Class == Gate {
		r.Refused = f
	}
}

// opine keeps the strictest opinion. If several opinions are equally strict, it keeps the
// first.
func (r *Result) opine(hook string, o Opinion, reason string) {
	if o == None {
		return
	}
	reason = bounded(reason, MaxReason)
	r.addMessage(messages.HookMessage{Type: messages.HookPermissionDecision, Hook: hook, Opinion: string(o), Text: reason})
	strictness := []Opinion{None, Allow, Ask, Deny}
	if slices.Index(strictness, o) > slices.Index(strictness, r.Opinion) {
		r.Opinion, r.By, r.Reason = o, hook, reason
	}
}

func (r *Result) add(hook, context string, stop bool, stopReason string) {
	if context != "" {
		left := MaxContext
		for _, c := range r.Context {
			left -= utf8.RuneCountInString(c)
		}
		if left > 0 {
			r.Context = append(r.Context, bounded(context, left))
		}
		r.addMessage(messages.HookMessage{
			Type: messages.HookAdditionalContext, Hook: hook, Text: bounded(context, MaxReason),
		})
	}
	if !stop {
		return
	}
	stopReason = bounded(stopReason, MaxReason)
	r.addMessage(messages.HookMessage{Type: messages.HookStoppedContinuation, Hook: hook, Text: stopReason})
	if r.Stop == "" {
		r.Stop, r.StopReason = hook, stopReason
	}
}

func (r *Result) addMessage(m messages.HookMessage) {
	r.Messages = append(r.Messages, m)
	if r.emit != nil {
		r.emit(m)
	}
}

// bounded cuts a text to limit characters and makes it valid UTF-8. A text that was cut
// ends with a mark.
func bounded(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	n := 0
	for at := range text {
		if n == limit {
			return text[:at] + " [...]"
		}
		n++
	}
	return text
}

// attempt runs f within the hook's budget. It runs f on a goroutine, so a hook that ignores
// its context does not delay the call.
func attempt[T any](ctx context.Context, h Hook, program string, f func(context.Context) (T, error)) (T, *Failure) {
	type answer struct {
		value T
		err   error
		stack []byte
	}
	budget, cancel := context.WithTimeoutCause(ctx, h.Budget, fmt.Errorf("%w of %v", ErrBudget, h.Budget))
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		a := answer{err: ErrPanic} // stays if f ends the goroutine with runtime.Goexit
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
		h.last.Store(nil)
		return a.value, nil
	}
	// The function has ended because of its context. Name the budget as the cause.
	if errors.Is(a.err, context.DeadlineExceeded) && budget.Err() != nil {
		a.err = context.Cause(budget)
	}
	failure := &Failure{
		Hook: h.Name, Class: h.Class, Program: program, Cancelled: ctx.Err() != nil, Cause: causeOf(a.err), Err: a.err, Stack: a.stack,
	}
	if !failure.Cancelled {
		h.last.Store(failure)
	}
	var none T
	return none, failure
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
