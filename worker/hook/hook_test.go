package hook

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

var aCall = Call{Tool: "mcp__mail", Kind: messages.KindWrite, Input: json.RawMessage(`{"n":1}`)}

func before(name string, priority int, v Verdict) Hook {
	return Hook{Name: name, Priority: priority, Before: func(context.Context, Call) (Verdict, error) { return v, nil }}
}

func mustSet(t testing.TB, hooks ...Hook) Set {
	t.Helper()
	s, err := NewSet(hooks...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func types(list []messages.HookMessage) (types []messages.HookMessageType) {
	for _, m := range list {
		types = append(types, m.Type)
	}
	return types
}

func TestOrderAndMatch(t *testing.T) {
	var ran []string
	note := func(name, match string, priority int) Hook {
		return Hook{Name: name, Match: match, Priority: priority, Before: func(context.Context, Call) (Verdict, error) {
			ran = append(ran, name)
			return Verdict{}, nil
		}}
	}
	mustSet(t, note("d", "", 5), note("b", "mcp__*", 0), note("a", "mcp__mail", 0), note("c", "mail", 1), note("z", "", -1)).Before(t.Context(), aCall, nil)
	if diff := cmp.Diff([]string{"z", "a", "b", "d"}, ran); diff != "" {
		t.Errorf("hooks that ran (-want +got):\n%s", diff)
	}
}

func TestNewSetNamesEveryProblem(t *testing.T) {
	ok := func(context.Context, Call) (Verdict, error) { return Verdict{}, nil }
	_, err := NewSet(Hook{Before: ok}, Hook{Name: "a", Match: "[", Before: ok}, Hook{Name: "a", Before: ok},
		Hook{Name: "b"}, Hook{Name: "c", Class: "x", Budget: -1, Before: ok})
	for _, want := range []string{`hook "": its name is empty`, `hook "a": match "["`, `hook "a": its name is empty or taken`,
		`hook "b": it has neither`, `hook "c": class "x"`, `hook "c": its budget`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestOpinions(t *testing.T) {
	say := func(name string, o Opinion) Hook {
		return before(name, 0, Verdict{Opinion: o, Reason: name + " says so"})
	}
	for _, tt := range []struct {
		name  string
		hooks []Hook
		want  Opinion
		by    string
		ran   int // hooks that gave an opinion
	}{
		{"nobody", nil, None, "", 0},
		{"no opinion", []Hook{say("a", None)}, None, "", 0},
		{"allow", []Hook{say("a", None), say("b", Allow), say("c", Allow)}, Allow, "b", 2},
		{"ask over allow", []Hook{say("a", Allow), say("b", Ask), say("c", Allow)}, Ask, "b", 3},
		{"deny over all, and it ends the list", []Hook{say("a", Ask), say("b", Deny), say("c", Allow)}, Deny, "b", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustSet(t, tt.hooks...).Before(t.Context(), aCall, nil)
			if r.Opinion != tt.want || r.By != tt.by || len(r.Messages) != tt.ran || (tt.by != "" && r.Reason != tt.by+" says so") {
				t.Errorf("got %q by %q (%q) with %d messages, want %q by %q with %d", r.Opinion, r.By, r.Reason, len(r.Messages), tt.want, tt.by, tt.ran)
			}
		})
	}
}

func TestPatchesFollowOneAnother(t *testing.T) {
	saw := ""
	set := mustSet(t,
		before("a", 0, Verdict{Input: json.RawMessage(`{"n":2}`)}),
		Hook{Name: "b", Before: func(_ context.Context, c Call) (Verdict, error) {
			saw = string(c.Input)
			copy(c.Input, "XXXXXXX") // the hook has its own copy
			return Verdict{}, nil
		}},
		before("c", 0, Verdict{Context: "note", Stop: true, StopReason: "enough"}),
		before("d", 0, Verdict{Stop: true, StopReason: "later"}),
	)
	call := aCall
	call.Input = json.RawMessage(`{"n":1}`)
	r := set.Before(t.Context(), call, nil)
	if saw != `{"n":2}` || string(r.Input) != `{"n":2}` || string(call.Input) != `{"n":1}` {
		t.Errorf("b saw %s, result %s, caller's %s", saw, r.Input, call.Input)
	}
	if diff := cmp.Diff([]string{"a"}, r.PatchedBy); diff != "" {
		t.Error(diff)
	}
	if r.Stop != "c" || r.StopReason != "enough" {
		t.Errorf("stopped by %q (%q), want c", r.Stop, r.StopReason)
	}
	if diff := cmp.Diff([]messages.HookMessageType{messages.HookAdditionalContext, messages.HookStoppedContinuation, messages.HookStoppedContinuation}, types(r.Messages)); diff != "" {
		t.Error(diff)
	}
}

func TestCouldNotRun(t *testing.T) {
	for name, f := range map[string]func(context.Context, Call) (Verdict, error){
		"error":       func(context.Context, Call) (Verdict, error) { return Verdict{Opinion: Allow}, errors.New("no") },
		"panic":       func(context.Context, Call) (Verdict, error) { panic("SECRET") },
		"goexit":      func(context.Context, Call) (Verdict, error) { runtime.Goexit(); return Verdict{}, nil },
		"bad opinion": func(context.Context, Call) (Verdict, error) { return Verdict{Opinion: "maybe"}, nil },
		"slow":        func(ctx context.Context, _ Call) (Verdict, error) { <-ctx.Done(); return Verdict{}, ctx.Err() },
		"deaf":        func(context.Context, Call) (Verdict, error) { time.Sleep(time.Hour); return Verdict{}, nil },
	} {
		for _, class := range []Class{Gate, Observe} {
			t.Run(name+" "+string(class), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					set := mustSet(t, Hook{Name: "bad", Class: class, Budget: time.Second, Before: f}, before("good", 1, Verdict{Opinion: Allow}))
					defer time.Sleep(2 * time.Hour) // of simulated time: the hook that ignores its context ends
					began := time.Now()
					r := set.Before(t.Context(), aCall, nil)
					if took := time.Since(began); took > time.Second {
						t.Errorf("took %v, over the budget", took)
					}
					if refused := r.Refused != nil; refused != (class == Gate) {
						t.Errorf("refused = %v for class %s", refused, class)
					}
					if went := r.Opinion == Allow; went != (class == Observe) {
						t.Errorf("the next hook ran = %v for class %s", went, class)
					}
					if len(r.Failures) != 1 || r.Failures[0].Hook != "bad" || r.Failures[0].Cancelled {
						t.Fatalf("failures %+v, want one by bad", r.Failures)
					}
					want := map[string]Cause{"error": Erred, "panic": Panicked, "goexit": Panicked, "bad opinion": BadAnswer, "slow": TooSlow, "deaf": TooSlow}[name]
					if got := r.Failures[0]; got.Cause != want || want == TooSlow && got.Err.Error() != "it took longer than its budget of 1s" {
						t.Errorf("cause %q, err %v, want %q", got.Cause, got.Err, want)
					}
					if strings.Contains(r.Failures[0].Error(), "SECRET") || r.Messages[0].Type != messages.HookErrorInExecution {
						t.Errorf("failure %v, message %+v", r.Failures[0], r.Messages[0])
					}
				})
			})
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	set := mustSet(t, Hook{Name: "h", Before: func(ctx context.Context, _ Call) (Verdict, error) {
		cancel()
		<-ctx.Done()
		return Verdict{}, ctx.Err()
	}})
	r := set.Before(ctx, aCall, nil)
	if len(r.Failures) != 1 || !r.Failures[0].Cancelled || r.Messages[0].Type != messages.HookCancelled {
		t.Errorf("got %+v, want a cancelled hook", r)
	}
}

func TestAfter(t *testing.T) {
	var seen []string
	observe := func(name string, c Change) Hook {
		return Hook{Name: name, After: func(_ context.Context, _ Call, d Done) (Change, error) {
			seen = append(seen, name+":"+string(d.Outcome.Output))
			for i := range d.Outcome.Output {
				d.Outcome.Output[i] = 'X'
			}
			if d.Outcome.Err != nil {
				d.Outcome.Err.Message = "X"
			}
			return c, nil
		}}
	}
	set := mustSet(t,
		observe("a", Change{Output: json.RawMessage(`"new"`)}),
		Hook{Name: "b", After: func(context.Context, Call, Done) (Change, error) { panic("x") }},
		observe("c", Change{Context: "note", Stop: true}))

	out := json.RawMessage(`"old"`)
	r := set.After(t.Context(), aCall, Done{Status: messages.StatusOK, Outcome: messages.Outcome{Output: out}}, nil)
	if diff := cmp.Diff([]string{`a:"old"`, `c:"new"`}, seen); diff != "" || string(out) != `"old"` {
		t.Errorf("observed (-want +got), outcome %s:\n%s", out, diff)
	}
	if string(r.Output) != `"new"` || r.Refused != nil || len(r.Failures) != 1 || r.Stop != "c" {
		t.Errorf("got %+v", r)
	}

	seen = nil
	failed := messages.Failed(messages.CodeTimeout, "late")
	r = set.After(t.Context(), aCall, Done{Status: messages.StatusTimeout, Outcome: failed}, nil)
	if r.Output != nil || r.PatchedBy != nil || len(seen) != 2 || failed.Err.Message != "late" {
		t.Errorf("after a failed call: got %+v, seen %q, error %v", r, seen, failed.Err)
	}
}

// A set starts the processes that its hooks keep running, and stops them when the set ends. A
// failed start counts as a failure before the first call, until a call succeeds.
func TestWhatHooksKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started, stopped atomic.Int32
		keep := func(err error) []Kept {
			return []Kept{{
				Start: func(context.Context) error { started.Add(1); return err },
				Stop:  func() { stopped.Add(1) },
			}}
		}
		good, bad := before("good", 0, Verdict{}), before("bad", 1, Verdict{})
		good.Keep, bad.Keep = keep(nil), keep(errors.New("gone"))
		set := mustSet(t, good, bad)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			set.Run(ctx)
		}()
		synctest.Wait()
		if failing := set.Failing(); len(failing) != 1 || failing[0].Hook != "bad" || failing[0].Cause != NotStarted || started.Load() != 2 || stopped.Load() != 0 {
			t.Errorf("failing are %v, %d are started, %d stopped", failing, started.Load(), stopped.Load())
		}
		if set.Before(t.Context(), aCall, nil); len(set.Failing()) > 0 {
			t.Errorf("failing after a call are %v", set.Failing())
		}
		cancel()
		<-ended
		if stopped.Load() != 2 {
			t.Errorf("%d are stopped, want 2", stopped.Load())
		}
	})
}

// A hook counts as failing as long as its newest run had an error. A run that was cut off with
// its call changes nothing.
func TestFailing(t *testing.T) {
	fails := true
	set := mustSet(t, Hook{Name: "h", Class: Observe, Before: func(ctx context.Context, _ Call) (Verdict, error) {
		if fails {
			return Verdict{}, &Fault{Unreachable, errors.New("no route")}
		}
		return Verdict{}, ctx.Err()
	}})
	set.Before(t.Context(), aCall, nil)
	if failing := set.Failing(); len(failing) != 1 || failing[0].Cause != Unreachable || failing[0].Class != Observe {
		t.Errorf("failing are %v", failing)
	}
	fails = false
	set.Before(t.Context(), aCall, nil)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	set.Before(cancelled, aCall, nil)
	if failing := set.Failing(); len(failing) > 0 {
		t.Errorf("failing are %v", failing)
	}
}
