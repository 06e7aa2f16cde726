package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A call ends before the execute phase: the tool does not start, and observers still run after
// the call.
func TestFailuresBeforeTheTool(t *testing.T) {
	for _, tt := range []struct {
		name   string
		input  string
		tool   string // default w
		hooks  []hook.Hook
		rules  permission.Rules
		check  error
		ctxEnd bool
		status messages.Status
		code   messages.Code
		says   string
	}{
		{name: "unknown", tool: "W", status: messages.StatusUnknownTool, code: messages.CodeUnknownTool, says: `"W"`},
		{name: "schema", input: `{"n":"x"}`, status: messages.StatusValidationError, code: messages.CodeInvalidArguments, says: "/n"},
		{name: "no object", input: `[]`, status: messages.StatusValidationError, code: messages.CodeInvalidArguments},
		{name: "no JSON", input: `{"n":`, status: messages.StatusValidationError, code: messages.CodeInvalidArguments},
		{name: "twice", input: `{"n":1,"n":2}`, status: messages.StatusValidationError, code: messages.CodeInvalidArguments, says: "twice"},
		{name: "number bomb", input: `{"n":1e999999}`, status: messages.StatusValidationError, code: messages.CodeInvalidArguments},
		{name: "too large", input: `{"n":` + strings.Repeat("1", 200) + `}`, status: messages.StatusValidationError, code: messages.CodeTooLarge, says: "100"},
		{name: "check", check: errors.New("not there"), status: messages.StatusSemanticError, code: messages.CodeInvalidArguments, says: "not there"},
		{name: "check with code", check: &messages.Error{Code: "path_outside_root", Message: "m", Retryable: true},
			status: messages.StatusSemanticError, code: "path_outside_root"},
		{name: "deny rule", rules: rules(t, "", "deny w(n=1)"),
			status: messages.StatusDenied, code: messages.CodePolicyDenied, says: "deny w(n=1) (platform)"},
		{name: "hook denies", hooks: []hook.Hook{verdict(hook.Verdict{Opinion: hook.Deny, Reason: "too late in the day"})},
			status: messages.StatusDenied, code: messages.CodeHookDenied, says: "too late in the day"},
		{name: "hook breaks", hooks: []hook.Hook{before("h", func(hook.Call) hook.Verdict { panic("SECRET") })},
			status: messages.StatusHookError, code: messages.CodeHookFailed, says: "hook h"},
		{name: "hook makes it invalid", hooks: []hook.Hook{verdict(hook.Verdict{Input: json.RawMessage(`{}`)})},
			status: messages.StatusValidationError, code: messages.CodeInvalidArguments, says: "hook (h) changed"},
		{name: "hook makes it denied", hooks: []hook.Hook{verdict(hook.Verdict{Input: json.RawMessage(`{"n":7}`)})},
			rules:  rules(t, "", "deny w(n=7)"),
			status: messages.StatusDenied, code: messages.CodePolicyDenied},
		{name: "ask", rules: rules(t, "", "ask w"), status: messages.StatusDenied, code: messages.CodeApprovalRequired, says: "ask w"},
		{name: "aborted", ctxEnd: true, status: messages.StatusAborted, code: messages.CodeAborted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &probe{check: func(context.Context, tool.Call) error { return tt.check }}
			observed := 0
			tt.hooks = append(tt.hooks, hook.Hook{Name: "observer", Class: hook.Observe, After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) {
				observed++
				return hook.Change{Output: json.RawMessage(`"replaced"`)}, nil
			}})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.ctxEnd {
				cancel(&wire.Stop{By: "the agent"})
			}
			job := jobFor(write, `{"n":1}`)
			if tt.input != "" {
				job.Input = json.RawMessage(tt.input)
			}
			if tt.tool != "" {
				job.Tool = tt.tool
			}
			r, err := run(t, ctx, Config{Hooks: hooks(t, tt.hooks...), Rules: tt.rules, MaxInput: 100}, write, p, job)
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != tt.status || r.Err == nil || r.Err.Code != tt.code || !strings.Contains(r.Err.Message, tt.says) || r.Err.Retryable {
				t.Errorf("got %s %+v, want %s %s saying %q", r.Status, r.Err, tt.status, tt.code, tt.says)
			}
			if n := p.effects.Load(); n != 0 || r.Attempt != 0 || r.Output != nil {
				t.Errorf("%d effects, attempt %d, output %s: the tool must not have run", n, r.Attempt, r.Output)
			}
			if (observed == 1) == tt.ctxEnd || observed > 1 { // an aborted call enters no phase, so no observer runs
				t.Errorf("observed %d times", observed)
			}
			if strings.Contains(string(rawjson.MustMarshal(r)), "SECRET") {
				t.Errorf("the secret is in the result: %+v", r.Err)
			}
		})
	}
}

