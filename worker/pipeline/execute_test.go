package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

func TestToolFailures(t *testing.T) {
	read := with(write, func(t *schemas.Tool) { t.Kind = messages.KindRead })
	idempotent := with(write, func(t *schemas.Tool) { t.OnCrash = messages.OnCrashIdempotent })
	var noError *messages.Error
	for _, tt := range []struct {
		name   string
		tool   schemas.Tool
		run    tool.Func
		status messages.Status
		want   messages.Error
	}{
		{"plain", read, fails(errors.New("disk full")), messages.StatusError, messages.Error{Code: messages.CodeToolError, Message: "disk full"}},
		{"own, a read", read, fails(&messages.Error{Code: "rate_limited", Message: "m", Retryable: true}),
			messages.StatusError, messages.Error{Code: "rate_limited", Message: "m", Retryable: true}},
		{"own, idempotent", idempotent, fails(&messages.Error{Code: "rate_limited", Message: "m", Retryable: true}),
			messages.StatusError, messages.Error{Code: "rate_limited", Message: "m", Retryable: true}},
		{"own, once", write, fails(&messages.Error{Code: "rate_limited", Message: "m", Retryable: true}),
			messages.StatusError, messages.Error{Code: "rate_limited", Message: "m"}},
		{"wrapped", read, fails(fmt.Errorf("w: %w", &messages.Error{Message: "m"})), messages.StatusError, messages.Error{Code: messages.CodeToolError, Message: "m"}},
		{"says unknown", write, fails(&messages.Error{Code: messages.CodeOutcomeUnknown, Message: "m"}),
			messages.StatusOutcomeUnknown, messages.Error{Code: messages.CodeOutcomeUnknown, Message: "m"}},
		{"typed nil", read, fails(noError), messages.StatusError, messages.Error{Code: messages.CodeToolError}},
		{"details", read, fails(&messages.Error{Code: "x", Message: "m", Details: map[string]int{"n": 1}}),
			messages.StatusError, messages.Error{Code: "x", Message: "m", Details: json.RawMessage(`{"n":1}`)}},
		{"unwritable details", read, fails(&messages.Error{Code: "x", Message: "m", Details: make(chan int)}),
			messages.StatusError, messages.Error{Code: "x", Message: "m"}},
		{"panicking details", read, fails(&messages.Error{Code: "x", Message: "m", Details: bomb{}}),
			messages.StatusError, messages.Error{Code: "x", Message: "m"}},
		{"no text", read, fails(errors.New("a\xffb")), messages.StatusError, messages.Error{Code: messages.CodeToolError, Message: "a\uFFFDb"}},
		{"error value", read, gives(tool.Output{Value: json.RawMessage(`"bad"`), IsError: true}), messages.StatusError,
			messages.Error{Code: messages.CodeToolError, Message: "bad"}},
		{"too much", read, gives(tool.Text(strings.Repeat("x", 300))), messages.StatusError,
			messages.Error{Code: messages.CodeTooLarge, Message: "w has run, but it gave 302 bytes and the limit is 200, so its output is lost. Ask for less."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := run(t, t.Context(), Config{MaxOutput: 200}, tt.tool, &probe{run: tt.run}, jobFor(tt.tool, `{"n":1}`))
			if err != nil || r.Status != tt.status || r.Attempt != 1 {
				t.Errorf("got %s, attempt %d, %v, want %s", r.Status, r.Attempt, err, tt.status)
			}
			if diff := cmp.Diff(&tt.want, r.Err); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

type bomb struct{}

func (bomb) MarshalJSON() ([]byte, error) { panic("SECRET") }

func fails(err error) tool.Func {
	return func(context.Context, tool.Call) (tool.Output, error) { return tool.Output{}, err }
}

func gives(o tool.Output) tool.Func {
	return func(context.Context, tool.Call) (tool.Output, error) { return o, nil }
}

func TestOutputs(t *testing.T) {
	block := []messages.Block{{Type: "text", Text: "a"}}
	for _, tt := range []struct {
		name string
		out  tool.Output
		want messages.Outcome
	}{
		{"nothing", tool.Output{}, messages.Text("")},
		{"no blocks", tool.Output{Content: []messages.Block{}}, messages.Text("")},
		{"text", tool.Text("a<b"), messages.Outcome{Output: json.RawMessage(`"a<b"`)}},
		{"value", tool.Output{Value: json.RawMessage(`{"n":9007199254740993}`)}, messages.Outcome{Output: json.RawMessage(`{"n":9007199254740993}`)}},
		{"null", tool.Output{Value: json.RawMessage(`null`)}, messages.Outcome{Output: json.RawMessage(`null`)}},
		{"no JSON", tool.Output{Value: json.RawMessage("{n\xff")}, messages.Text("{n\xff")},
		{"keys twice", tool.Output{Value: json.RawMessage(`{"a":1,"a":2}`)}, messages.Text(`{"a":1,"a":2}`)},
		{"open text", tool.Output{Value: json.RawMessage(`"open`)}, messages.Text(`"open`)},
		{"blocks", tool.Output{Content: block}, messages.Outcome{Content: block}},
		{"both", tool.Output{Value: json.RawMessage(`1`), Content: block}, messages.Outcome{Output: json.RawMessage(`1`)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := run(t, t.Context(), Config{}, write, &probe{run: gives(tt.out)}, jobFor(write, `{"n":1}`))
			if diff := cmp.Diff(tt.want, r.Outcome); diff != "" || r.Status != messages.StatusOK || err != nil {
				t.Errorf("status %s, error %v, outcome (-want +got):\n%s", r.Status, err, diff)
			}
		})
	}
	r, err := run(t, t.Context(), Config{}, write, &probe{run: gives(tool.Output{Content: block, IsError: true})}, jobFor(write, `{"n":1}`))
	if err != nil || r.Status != messages.StatusError || !r.IsError || r.Err != nil {
		t.Errorf("blocks with IsError: got %+v, %v", r, err)
	}
}

// A running tool is cut off, in each possible way and for each kind of tool: the result has
// the right status and code.
func TestCutOff(t *testing.T) {
	read := with(write, func(t *schemas.Tool) { t.Kind = messages.KindRead })
	idempotent := with(write, func(t *schemas.Tool) { t.OnCrash = messages.OnCrashIdempotent })
	heeds := func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		<-ctx.Done()
		return tool.Output{}, ctx.Err()
	}
	deaf := func(context.Context, tool.Call) (tool.Output, error) {
		time.Sleep(time.Hour)
		return tool.Text("late"), nil
	}
	waits := func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		<-ctx.Done()
		return tool.Output{}, fmt.Errorf("%w: %w", tool.ErrNotStarted, context.Cause(ctx))
	}
	lost := errors.New("lease lost")
	for _, tt := range []struct {
		name      string
		tool      schemas.Tool
		run       tool.Func
		deadline  int64
		cause     error // the context ends with it after 1 s
		status    messages.Status
		retryable bool
		took      time.Duration
		left      int
	}{
		{"read", read, heeds, 0, nil, messages.StatusTimeout, true, 5 * time.Second, 0},
		{"idempotent", idempotent, heeds, 0, nil, messages.StatusOutcomeUnknown, true, 5 * time.Second, 0},
		{"once", write, heeds, 0, nil, messages.StatusOutcomeUnknown, false, 5 * time.Second, 0},
		{"checkable", checkable, heeds, 0, nil, messages.StatusOutcomeUnknown, false, 5 * time.Second, 0},
		{"the batch's time", read, heeds, 2000, nil, messages.StatusTimeout, true, 2 * time.Second, 0},
		{"deaf read", read, deaf, 0, nil, messages.StatusTimeout, true, 7 * time.Second, 1},
		{"deaf write", write, deaf, 0, nil, messages.StatusOutcomeUnknown, false, 7 * time.Second, 1},
		{"aborted read", read, heeds, 0, &wire.Stop{}, messages.StatusAborted, false, time.Second, 0},
		{"aborted before it began", write, waits, 0, &wire.Stop{}, messages.StatusAborted, false, time.Second, 0},
		{"late before it began", write, waits, 0, nil, messages.StatusTimeout, true, 5 * time.Second, 0},
		{"aborted write", write, heeds, 0, &wire.Stop{}, messages.StatusOutcomeUnknown, false, time.Second, 0},
		{"lease lost", idempotent, heeds, 0, lost, "", false, time.Second, 0},
		{"lease lost, once", write, heeds, 0, lost, messages.StatusOutcomeUnknown, false, time.Second, 0},
		{"lease lost, read", read, heeds, 0, lost, "", false, time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * time.Hour) // of simulated time: the tool that ignores its context ends
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.cause != nil {
					time.AfterFunc(time.Second, func() { cancel(tt.cause) })
				}
				left := 0
				job := jobFor(tt.tool, `{"n":1}`)
				job.DeadlineMS = tt.deadline
				r, err := run(t, ctx, Config{LeftBehind: func(string) { left++ }}, tt.tool, &probe{run: tt.run}, job)
				if tt.status == "" {
					if !errors.Is(err, lost) {
						t.Errorf("got %+v, %v, want the cause", r, err)
					}
					return
				}
				if err != nil || r.Status != tt.status || r.Err == nil || r.Err.Code != messages.Code(tt.status) || r.Err.Retryable != tt.retryable {
					t.Fatalf("got %s %+v, %v, want %s, retryable %v", r.Status, r.Err, err, tt.status, tt.retryable)
				}
				if took := time.Duration(r.DurationMS * float64(time.Millisecond)); took.Round(time.Millisecond) != tt.took || left != tt.left {
					t.Errorf("took %v and left %d behind, want %v and %d", took, left, tt.took, tt.left)
				}
			})
		})
	}
}

