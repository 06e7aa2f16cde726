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
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A hook changes the arguments: they go through the validate and semantic phases again, and an
// error there names the hook.
func TestChangedInputIsCheckedAgain(t *testing.T) {
	p := &probe{check: func(_ context.Context, c tool.Call) error {
		if strings.Contains(string(c.Input), "13") {
			return errors.New("unlucky")
		}
		return nil
	}}
	for input, want := range map[string]messages.Status{`{"n":1.5}`: messages.StatusValidationError, `{"n":13}`: messages.StatusSemanticError, `{}`: messages.StatusValidationError} {
		h := program(t, "fixer", hook.Gate, "before", specific(`"updatedInput":`+input))
		quiet := verdict(hook.Verdict{})
		r, err := run(t, t.Context(), Config{Hooks: hooks(t, h, quiet)}, write, p, jobFor(write, `{"n":1}`))
		if err != nil || r.Status != want || !strings.Contains(r.Err.Message, "After a hook (fixer) changed the arguments") || p.effects.Load() != 0 {
			t.Errorf("%s: got %s %v, %v, want %s that names the hook, and no effect", input, r.Status, r.Err, err, want)
		}
	}
}

// A hook overwrites the bytes that it got: the tool, the next hook and the result are not
// affected, because each hook gets a copy.
func TestHooksGetCopies(t *testing.T) {
	scribble := func(b []byte) {
		for i := range b {
			b[i] = 'X'
		}
	}
	h := hook.Hook{
		Name: "a",
		Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			scribble(c.Input)
			return hook.Verdict{}, nil
		},
		After: func(_ context.Context, c hook.Call, d hook.Done) (hook.Change, error) {
			scribble(c.Input)
			scribble(d.Outcome.Output)
			return hook.Change{}, nil
		},
	}
	var saw []string
	next := hook.Hook{
		Name: "b",
		Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			saw = append(saw, string(c.Input))
			return hook.Verdict{}, nil
		},
		After: func(_ context.Context, c hook.Call, d hook.Done) (hook.Change, error) {
			saw = append(saw, string(c.Input), string(d.Outcome.Output))
			return hook.Change{}, nil
		},
	}
	r, err := run(t, t.Context(), Config{Hooks: hooks(t, h, next)}, write, &probe{}, jobFor(write, `{"n":1}`))
	if err != nil || string(r.Output) != `{"n":1}` {
		t.Errorf("got %s %s, %v", r.Status, r.Output, err)
	}
	if diff := cmp.Diff([]string{`{"n":1}`, `{"n":1}`, `{"n":1}`}, saw); diff != "" {
		t.Errorf("the next hook saw (-want +got):\n%s", diff)
	}
}

// Hooks run in the order of their priority, then of their name. Each gets what the hook before
// it returned, before the tool as well as after it.
func TestPriorities(t *testing.T) {
	var order []string
	add := func(name string, priority int) hook.Hook {
		return hook.Hook{
			Name: name, Priority: priority,
			Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
				order = append(order, "before "+name+" "+string(c.Input))
				return hook.Verdict{Input: json.RawMessage(`{"n":` + strings.Repeat("1", len(order)) + `}`)}, nil
			},
			After: func(_ context.Context, _ hook.Call, d hook.Done) (hook.Change, error) {
				order = append(order, "after "+name+" "+string(d.Outcome.Output))
				return hook.Change{Output: rawjson.Quote(name)}, nil
			},
		}
	}
	r, err := run(t, t.Context(), Config{Hooks: hooks(t, add("c", 5), add("b", 5), add("z", -1))}, write, &probe{}, jobFor(write, `{"n":0}`))
	if err != nil || string(r.Output) != `"c"` || r.Hooks.Count != 6 {
		t.Errorf("got %s %+v, %v, want the last hook's output and 6 hooks", r.Output, r.Hooks, err)
	}
	want := []string{`before z {"n":0}`, `before b {"n":1}`, `before c {"n":11}`, `after z {"n":111}`, `after b "z"`, `after c "b"`}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// The input of a call is frozen: no hook before the tool runs again. The messages and the