func TestOrderOfPhases(t *testing.T) {
	var order []string
	note := func(s string) { order = append(order, s) }
	p := &probe{
		check: func(_ context.Context, c tool.Call) error { note("check " + string(c.Input)); return nil },
		run: func(_ context.Context, c tool.Call) (tool.Output, error) {
			note("run " + string(c.Input))
			return tool.Text("ok"), nil
		},
	}
	reg := &tool.Registry{}
	if err := reg.Add(write, p); err != nil {
		t.Fatal(err)
	}
	var observed []string
	pipe, err := New(Config{Registry: reg, Observe: func(phase string, d time.Duration) { observed = append(observed, phase) },
		Hooks: hooks(t, hook.Hook{Name: "h",
			Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
				note("before " + string(c.Input))
				return hook.Verdict{Input: json.RawMessage(`{"n":2}`)}, nil
			},
			After: func(_ context.Context, c hook.Call, d hook.Done) (hook.Change, error) {
				note("after " + string(c.Input) + " " + string(d.Status))
				return hook.Change{}, nil
			}})})
	if err != nil {
		t.Fatal(err)
	}
	job := jobFor(write, `{"n":1}`)
	claim := func(_ context.Context, f call.Frozen) (call.Grant, error) {
		note("claim " + string(f.Input))
		if want := messages.Digest([]byte(`{"n":2}`)); f.ArgsHash != want || f.OnCrash != messages.OnCrashOnce || f.Deadline <= 0 {
			t.Errorf("frozen %+v", f)
		}
		copy(f.Input, "XXXXXXX") // the claim gets its own copy
		return call.Grant{Attempt: 4, Fence: 9}, nil
	}
	r, err := pipe.Run(t.Context(), job, nil, claim, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`check {"n":1}`, `before {"n":1}`, `check {"n":2}`, `claim {"n":2}`, `run {"n":2}`, `after {"n":2} ok`}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{Validate, Semantic, PreHooks, Permissions, Execute, PostHooks}, observed); diff != "" {
		t.Errorf("phases observed (-want +got):\n%s", diff)
	}
	if r.Status != messages.StatusOK || r.Attempt != 4 || r.Index != 3 || r.CallID != "c1" || r.Kind != messages.KindWrite || r.Started.IsZero() || r.DurationMS <= 0 {
		t.Errorf("result %+v", r)
	}
	if string(job.Input) != `{"n":1}` {
		t.Errorf("the job's input became %s", job.Input)
	}
}

func TestWhatTheToolGets(t *testing.T) {
	var got tool.Call
	p := &probe{run: func(_ context.Context, c tool.Call) (tool.Output, error) { got = c; return tool.Output{}, nil }}
	job := jobFor(write, `{ "n": 9007199254740993 }`)
	if _, err := run(t, t.Context(), Config{}, write, p, job); err != nil {
		t.Fatal(err)
	}
	key := job.IdempotencyKey(messages.Digest([]byte(`{"n":9007199254740993}`)))
	if got.IdempotencyKey != key || got.Attempt != 1 || got.ID != "c1" || got.Index != 3 || string(got.Input) != string(job.Input) || got.Progress == nil {
		t.Errorf("the tool got %+v, want the key %s", got, key)
	}
}