// The hooks have used up all the time of a call: the tool is not started, and the error is
// retryable.
func TestNoTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &probe{}
		job := jobFor(write, `{"n":1}`)
		job.DeadlineMS = 1000
		h := before("h", func(hook.Call) hook.Verdict { time.Sleep(2 * time.Second); return hook.Verdict{} })
		r, err := run(t, t.Context(), Config{Hooks: hooks(t, h)}, write, p, job)
		time.Sleep(time.Minute)
		if err != nil || r.Status != messages.StatusTimeout || !r.Err.Retryable || r.Attempt != 0 || p.effects.Load() != 0 {
			t.Errorf("got %+v, %v, %d effects", r, err, p.effects.Load())
		}
	})
}

// A tool is stopped at the end of its time: the model reads the error that the tool returns
// then. Progress that a tool reports after its call has ended is dropped.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := with(write, func(t *schemas.Tool) { t.Kind = messages.KindRead })
		r, err := run(t, t.Context(), Config{}, read, &probe{run: func(ctx context.Context, _ tool.Call) (tool.Output, error) {
			<-ctx.Done()
			return tool.Output{}, &messages.Error{Code: "killed", Message: "still at 40 %"}
		}}, jobFor(read, `{"n":1}`))
		if err != nil || r.Status != messages.StatusTimeout || !strings.HasSuffix(r.Err.Message, "\nstill at 40 %") {
			t.Errorf("got %s %+v, %v", r.Status, r.Err, err)
		}

		var heard atomic.Int32
		reg := &tool.Registry{}
		if err := reg.Add(read, tool.Func(func(_ context.Context, c tool.Call) (tool.Output, error) {
			c.Progress(messages.Progress{})
			time.Sleep(time.Hour)
			c.Progress(messages.Progress{})
			return tool.Output{}, nil
		})); err != nil {
			t.Fatal(err)
		}
		pipe, err := New(Config{Registry: reg})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pipe.Run(t.Context(), jobFor(read, `{"n":1}`), nil, nil, func(messages.Event) { heard.Add(1) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if n := heard.Load(); n != 1 {
			t.Errorf("%d events of progress, want one", n)
		}
	})
}

