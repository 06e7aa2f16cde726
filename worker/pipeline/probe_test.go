package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/tool"
)

var checkable = with(write, func(t *schemas.Tool) { t.OnCrash = messages.OnCrashCheckable })

// An earlier attempt was lost: the tool's probe is asked first. The tool is started only if
// that attempt was not applied.
func TestProbeBeforeAnotherRun(t *testing.T) {
	for _, tt := range []struct {
		name    string
		applied func(context.Context) (tool.Probed, error)
		status  messages.Status
		output  string
		runs    int32
	}{
		{"applied", says(tool.Probed{Applied: true, Output: tool.Text("made")}), messages.StatusOK, `"made"`, 0},
		{"applied, output not known", says(tool.Probed{Applied: true}), messages.StatusOK,
			`"Done, by an attempt that was lost before it could answer: a check found it applied. What it gave is not known."`, 0},
		{"not applied", says(tool.Probed{}), messages.StatusOK, `{"n":1}`, 1},
		{"nobody knows", nil, messages.StatusOutcomeUnknown, "", 0},
		{"breaks down", func(context.Context) (tool.Probed, error) { panic("probe") }, messages.StatusOutcomeUnknown, "", 0},
		{"hangs", func(ctx context.Context) (tool.Probed, error) { <-ctx.Done(); return tool.Probed{}, ctx.Err() }, messages.StatusOutcomeUnknown, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &probe{applied: tt.applied}
				r, err := runClaimed(t, t.Context(), p, call.Grant{Attempt: 2, Probe: true})
				if err != nil || r.Status != tt.status || string(r.Output) != tt.output || p.effects.Load() != tt.runs || p.asked.Load() != 1 {
					t.Errorf("got %s %s %v %v after %d runs and %d questions, want %s %s after %d runs", r.Status, r.Output, r.Err, err, p.effects.Load(), p.asked.Load(), tt.status, tt.output, tt.runs)
				}
			})
		})
	}
}

// A run was stopped in the middle, or failed in a way that may be temporary: the probe is
// asked whether the run was applied.
func TestProbeAfterAStop(t *testing.T) {
	hangs := func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		<-ctx.Done()
		return tool.Output{}, ctx.Err()
	}
	busy := func(context.Context, tool.Call) (tool.Output, error) {
		return tool.Output{}, &messages.Error{Message: "busy", Retryable: true}
	}
	gone := errors.New("the worker goes away")
	for _, tt := range []struct {
		name      string
		run       tool.Func
		cause     error // the context ends with it after 1 s
		applied   func(context.Context) (tool.Probed, error)
		status    messages.Status // "": the pipeline returns the cause as its error
		retryable bool
	}{
		{"out of time, applied", hangs, nil, says(tool.Probed{Applied: true}), messages.StatusOK, false},
		{"out of time, not applied", hangs, nil, says(tool.Probed{}), messages.StatusTimeout, true},
		{"out of time, nobody knows", hangs, nil, nil, messages.StatusOutcomeUnknown, false},
		{"aborted, applied", hangs, &wire.Stop{}, says(tool.Probed{Applied: true}), messages.StatusOK, false},
		{"aborted, not applied", hangs, &wire.Stop{}, says(tool.Probed{}), messages.StatusAborted, false},
		{"given up, not applied", hangs, gone, says(tool.Probed{}), "", false},
		{"given up, nobody knows", hangs, gone, nil, messages.StatusOutcomeUnknown, false},
		{"busy, applied", busy, nil, says(tool.Probed{Applied: true}), messages.StatusOK, false},
		{"busy, not applied", busy, nil, says(tool.Probed{}), messages.StatusError, true},
		{"busy, nobody knows", busy, nil, nil, messages.StatusError, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.cause != nil {
					time.AfterFunc(time.Second, func() { cancel(tt.cause) })
				}
				r, err := runClaimed(t, ctx, &probe{run: tt.run, applied: tt.applied}, call.Grant{Attempt: 1})
				if tt.status == "" {
					if !errors.Is(err, tt.cause) {
						t.Errorf("got %+v, %v, want the cause", r, err)
					}
					return
				}
				if err != nil || r.Status != tt.status || (r.Err != nil && r.Err.Retryable) != tt.retryable {
					t.Errorf("got %s %v, %v, want %s, retryable %v", r.Status, r.Err, err, tt.status, tt.retryable)
				}
			})
		})
	}
}

func says(p tool.Probed) func(context.Context) (tool.Probed, error) {
	return func(context.Context) (tool.Probed, error) { return p, nil }
}

func runClaimed(t testing.TB, ctx context.Context, p *probe, grant call.Grant) (messages.Result, error) {
	t.Helper()
	cfg := Config{Registry: &tool.Registry{}}
	if err := cfg.Registry.Add(checkable, p); err != nil {
		t.Fatal(err)
	}
	pipe, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	job := jobFor(checkable, `{"n":1}`)
	return pipe.Run(ctx, job, nil, func(context.Context, call.Frozen) (call.Grant, error) { return grant, nil }, nil)
}
