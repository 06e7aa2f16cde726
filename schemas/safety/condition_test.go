package safety

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func TestCondition(t *testing.T) {
	no := false
	on := func(when string) schemas.Tool {
		return schemas.Tool{Name: "deploy", Kind: messages.KindWrite, Pool: "ops", SafeWhen: when}
	}
	shell := schemas.Tool{Name: "sh", Kind: messages.KindWrite, ShellCommand: "command", SafeWhen: `!has(input.cwd) || input.cwd != "/"`}
	read := on(`input.dry_run`)
	read.Kind = messages.KindRead
	declared := on(`true`)
	declared.ConcurrencySafe = &no
	for _, tt := range []struct {
		tool   schemas.Tool
		input  string
		safe   bool
		reason string
	}{
		{on(`input.dry_run`), `{"dry_run":true}`, true, "concurrency_safe says so"},
		{on(`input.dry_run`), `{"dry_run":false}`, false, "concurrency_safe says that it runs alone"},
		{on(`input.dry_run`), `{}`, false, "concurrency_safe: a member that it reads is not there"},
		{on(`input.dry_run`), `{"dry_run":"hunter2"}`, false, "concurrency_safe: a value is of a type that it cannot work with"},
		{on(`int(input.n) > 0`), `{"n":"hunter2"}`, false, "concurrency_safe: it cannot be evaluated on this input"},
		{on(`input.dry_run`), `no object`, false, "concurrency_safe: the input has a number out of range, or is no JSON object within bounds"},
		{on(`input.`), `{}`, false, "concurrency_safe: it is no expression"},
		{on(`tool.name == "deploy" && tool.kind == "write" && tool.pool == "ops"`), `{}`, true, "concurrency_safe says so"},
		{on(`session.id == "" && principal.id == ""`), `{}`, true, "concurrency_safe says so"}, // refused when a tool is defined
		// The condition also decides about a read.
		{read, `{"dry_run":false}`, false, "concurrency_safe says that it runs alone"},
		{declared, `{}`, false, "declared not concurrency_safe"},
		// For a shell the command has to be read-only as well.
		{shell, `{"command":"ls"}`, true, "read-only shell command"},
		{shell, `{"command":"ls","cwd":"/"}`, false, "concurrency_safe says that it runs alone"},
		{shell, `{"command":"rm x"}`, false, "shell: rm can change things"},
	} {
		safe, reason := Classify(tt.tool, []byte(tt.input))
		if safe != tt.safe || reason != tt.reason || strings.Contains(reason, "hunter2") {
			t.Errorf("%s on %s: got %v, %q; want %v, %q", tt.tool.SafeWhen, tt.input, safe, reason, tt.safe, tt.reason)
		}
	}
}

func TestConditionsAreBoundedAndShared(t *testing.T) {
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range maxPrograms {
				tool := schemas.Tool{SafeWhen: fmt.Sprintf("input.n == %d", i*(w+1))}
				if safe, reason := Classify(tool, fmt.Appendf(nil, `{"n":%d}`, i*(w+1))); !safe {
					t.Errorf("%s: %s", tool.SafeWhen, reason)
				}
			}
		})
	}
	wg.Wait()
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if n := len(programs.all); n > maxPrograms {
		t.Errorf("%d programs are kept, want at most %d", n, maxPrograms)
	}
}
