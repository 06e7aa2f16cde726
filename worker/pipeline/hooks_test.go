package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/toolfleet/toolfleet/worker/hook/exechook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// program makes a hook of this shell script, before or after the tool.
func program(t testing.TB, name string, class hook.Class, when, body string) hook.Hook {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A loaded machine needs this budget.
	cfg := exechook.Config{Name: name, Class: class, Dir: dir, Budget: time.Minute}
	if when == "before" {
		cfg.Before = []string{"./" + name}
	} else {
		cfg.After = []string{"./" + name}
	}
	return opened(t, cfg)
}

func opened(t testing.TB, cfg exechook.Config) hook.Hook {
	t.Helper()
	h, err := exechook.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func specific(members string) string {
	return `echo '{"hookSpecificOutput":{` + members + `}}'`
}

// One hook per outcome, in Go and as a program: both mean the same.
func TestHookOutcomes(t *testing.T) {
	said := func(kind messages.HookMessageType, opinion, text string) messages.HookMessage {
		return messages.HookMessage{Type: kind, Hook: "h", Opinion: opinion, Text: text}
	}
	ran := messages.Outcome{Output: json.RawMessage(`{"n":1}`)}
	for _, tt := range []struct {
		name    string
		verdict hook.Verdict
		script  string
		status  messages.Status
		code    messages.Code
		outcome messages.Outcome // of a call that ran
		says    []messages.HookMessage
	}{
		{"no opinion", hook.Verdict{}, `exit 0`, messages.StatusOK, "", ran, nil},
		{"allow", hook.Verdict{Opinion: hook.Allow, Reason: "r"}, specific(`"permissionDecision":"allow","permissionDecisionReason":"r"`), messages.StatusOK, "", ran,
			[]messages.HookMessage{said(messages.HookPermissionDecision, "allow", "r")}},
		{"deny", hook.Verdict{Opinion: hook.Deny, Reason: "r"}, `echo r >&2; exit 2`, messages.StatusDenied, messages.CodeHookDenied, messages.Outcome{},
			[]messages.HookMessage{said(messages.HookPermissionDecision, "deny", "r")}},
		{"ask", hook.Verdict{Opinion: hook.Ask, Reason: "r"}, specific(`"permissionDecision":"ask","permissionDecisionReason":"r"`), messages.StatusDenied, messages.CodeApprovalRequired, messages.Outcome{},
			[]messages.HookMessage{said(messages.HookPermissionDecision, "ask", "r")}},
		{"changed input", hook.Verdict{Input: json.RawMessage(`{"n":2}`)}, specific(`"updatedInput":{"n":2}`), messages.StatusOK, "", messages.Outcome{Output: json.RawMessage(`{"n":2}`)}, nil},
		{"invalid input", hook.Verdict{Input: json.RawMessage(`{"n":"x"}`)}, specific(`"updatedInput":{"n":"x"}`), messages.StatusValidationError, messages.CodeInvalidArguments, messages.Outcome{}, nil},
		{"stop", hook.Verdict{Stop: true, StopReason: "r"}, `echo '{"continue":false,"stopReason":"r"}'`, messages.StatusOK, "", ran,
			[]messages.HookMessage{said(messages.HookStoppedContinuation, "", "r")}},
		{"context", hook.Verdict{Context: "note"}, specific(`"additionalContext":"note"`), messages.StatusOK, "",
			messages.Outcome{Content: []messages.Block{{Type: "text", Text: `{"n":1}`}, {Type: "text", Text: "note"}}},
			[]messages.HookMessage{said(messages.HookAdditionalContext, "", "note")}},
	} {
		for form, h := range map[string]hook.Hook{"go": verdict(tt.verdict), "program": program(t, "h", hook.Gate, "before", tt.script)} {
			t.Run(tt.name+" "+form, func(t *testing.T) {
				p := &probe{}
				var told []messages.HookMessage
				r, err := made(t, Config{Hooks: hooks(t, h)}, write, p).Run(t.Context(), jobFor(write, `{"n":1}`), nil, nil, func(e messages.Event) {
					if e.Type == messages.EventHook {
						told = append(told, *e.Hook)
					}
				})
				if err != nil || r.Status != tt.status {
					t.Fatalf("got %s %v, %v, want %s", r.Status, r.Err, err, tt.status)
				}
				if ran := p.effects.Load() == 1; ran != (tt.code == "") {
					t.Errorf("the tool ran = %v", ran)
				}
				switch {
				case tt.code == "":
					if diff := cmp.Diff(tt.outcome, r.Outcome); diff != "" {
						t.Errorf("outcome (-want +got):\n%s", diff)
					}
				case r.Err == nil || r.Err.Code != tt.code || !strings.Contains(r.Err.Message, "hook"):
					t.Errorf("got %+v, want %s and a word about the hook", r.Err, tt.code)
				}
				if tt.verdict.Opinion == hook.Deny || tt.verdict.Opinion == hook.Ask {
					if p := r.Permission; p == nil || p.Effect != string(tt.verdict.Opinion) || p.Source != "hook" || p.Rule != "h" {
						t.Errorf("permission %+v, want what the hook h said", p)
					}
				}
				want := &messages.Hooks{Count: 1, Messages: tt.says}
				if tt.verdict.Stop {
					want.Stop, want.StopReason = "h", "r"
				}
				if diff := cmp.Diff(want, r.Hooks); diff != "" {
					t.Errorf("hooks of the result (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.says, told); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Every way in which a hook cannot run. A gate refuses the call and the tool is not started. An
// observer is skipped and counted.
func TestHooksThatCouldNotRun(t *testing.T) {
	missing := func(cfg exechook.Config) func(*testing.T) hook.Hook {
		return func(t *testing.T) hook.Hook {
			cfg.Dir = t.TempDir()
			if err := os.WriteFile(filepath.Join(cfg.Dir, "plain"), []byte("#!/bin/sh\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return opened(t, cfg)
		}
	}
	script := func(body string) func(*testing.T) hook.Hook {
		return func(t *testing.T) hook.Hook { return program(t, "h", "", "before", body) }
	}
	golang := func(f func(context.Context) error) func(*testing.T) hook.Hook {
		return func(*testing.T) hook.Hook {
			return hook.Hook{Name: "h", Budget: 20 * time.Millisecond, Before: func(ctx context.Context, _ hook.Call) (hook.Verdict, error) {
				return hook.Verdict{Opinion: hook.Allow}, f(ctx)
			}}
		}
	}
	over := make(chan struct{})
	defer close(over)
	for name, open := range map[string]func(*testing.T) hook.Hook{
		"missing file":           missing(exechook.Config{Name: "h", Before: []string{"./gone"}}),
		"missing in PATH":        missing(exechook.Config{Name: "h", Before: []string{"no-such-program-anywhere"}}),
		"not executable":         missing(exechook.Config{Name: "h", Before: []string{"./plain"}}),
		"a folder":               missing(exechook.Config{Name: "h", Before: []string{"/"}}),
		"garbage":                script(`echo 'allow it'`),
		"an answer and more":     script(`echo '{"decision":"approve"} ok'`),
		"keys twice":             script(`echo '{"decision":"block","decision":"approve"}'`),
		"no object":              script(`echo '["approve"]'`),
		"another call's":         script(`echo '{"tool_use_id":"c2","decision":"approve"}'`),
		"exit 127":               script(`exit 127`),
		"exit 126":               script(`exit 126`),
		"exit 1":                 script(`echo '{"decision":"approve"}'; exit 1`),
		"exit 2 without a word":  script(`echo '{"decision":"approve"}'; exit 2`),
		"killed":                 script(`kill -9 $$`),
		"Go: hangs, deaf to all": golang(func(context.Context) error { <-over; return nil }),
		"Go: errs":               golang(func(context.Context) error { return errors.New("SECRET") }),
		"Go: panics":             golang(func(context.Context) error { panic("SECRET") }),
		"hangs": func(t *testing.T) hook.Hook {
			h := program(t, "h", "", "before", `sleep 60 & sleep 60`)
			h.Budget = 50 * time.Millisecond
			return h
		},
	} {
		for _, class := range []hook.Class{hook.Gate, hook.Observe} {
			t.Run(name+" "+string(class), func(t *testing.T) {
				h := open(t)
				h.Class = class
				p := &probe{}
				var counted []string
				cfg := Config{Hooks: hooks(t, h), HookFailed: func(name string, class hook.Class) { counted = append(counted, name+" "+string(class)) }}
				r, err := run(t, t.Context(), cfg, write, p, jobFor(write, `{"n":1}`))
				if err != nil {
					t.Fatal(err)
				}
				if class == hook.Observe {
					if r.Status != messages.StatusOK || p.effects.Load() != 1 {
						t.Errorf("got %s %v with %d effects, want ok and one", r.Status, r.Err, p.effects.Load())
					}
				} else if r.Status != messages.StatusHookError || r.Err.Code != messages.CodeHookFailed || r.Err.Retryable || !strings.Contains(r.Err.Message, "hook h could not run") || p.effects.Load() != 0 {
					t.Errorf("got %s %+v with %d effects, want hook_failed and none", r.Status, r.Err, p.effects.Load())
				} else if r.Permission == nil || r.Permission.Effect != "deny" || r.Permission.Source != "hook" || r.Permission.Rule != "h" {
					t.Errorf("permission %+v, want a deny of the hook h", r.Permission)
				}
				if diff := cmp.Diff([]string{"h " + string(class)}, counted); diff != "" {
					t.Errorf("counted (-want +got):\n%s", diff)
				}
				want := &messages.Hooks{Count: 1, Messages: []messages.HookMessage{{Type: messages.HookErrorInExecution, Hook: "h"}}}
				if diff := cmp.Diff(want, r.Hooks); diff != "" {
					t.Errorf("hooks of the result (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// An interpreter without its script may end in any way, often with 2 and words on stderr. A gate
// refuses the call all the same, and an observer stops no call.
func TestInterpreterWithoutItsScript(t *testing.T) {
	for _, interpreter := range []string{"sh", "bash", "python3", "node", "perl"} {
		if _, err := exec.LookPath(interpreter); err != nil {
			continue
		}
		for class, want := range map[hook.Class]int32{hook.Gate: 0, hook.Observe: 1} {
			h := opened(t, exechook.Config{Name: "h", Class: class, Budget: time.Minute, Before: []string{interpreter, "./gone"}, Dir: t.TempDir()})
			p, counted := &probe{}, 0
			r, err := run(t, t.Context(), Config{Hooks: hooks(t, h), HookFailed: func(string, hook.Class) { counted++ }}, write, p, jobFor(write, `{"n":1}`))
			if err != nil || p.effects.Load() != want || class == hook.Observe && counted != 1 {
				t.Errorf("%s as %s: got %s %v, %v, with %d effects and %d failures counted", interpreter, class, r.Status, r.Err, err, p.effects.Load(), counted)
			}
		}
	}
}

// Arguments that a hook has changed go through phases one and two again, and the error names the
// hook.
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

// If a hook program replaces a harmless command by one that must run alone, the call is handed
// back.
func TestProgramMakesItStricter(t *testing.T) {
	shell := schemas.Tool{Name: "sh", Kind: messages.KindWrite, ShellCommand: "command"}
	seen := false
	watch := hook.Hook{Name: "watch", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) {
		seen = true
		return hook.Change{}, nil
	}}
	h := program(t, "h", hook.Gate, "before", `grep -q '"command":"ls"' && `+specific(`"updatedInput":{"command":"rm x"}`))
	p := &probe{}
	job := jobFor(shell, `{"command":"ls"}`)
	job.ConcurrencySafe = true
	_, err := run(t, t.Context(), Config{Hooks: hooks(t, h, watch)}, shell, p, job)
	var back *call.HandBack
	if !errors.As(err, &back) || back.ArgsHash != messages.Digest([]byte(`{"command":"rm x"}`)) || p.effects.Load() != 0 {
		t.Errorf("got %v (%+v) and %d effects, want a hand-back and none", err, back, p.effects.Load())
	}
	if seen {
		t.Error("a post-hook ran, though the call has no end here")
	}
}

// A hook gets a copy. Its changes reach neither the tool, nor the next hook, nor the result.
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

// Hooks run by priority, then by name, each on what the previous one left, before and after the
// tool.
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

// After the tool a hook can change what the model reads, but it cannot make a success a failure.
func TestProgramsAfterTheTool(t *testing.T) {
	text := func(s ...string) (o messages.Outcome) {
		for _, s := range s {
			o.Content = append(o.Content, messages.Block{Type: "text", Text: s})
		}
		return o
	}
	broken := &messages.Hooks{Count: 1, Messages: []messages.HookMessage{{Type: messages.HookErrorInExecution, Hook: "h"}}}
	told := func(text string) *messages.Hooks {
		return &messages.Hooks{Count: 1, Messages: []messages.HookMessage{{Type: messages.HookAdditionalContext, Hook: "h", Text: text}}}
	}
	hangs := program(t, "h", hook.Gate, "after", `sleep 60`)
	hangs.Budget = 50 * time.Millisecond
	script := func(body string) hook.Hook { return program(t, "h", hook.Gate, "after", body) }
	for _, tt := range []struct {
		name string
		h    hook.Hook
		want messages.Outcome
		did  *messages.Hooks
	}{
		{"nothing", script(`exit 0`), messages.Text("done"), &messages.Hooks{Count: 1}},
		{"replaces", script(specific(`"updatedToolOutput":{"card":"hidden"}`)), messages.Outcome{Output: json.RawMessage(`{"card":"hidden"}`)}, &messages.Hooks{Count: 1}},
		{"adds context", script(specific(`"additionalContext":"note"`)), text("done", "note"), told("note")},
		{"blocks", script(`echo '{"decision":"block","reason":"lint"}'`), text("done", "lint"), told("lint")},
		{"exit 2", script(`echo lint >&2; exit 2`), text("done", "lint"), told("lint")},
		{"stops", script(`echo '{"continue":false,"stopReason":"enough"}'`), messages.Text("done"), &messages.Hooks{
			Count: 1, Stop: "h", StopReason: "enough", Messages: []messages.HookMessage{{Type: messages.HookStoppedContinuation, Hook: "h", Text: "enough"}}}},
		{"exit 1", script(`exit 1`), messages.Text("done"), broken},
		{"garbage", script(`echo done`), messages.Text("done"), broken},
		{"missing", opened(t, exechook.Config{Name: "h", After: []string{"./gone"}, Dir: t.TempDir()}), messages.Text("done"), broken},
		{"hangs", hangs, messages.Text("done"), broken},
		{"panics", hook.Hook{Name: "h", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) { panic("SECRET") }}, messages.Text("done"), broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := run(t, t.Context(), Config{Hooks: hooks(t, tt.h)}, write, &probe{run: gives(tool.Text("done"))}, jobFor(write, `{"n":1}`))
			if err != nil || r.Status != messages.StatusOK {
				t.Fatalf("got %s %v, %v, want ok", r.Status, r.Err, err)
			}
			if diff := cmp.Diff(tt.want, r.Outcome); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.did, r.Hooks); diff != "" {
				t.Errorf("hooks of the result (-want +got):\n%s", diff)
			}
		})
	}
}

// Hooks are not asked again about a frozen input. What they said before still counts.
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

// If a hook is stopped together with its call, the call ends as aborted, and no failure of the hook
// is counted.
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

// example loads a hook of examples/hooks. It skips the test if the program that the hook needs is
// missing.
func example(t *testing.T, file, needs string, cfg exechook.Config) hook.Hook {
	t.Helper()
	if _, err := exec.LookPath(needs); err != nil {
		t.Skipf("no %s: examples/hooks/%s is not run", needs, file)
	}
	cfg.Dir, cfg.Budget = "../../examples/hooks", time.Minute
	return opened(t, cfg)
}

func TestExampleGuard(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash: examples/hooks/guard.sh is not run")
	}
	set := hooks(t, example(t, "guard.sh", "jq", exechook.Config{Name: "guard", Match: "Bash", Before: []string{"./guard.sh"}}))
	shell := schemas.Tool{Name: "Bash", Kind: messages.KindWrite, ShellCommand: "command"}
	for command, want := range map[string]messages.Code{
		`ls -l`:              "",
		`cat .env`:           messages.CodeHookDenied,
		`tar c ~/.ssh`:       messages.CodeHookDenied,
		`cat prod.env.md`:    "",
		`cd x; sudo rm -r y`: messages.CodeApprovalRequired,
		`man sudo`:           "",
	} {
		p := &probe{}
		r, err := run(t, t.Context(), Config{Hooks: set}, shell, p, jobFor(shell, string(rawjson.MustMarshal(map[string]string{"command": command}))))
		got := messages.Code("")
		if r.Err != nil {
			got = r.Err.Code
		}
		if err != nil || got != want || (p.effects.Load() == 1) != (want == "") {
			t.Errorf("%s: got %s %v with %d effects, %v, want %q", command, r.Status, r.Err, p.effects.Load(), err, want)
		}
		if want == messages.CodeHookDenied && !strings.Contains(r.Err.Message, "Secrets are off limits") {
			t.Errorf("%s: the model is told %q", command, r.Err.Message)
		}
	}
}

func TestExampleTidy(t *testing.T) {
	set := hooks(t, example(t, "tidy.py", "python3", exechook.Config{Name: "tidy", Before: []string{"./tidy.py"}, After: []string{"./tidy.py"}}))
	lookup := schemas.Tool{Name: "lookup", Kind: messages.KindRead}
	for _, tt := range []struct {
		input, output string
		sent          string
		want          messages.Outcome
	}{
		{`{"email":"ann@example.com"}`, `{"total":1.10}`, `{"email":"ann@example.com"}`, messages.Outcome{Output: json.RawMessage(`{"total":1.10}`)}},
		{`{"email":" Ann@Example.com","n":1}`, `"paid with 4111 1111 1111 1111"`, `{"email":"ann@example.com","n":1}`, messages.Outcome{Content: []messages.Block{
			{Type: "text", Text: "paid with [card number]"}, {Type: "text", Text: "1 card number(s) were taken out of this output."}}}},
	} {
		sent := ""
		p := &probe{run: func(_ context.Context, c tool.Call) (tool.Output, error) {
			canonical, err := rawjson.Canonical(c.Input)
			sent = string(canonical)
			return tool.Output{Value: json.RawMessage(tt.output)}, err
		}}
		r, err := run(t, t.Context(), Config{Hooks: set}, lookup, p, jobFor(lookup, tt.input))
		if err != nil || r.Status != messages.StatusOK || sent != tt.sent {
			t.Errorf("%s: got %s %v, %v, the tool got %s, want %s", tt.input, r.Status, r.Err, err, sent, tt.sent)
		}
		if diff := cmp.Diff(tt.want, r.Outcome); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.input, diff)
		}
	}
}
