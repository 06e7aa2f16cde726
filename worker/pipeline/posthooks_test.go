package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

func TestPostHooks(t *testing.T) {
	after := func(c hook.Change) hook.Hook {
		return hook.Hook{Name: "h", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) { return c, nil }}
	}
	breaks := hook.Hook{Name: "bad", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) { panic("x") }}
	limited := with(write, func(t *schemas.Tool) { t.MaxOutput = 20 })
	ok := func(o messages.Outcome) messages.Result {
		return messages.Result{Status: messages.StatusOK, Outcome: o}
	}
	text := func(s ...string) (blocks []messages.Block) {
		for _, s := range s {
			blocks = append(blocks, messages.Block{Type: "text", Text: s})
		}
		return blocks
	}
	for _, tt := range []struct {
		name  string
		hooks []hook.Hook
		run   tool.Func
		want  messages.Result
	}{
		{"nothing", []hook.Hook{after(hook.Change{})}, gives(tool.Text("a")), ok(messages.Text("a"))},
		{"a hook that breaks changes nothing", []hook.Hook{breaks}, gives(tool.Text("a")), ok(messages.Text("a"))},
		{"replaces", []hook.Hook{after(hook.Change{Output: json.RawMessage(`{"b":1}`)})}, gives(tool.Text("a")),
			ok(messages.Outcome{Output: json.RawMessage(`{"b":1}`)})},
		{"replaces by blocks", []hook.Hook{after(hook.Change{Content: text("b")})}, gives(tool.Text("a")), ok(messages.Outcome{Content: text("b")})},
		{"a replacement is cut", []hook.Hook{after(hook.Change{Output: rawjson.Quote(strings.Repeat("b", 25))})}, gives(tool.Text("a")),
			messages.Result{Status: messages.StatusOK, Truncated: &messages.Cut{Chars: 5},
				Outcome: messages.Text(strings.Repeat("b", 20) + "\n[truncated - 0 more lines, 5 characters]")}},
		{"a replacement that is too much", []hook.Hook{after(hook.Change{Output: rawjson.Quote(strings.Repeat("b", 500))})}, gives(tool.Text("a")), ok(messages.Text("a"))},
		{"context", []hook.Hook{after(hook.Change{Context: "note"}), {Name: "pre", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			return hook.Verdict{Context: "first"}, nil
		}}}, gives(tool.Output{Value: json.RawMessage(`{"a":1}`)}), ok(messages.Outcome{Content: text(`{"a":1}`, "first\nnote")})},
		{"context of a failure", []hook.Hook{after(hook.Change{Context: "note", Output: json.RawMessage(`1`)})}, fails(errors.New("no")),
			messages.Result{Status: messages.StatusError, Outcome: messages.Failed(messages.CodeToolError, "no\nnote")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := run(t, t.Context(), Config{Hooks: hooks(t, tt.hooks...), MaxOutput: 200}, limited, &probe{run: tt.run}, jobFor(write, `{"n":1}`))
			if err != nil {
				t.Fatal(err)
			}
			got := messages.Result{Status: r.Status, Outcome: r.Outcome, Truncated: r.Truncated}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

// A call was aborted: its observers still run, with a context that has not ended.
func TestPostHooksAfterAbort(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	saw := messages.Status("")
	h := hook.Hook{Name: "h", After: func(ctx context.Context, _ hook.Call, d hook.Done) (hook.Change, error) {
		saw = d.Status
		return hook.Change{}, ctx.Err()
	}}
	_, err := run(t, ctx, Config{Hooks: hooks(t, h)}, write, &probe{run: func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		cancel(&wire.Stop{})
		return tool.Output{}, ctx.Err()
	}}, jobFor(write, `{"n":1}`))
	if err != nil || saw != messages.StatusOutcomeUnknown {
		t.Errorf("the observer saw %q, %v", saw, err)
	}
}

func TestHookMessages(t *testing.T) {
	var got []messages.HookMessageType
	cfg := Config{Hooks: hooks(t,
		hook.Hook{Name: "a", Class: hook.Observe, Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			return hook.Verdict{}, errors.New("x")
		}},
		hook.Hook{Name: "b", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			return hook.Verdict{Opinion: hook.Allow, Context: "c"}, nil
		}},
		hook.Hook{Name: "c", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) { return hook.Change{Stop: true}, nil }})}
	pipe := made(t, cfg, write, &probe{})
	tell := func(e messages.Event) { got = append(got, e.Hook.Type) }
	if _, err := pipe.Run(t.Context(), jobFor(write, `{"n":1}`), nil, nil, tell); err != nil {
		t.Fatal(err)
	}
	want := []messages.HookMessageType{
		messages.HookErrorInExecution, messages.HookPermissionDecision, messages.HookAdditionalContext, messages.HookStoppedContinuation,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