func TestClaimRefused(t *testing.T) {
	p := &probe{}
	reg := &tool.Registry{}
	if err := reg.Add(write, p); err != nil {
		t.Fatal(err)
	}
	pipe, err := New(Config{Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	lost := errors.New("another has it")
	_, err = pipe.Run(t.Context(), jobFor(write, `{"n":1}`), nil, func(context.Context, call.Frozen) (call.Grant, error) { return call.Grant{}, lost }, nil)
	if !errors.Is(err, lost) || p.effects.Load() != 0 {
		t.Errorf("got %v and %d effects, want the claim's error and none", err, p.effects.Load())
	}
}

// A hook replaces a harmless input by one that must run alone: the call is handed back.
func TestHandBack(t *testing.T) {
	shell := schemas.Tool{Name: "sh", Kind: messages.KindWrite, ShellCommand: "command"}
	p := &probe{}
	job := jobFor(shell, `{"command":"ls"}`)
	job.ConcurrencySafe = true
	h := verdict(hook.Verdict{Input: json.RawMessage(`{"command":"rm x"}`)})
	_, err := run(t, t.Context(), Config{Hooks: hooks(t, h)}, shell, p, job)
	var back *call.HandBack
	if !errors.As(err, &back) || back.Reason == "" || back.ArgsHash != messages.Digest([]byte(`{"command":"rm x"}`)) || p.effects.Load() != 0 {
		t.Errorf("got %v (%+v) and %d effects, want a hand-back and none", err, back, p.effects.Load())
	}
	job.ConcurrencySafe = false
	if r, err := run(t, t.Context(), Config{Hooks: hooks(t, h)}, shell, p, job); err != nil || r.Status != messages.StatusOK {
		t.Errorf("planned to run alone: got %s, %v", r.Status, err)
	}
}

// Rules and hooks decide together, in the order deny, ask, allow, default. The allow of a hook
// lifts only a default that asks.
func TestPermissionMatrix(t *testing.T) {
	for _, effect := range []permission.Effect{permission.Deny, permission.Ask, permission.Allow, ""} {
		var short []string
		if effect != "" {
			short = []string{string(effect) + " w"}
		}
		for _, def := range []permission.Effect{permission.Allow, permission.Ask, permission.Deny} {
			for _, opinion := range []hook.Opinion{hook.None, hook.Allow, hook.Ask, hook.Deny} {
				decided := effect
				if effect == "" {
					decided = def
				}
				want := messages.Code("")
				switch {
				case effect == permission.Deny:
					want = messages.CodePolicyDenied
				case opinion == hook.Deny:
					want = messages.CodeHookDenied
				case decided == permission.Deny:
					want = messages.CodePolicyDenied
				case effect == permission.Ask, opinion == hook.Ask, decided == permission.Ask && opinion == hook.None:
					want = messages.CodeApprovalRequired
				}
				p, asked := &probe{}, 0
				h := before("h", func(hook.Call) hook.Verdict { asked++; return hook.Verdict{Opinion: opinion} })
				r, err := run(t, t.Context(), Config{Hooks: hooks(t, h), Rules: rules(t, def, short...)}, write, p, jobFor(write, `{"n":1}`))
				if err != nil {
					t.Fatal(err)
				}
				got := messages.Code("")
				if r.Err != nil {
					got = r.Err.Code
				}
				if got != want || (p.effects.Load() == 1) != (want == "") {
					t.Errorf("rule %q, default %q, hook %q: got %q and %d effects, want %q", effect, def, opinion, got, p.effects.Load(), want)
				}
				if (asked == 0) != (effect == permission.Deny) {
					t.Errorf("rule %q: the hook ran %d times", effect, asked)
				}
			}
		}
	}
}