// context that hooks gave earlier are still in the result.
func TestFrozenInputMeetsNoHookTwice(t *testing.T) {
	asked := 0
	h := hook.Hook{
		Name: "h",
		Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			asked++
			return hook.Verdict{Opinion: hook.Deny}, nil
		},
		After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) {
			return hook.Change{Context: "after"}, nil
		},
	}
	said := []messages.HookMessage{{Type: messages.HookPermissionDecision, Hook: "old", Opinion: "allow", Text: "fine"}}
	prior := &wire.CallRecord{
		State: wire.Released, ArgsHash: messages.Digest([]byte(`{"n":2}`)), Input: json.RawMessage(`{"n":2}`),
		Hooks: &messages.Hooks{Count: 1, Messages: said, Stop: "old", StopReason: "enough", Opinion: "allow", By: "old", Reason: "fine", Context: []string{"before"}},
	}
	var claimed call.Frozen
	var events int
	r, err := made(t, Config{Hooks: hooks(t, h)}, write, &probe{}).Run(t.Context(), jobFor(write, `{"n":1}`), prior,
		func(_ context.Context, f call.Frozen) (call.Grant, error) {
			claimed = f
			return call.Grant{Attempt: 2}, nil
		},
		func(e messages.Event) {
			if e.Type == messages.EventHook {
				events++
			}
		})
	if err != nil || r.Status != messages.StatusOK || asked != 0 {
		t.Fatalf("got %s %v, %v, and the hook was asked %d times", r.Status, r.Err, err, asked)
	}
	want := messages.Outcome{Content: []messages.Block{{Type: "text", Text: `{"n":2}`}, {Type: "text", Text: "before\nafter"}}}
	if diff := cmp.Diff(want, r.Outcome); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	after := messages.HookMessage{Type: messages.HookAdditionalContext, Hook: "h", Text: "after"}
	if diff := cmp.Diff(&messages.Hooks{Count: 2, Messages: append(said, after), Stop: "old", StopReason: "enough"}, r.Hooks); diff != "" {
		t.Errorf("hooks of the result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(prior.Hooks, claimed.Hooks); diff != "" {
		t.Errorf("hooks of the claim (-want +got):\n%s", diff)
	}
	if events != 1 {
		t.Errorf("%d events of hooks, want one: an earlier attempt sent the others", events)
	}
	if r, err := made(t, Config{Hooks: hooks(t, h)}, write, &probe{}).Run(t.Context(), jobFor(write, `{"n":1}`), &wire.CallRecord{State: wire.Claimed}, nil, nil); err != nil || r.Status != messages.StatusDenied || asked != 1 {
		t.Errorf("a record without a frozen input: got %s, %v, and the hook was asked %d times", r.Status, err, asked)
	}
}

// A hook is stopped together with its call: the call ends as aborted, and the failure of the
// hook is not counted.
func TestHookIsCutOffWithItsCall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	h := hook.Hook{Name: "h", Before: func(ctx context.Context, _ hook.Call) (hook.Verdict, error) {
		cancel(&wire.Stop{})
		<-ctx.Done()
		return hook.Verdict{}, ctx.Err()
	}}
	cfg := Config{Hooks: hooks(t, h), HookFailed: func(string, hook.Class) { t.Error("it is counted as a failure") }}
	r, err := run(t, ctx, cfg, write, &probe{}, jobFor(write, `{"n":1}`))
	want := &messages.Hooks{Count: 1, Messages: []messages.HookMessage{{Type: messages.HookCancelled, Hook: "h"}}}
	if err != nil || r.Status != messages.StatusAborted || !cmp.Equal(want, r.Hooks) {
		t.Errorf("got %s %+v, %v, want aborted and %+v", r.Status, r.Hooks, err, want)
	}
}
