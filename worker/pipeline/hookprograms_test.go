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

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/exechook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// program returns a hook with this shell script as its program, before or after the tool.
func program(t testing.TB, name string, class hook.Class, when, body string) hook.Hook {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	// The budget is large because the machine may be busy.
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

// Each outcome of a hook has the same effect, whether the hook is Go code or a program.
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
		outcome messages.Outcome // of a call whose tool ran
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

// A hook cannot run, in each possible way: a gate refuses the call, and the tool is not
// started. An observer is skipped, and the failure is counted.
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

// The script of an interpreter is missing, and the interpreter exits in its own way, often
// with 2 and words on stderr: a gate refuses the call, and an observer stops no call.
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

// A hook program replaces a harmless command by one that must run alone: the call is handed
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

// A hook after the tool can change what the model reads. It cannot turn a success into a
// failure.
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
