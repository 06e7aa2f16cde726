// Package programtest is the contract test for long-lived programs, in any language and with any
// library. The program under test gets a folder as its last argument, and has these tools:
//
//	echo        kind read. Returns its arguments as JSON text
//	fail        fails with tooltest.Failure
//	busy        fails with tooltest.Failure, and says that a later run may succeed
//	wait        reports progress, and then ends only when its call is cancelled
//	report      reports tooltest.Reports, one after the other
//	describe    returns the members of _meta as tooltest.Description does
//	apply       makes the file in the folder that is named after toolfleet/key
//	checkable   like apply, on_crash checkable; asked with toolfleet/probe it looks for the file
//	pay         like apply, with both checks of its own, by the member amount of its arguments:
//	            semantic_check refuses what is not positive, with the code bad_amount;
//	            check_permissions denies over 1000 with the reason "over every limit", asks over
//	            100 with the reason "a large amount", and allows the rest
//	large       returns tooltest.FloodSize bytes of x and tooltest.FloodTail
//	noise       prints words to the standard output, and returns ok
//	die         ends the process
//	pid         kind read. Returns the id of the process
package programtest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/mcptool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// Run runs the contract test on a program. command does not include the folder.
func Run(t *testing.T, command ...string) {
	p := program(command)
	tooltest.Run(t, tooltest.Runner{
		Fail: p.tool("fail"), FailForNow: p.tool("busy"), Wait: p.tool("wait"), Report: p.tool("report"),
		Describe: p.tool("describe"), Apply: p.tool("apply"), Checkable: p.tool("checkable"),
		Cannot: map[string]string{
			"Echo":    "a program reads numbers as its language does: Unicode",
			"Flood":   "a program's output is not cut: Large",
			"BadText": "the protocol is JSON",
			"Crash":   "what is known after a crash depends on the tool: Death",
		},
	})
	t.Run("Large", p.large)
	t.Run("Unicode", p.unicode)
	t.Run("Noise", p.noise)
	t.Run("Checks", p.checks)
	t.Run("Death", p.death)
	t.Run("Cancel", p.cancel)
}

type program []string

func (p program) open(t *testing.T, dir string) *mcptool.Server {
	t.Helper()
	server := schemas.Server{Name: "program", Command: append(append([]string{}, p...), dir), Program: true, Processes: 1}
	opened, err := mcptool.Open(t.Context(), mcptool.Config{Server: server, CancelGrace: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened
}

func find(t *testing.T, s *mcptool.Server, name string) tool.Runner {
	t.Helper()
	for _, served := range s.Tools() {
		if served.Name == name {
			return served.Runner
		}
	}
	t.Fatalf("the program has no tool %s; refused are %v", name, s.Refused())
	return nil
}

func (p program) tool(name string) tooltest.Make {
	return func(t *testing.T, dir string) (tool.Runner, string) { return find(t, p.open(t, dir), name), `{"n":1}` }
}

func call(input string) tool.Call {
	return tool.Call{Tenant: "t", Session: "s", Batch: "b", ID: "c", Attempt: 1, IdempotencyKey: "k", Fence: 1, Input: json.RawMessage(input)}
}

// run runs a tool that must succeed, and returns its output.
func run(t *testing.T, s *mcptool.Server, name, input string) string {
	t.Helper()
	out, err := find(t, s, name).Run(t.Context(), call(input))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out.Value)
}

func (p program) large(t *testing.T) {
	got := run(t, p.open(t, t.TempDir()), "large", `{}`)
	if len(got) != tooltest.FloodSize+len(tooltest.FloodTail)+2 || !strings.HasSuffix(got, tooltest.FloodTail+`"`) {
		t.Errorf("got %d bytes: %.60q", len(got), got)
	}
}

func (p program) unicode(t *testing.T) {
	const input = `{"é":"日本 \ud83d\ude00 \u0000 \u2028 \\u0041"}`
	got := run(t, p.open(t, t.TempDir()), "echo", input)
	var was, is map[string]string
	if json.Unmarshal([]byte(input), &was) != nil || json.Unmarshal([]byte(got), &is) != nil || is["é"] != was["é"] {
		t.Errorf("got %s, want %s", got, input)
	}
}

// checks checks that the program is asked about a call before it runs, and that the questions
// change nothing.
func (p program) checks(t *testing.T) {
	dir := t.TempDir()
	pay := find(t, p.open(t, dir), "pay")
	checker, isChecker := pay.(tool.Checker)
	permitter, isPermitter := pay.(tool.Permitter)
	if !isChecker || !isPermitter {
		t.Fatal("the program says nothing of the checks of its tool pay")
	}
	for _, tt := range []struct {
		input, code string
		permit      tool.Permit
	}{
		{`{"amount":0}`, "bad_amount", tool.Permit{}},
		{`{"amount":100}`, "", tool.Permit{Opinion: "allow"}},
		{`{"amount":101}`, "", tool.Permit{Opinion: "ask", Reason: "a large amount"}},
		{`{"amount":1001}`, "", tool.Permit{Opinion: "deny", Reason: "over every limit"}},
	} {
		err := checker.Check(t.Context(), call(tt.input))
		var own *messages.Error
		if errors.As(err, &own); err != nil && own == nil || own != nil && string(own.Code) != tt.code || err == nil && tt.code != "" {
			t.Errorf("%s: semantic_check: got %v, want the code %q", tt.input, err, tt.code)
		}
		if tt.code != "" {
			continue // a call that is refused is not asked about again
		}
		if got, err := permitter.Permit(t.Context(), call(tt.input)); err != nil || got != tt.permit {
			t.Errorf("%s: check_permissions: got %+v, %v, want %+v", tt.input, got, err, tt.permit)
		}
	}
	if tooltest.Applied(dir, "k") {
		t.Error("a question was taken for a call")
	}
	if _, err := pay.Run(t.Context(), call(`{"amount":100}`)); err != nil || !tooltest.Applied(dir, "k") {
		t.Errorf("the call itself: %v, applied %v", err, tooltest.Applied(dir, "k"))
	}
}

// noise checks that other words on the standard output do no harm.
func (p program) noise(t *testing.T) {
	s := p.open(t, t.TempDir())
	for range 2 {
		if got := run(t, s, "noise", `{}`); got != `"ok"` {
			t.Errorf("got %s", got)
		}
	}
}

// death checks that a write has an unknown outcome if its process dies, and that the next call
// gets a new process.
func (p program) death(t *testing.T) {
	s := p.open(t, t.TempDir())
	before := run(t, s, "pid", `{}`)
	_, err := find(t, s, "die").Run(t.Context(), call(`{}`))
	var own *messages.Error
	if !errors.As(err, &own) || own.Code != messages.CodeOutcomeUnknown {
		t.Errorf("got %v", err)
	}
	if after := run(t, s, "pid", `{}`); after == before {
		t.Error("the process lives")
	}
}

// cancel checks that a call ends when it is cancelled, so that its process need not be killed.
func (p program) cancel(t *testing.T) {
	s := p.open(t, t.TempDir())
	before := run(t, s, "pid", `{}`)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := call(`{}`)
	c.Progress = func(messages.Progress) { cancel(stop) }
	if _, err := find(t, s, "wait").Run(ctx, c); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if after := run(t, s, "pid", `{}`); after != before {
		t.Error("the process was killed: it did not answer the call that was cancelled")
	}
}
