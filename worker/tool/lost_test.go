package tool_test

import (
	"context"
	"errors"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The process of a tool is lost: what its call ends with depends on the kind and the promise
// of the tool.
func TestRecovering(t *testing.T) {
	killed := &tool.LostError{Err: errors.New("signal: killed")}
	unsent := &tool.LostError{Err: errors.New("it was gone"), Unsent: true}
	read := schemas.Tool{Name: "t", Kind: messages.KindRead}
	write := func(on messages.OnCrash) schemas.Tool {
		return schemas.Tool{Name: "t", Kind: messages.KindWrite, OnCrash: on}
	}
	applied := func() (tool.Probed, error) { return tool.Probed{Applied: true, Output: tool.Text("paid")}, nil }
	for _, tt := range []struct {
		name    string
		promise schemas.Tool
		runs    []error // how each run ends
		probe   func() (tool.Probed, error)
		want    string // output, or the code of the error
	}{
		{"a read", read, []error{killed, nil}, nil, `"ran"`},
		{"a read that is lost twice", read, []error{killed, killed}, nil, "signal: killed"},
		{"once", write(messages.OnCrashOnce), []error{killed}, nil, "outcome_unknown"},
		{"a write that says nothing", write(""), []error{killed}, nil, "outcome_unknown"},
		{"once, and never sent", write(messages.OnCrashOnce), []error{unsent, nil}, nil, `"ran"`},
		{"once, and then lost", write(messages.OnCrashOnce), []error{unsent, killed}, nil, "outcome_unknown"},
		{"idempotent", write(messages.OnCrashIdempotent), []error{killed, nil}, nil, `"ran"`},
		{"idempotent, lost twice", write(messages.OnCrashIdempotent), []error{killed, killed}, nil, "outcome_unknown"},
		{"checkable, applied", write(messages.OnCrashCheckable), []error{killed}, applied, `"paid"`},
		{"checkable, not applied", write(messages.OnCrashCheckable), []error{killed, nil}, func() (tool.Probed, error) { return tool.Probed{}, nil }, `"ran"`},
		{"checkable, nobody knows", write(messages.OnCrashCheckable), []error{killed}, func() (tool.Probed, error) { return tool.Probed{}, errors.New("no") }, "outcome_unknown"},
		{"another error", write(messages.OnCrashIdempotent), []error{errors.New("no such order")}, nil, "no such order"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runs := 0
			runner := tool.Func(func(context.Context, tool.Call) (tool.Output, error) {
				runs++
				return tool.Text("ran"), tt.runs[runs-1]
			})
			var probe func(context.Context, tool.Call) (tool.Probed, error)
			if tt.probe != nil {
				probe = func(context.Context, tool.Call) (tool.Probed, error) { return tt.probe() }
			}
			out, err := tool.Recovering(tt.promise, runner, probe).Run(t.Context(), tool.Call{})
			got := string(out.Value)
			var own *messages.Error
			if errors.As(err, &own) {
				got = string(own.Code)
			} else if err != nil {
				got = err.Error()
			}
			if got != tt.want || runs != len(tt.runs) {
				t.Errorf("got %s after %d runs, want %s after %d", got, runs, tt.want, len(tt.runs))
			}
		})
	}
}