// A panic in any phase gives a result: with the code internal, or outcome_unknown if a write
// has started. The text of the panic is neither in the result nor in the log; the log has the
// stack.
func TestPanics(t *testing.T) {
	read := with(write, func(t *schemas.Tool) { t.Kind = messages.KindRead })
	boom := func(context.Context, tool.Call) (tool.Output, error) { panic("SECRET") }
	panics := &probe{check: func(context.Context, tool.Call) error { panic(fmt.Errorf("SECRET")) }}
	for _, tt := range []struct {
		name   string
		tool   schemas.Tool
		p      *probe
		cfg    Config
		status messages.Status
		code   messages.Code
	}{
		{"check", write, panics, Config{}, messages.StatusError, messages.CodeInternal},
		{"tool, read", read, &probe{run: boom}, Config{}, messages.StatusError, messages.CodeInternal},
		{"tool, once", write, &probe{run: boom}, Config{}, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown},
		{"error text", read, &probe{run: fails(panickyError{})}, Config{}, messages.StatusError, messages.CodeInternal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			tt.cfg.Logger = slog.New(slog.NewJSONHandler(&log, nil))
			r, err := run(t, t.Context(), tt.cfg, tt.tool, tt.p, jobFor(tt.tool, `{"n":1}`))
			if err != nil || r.Status != tt.status || r.Err == nil || r.Err.Code != tt.code {
				t.Fatalf("got %s %+v, %v, want %s %s", r.Status, r.Err, err, tt.status, tt.code)
			}
			if all := string(rawjson.MustMarshal(r)) + log.String(); strings.Contains(all, "SECRET") {
				t.Errorf("the panic's text got out:\n%s", all)
			}
			if !strings.Contains(log.String(), "goroutine") {
				t.Errorf("no stack in the log: %s", log.String())
			}
		})
	}
}

type panickyError struct{}

func (panickyError) Error() string { panic("SECRET") }
