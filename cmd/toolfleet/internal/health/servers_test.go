package health

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// The doctor names the programs and services that bring tools and do not run, and the tools of
// others that are not served.
func TestDoctorNamesServersThatAreDown(t *testing.T) {
	e := &examination{ctx: t.Context()}
	e.servers([]wire.Presence{
		{Worker: "w1", Servers: []wire.ToolServer{{Name: "files", Tools: 3}, {Name: "issues", Down: "exit status 1\x1b[31m", Printed: "line 1\nno token", Advice: "Write it."}}},
		{Worker: "w2", Servers: []wire.ToolServer{{Name: "files", Tools: 2, Refused: []string{`"big": its schema has more than 262144 bytes`}}}},
	})
	want := []string{
		"fail workers: server issues of worker w1 does not run: exit status 1�[31m. It printed: line 1 | no token",
		`warn workers: server files: a tool is not served: "big": its schema has more`,
	}
	if len(e.findings) != len(want) {
		t.Fatalf("got %+v", e.findings)
	}
	for i, f := range e.findings {
		if line := f.Status + " " + f.Check + ": " + f.Detail; !strings.HasPrefix(line, want[i]) || strings.Contains(line, "\x1b") {
			t.Errorf("got %q, want %q", line, want[i])
		}
	}
	if next := e.findings[0].Next; !strings.HasPrefix(next, "Write it. The worker tries again") {
		t.Errorf("what to do: %q", next)
	}
}

// The doctor names the hooks that could not run: a gate refuses calls, so it fails.
func TestDoctorNamesHooksThatCouldNotRun(t *testing.T) {
	e := &examination{ctx: t.Context()}
	e.hooks([]wire.Presence{{Worker: "w1", Hooks: []wire.FailingHook{
		{Name: "guard\x1b[31m", Class: "gate", Why: "it did not start"}, {Name: "log", Class: "observe", Why: "it could not be reached"},
	}}, {Worker: "w2"}})
	want := []string{
		"fail hooks: hook guard\uFFFD[31m of worker w1 could not run the last time (it did not start); it is a gate",
		"warn hooks: hook log of worker w1 could not run the last time (it could not be reached); it is an observer",
	}
	if len(e.findings) != len(want) {
		t.Fatalf("got %+v", e.findings)
	}
	for i, f := range e.findings {
		if line := f.Status + " " + f.Check + ": " + f.Detail; !strings.HasPrefix(line, want[i]) {
			t.Errorf("got %q, want %q", line, want[i])
		}
	}
}
