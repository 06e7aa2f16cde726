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
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// probe is a tool that counts its effects and does what a test tells it to.
type probe struct {
	effects atomic.Int32
	run     tool.Func
	check   func(ctx context.Context, call tool.Call) error
	applied func(ctx context.Context) (tool.Probed, error)
	asked   atomic.Int32
}

func (p *probe) Probe(ctx context.Context, _ tool.Call) (tool.Probed, error) {
	p.asked.Add(1)
	if p.applied == nil {
		return tool.Probed{}, errors.New("cannot be asked")
	}
	return p.applied(ctx)
}

func (p *probe) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	p.effects.Add(1)
	if p.run == nil {
		return tool.Output{Value: call.Input}, nil
	}
	return p.run(ctx, call)
}

func (p *probe) Check(ctx context.Context, call tool.Call) error {
	if p.check == nil {
		return nil
	}
	return p.check(ctx, call)
}

// write is the definition of the tool that most tests call: {"n": integer}, at most once.
var write = schemas.Tool{
	Name: "w", Kind: messages.KindWrite, TimeoutMS: 5000,
	InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`),
}

func with(t schemas.Tool, change func(*schemas.Tool)) schemas.Tool {
	change(&t)
	return t
}

func jobFor(t schemas.Tool, input string) wire.Job {
	return wire.Job{Session: "s", Batch: "b", Index: 3, CallID: "c1", Tool: t.Name, ToolDigest: digestOf(t), Kind: t.Kind, Input: json.RawMessage(input)}
}

func digestOf(t schemas.Tool) string {
	whole, _ := t.WithDefaults() // the registry reports an error
	return whole.Digest
}

// run takes a call of the tool through a pipeline made of cfg.
func run(t testing.TB, ctx context.Context, cfg Config, promise schemas.Tool, p *probe, job wire.Job) (messages.Result, error) {
	t.Helper()
	job.ToolDigest = digestOf(promise)
	return made(t, cfg, promise, p).Run(ctx, job, nil, nil, nil)
}

// made returns a pipeline of cfg that serves one tool. In a test its calls are traced, and every
// span has to be ended.
func made(t testing.TB, cfg Config, promise schemas.Tool, p *probe) *Pipeline {
	t.Helper()
	if _, test := t.(*testing.T); test && cfg.Tracer == nil {
		cfg.Tracer, _ = traced(t)
	}
	cfg.Registry = &tool.Registry{}
	if err := cfg.Registry.Add(promise, p); err != nil {
		t.Fatal(err)
	}
	pipe, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pipe
}

func hooks(t testing.TB, list ...hook.Hook) hook.Set {
	t.Helper()
	set, err := hook.NewSet(list...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// rules makes a policy of short forms such as "deny w(n=1)".
func rules(t testing.TB, def permission.Effect, short ...string) permission.Rules {
	t.Helper()
	layer := permission.Layer{Source: "platform"}
	for _, line := range short {
		effect, form, _ := strings.Cut(line, " ")
		rule, err := schemas.ParseRule(form)
		if err != nil {
			t.Fatal(err)
		}
		list := map[string]*[]schemas.RuleEntry{"deny": &layer.Rules.Deny, "ask": &layer.Rules.Ask, "allow": &layer.Rules.Allow}[effect]
		*list = append(*list, rule)
	}
	return policy(t, permission.Config{Default: def, Version: "v1", Layers: []permission.Layer{layer}})
}

func policy(t testing.TB, cfg permission.Config) permission.Rules {
	t.Helper()
	r, err := permission.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func before(name string, f func(hook.Call) hook.Verdict) hook.Hook {
	return hook.Hook{Name: name, Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) { return f(c), nil }}
}

func verdict(v hook.Verdict) hook.Hook { return before("h", func(hook.Call) hook.Verdict { return v }) }

// Each phase from one to four can end a call. The tool then never starts, and observers still see
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
			if (observed == 1) == tt.ctxEnd || observed > 1 { // an aborted call enters no phase
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

// If a hook replaces a harmless input by one that must run alone, the call is handed back.
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

// The precedence is deny, ask, allow, default, for rules and hooks alike. A hook's allow lifts only
// a default that asks.
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

// Every way in which a running tool can be cut short, for every kind.
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
		cause     error // given after 1 s
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

// When no time is left after the hooks, the tool is not started, and the model may safely ask
// again.
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

// The model reads the error of a tool that was stopped at the end of its time. Progress that a tool
// reports after it was left behind is dropped.
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

// A panic in any phase gives a result: with the code internal, or outcome_unknown if a write had
// started. The panic's text is in neither the result nor the log. The log has the stack.
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

// A call that was aborted still reaches its observers, with a live context.
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
