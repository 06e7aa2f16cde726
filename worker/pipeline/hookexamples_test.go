package pipeline

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/exechook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

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
