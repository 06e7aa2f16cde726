package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A program has a check, which is asked about a call before it runs. If the check cannot be
// asked, the call is refused.
func TestChecks(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	checked := served(t, s, "checked")
	if checked.Results != schemas.ResultsReadable {
		t.Errorf("results are %q", checked.Results)
	}
	ask := func(check, answer string) (refused, permitted string) {
		call := newCall()
		call.Input, _ = json.Marshal(map[string]string{"check": check, "answer": answer})
		codeOf := func(err error) string {
			var own *messages.Error
			if errors.As(err, &own) {
				return string(own.Code)
			}
			return fmt.Sprint(err)
		}
		refused = codeOf(checked.Runner.(tool.Checker).Check(t.Context(), call))
		permit, err := checked.Runner.(tool.Permitter).Permit(t.Context(), call)
		if permitted = permit.Opinion + " " + permit.Reason; err != nil {
			permitted = codeOf(err)
		}
		return refused, permitted
	}
	for _, tt := range []struct{ check, answer, refused, permitted string }{
		{"semantic_check", "fine", "<nil>", "allow "},
		{"semantic_check", "error", "over_limit", "allow "},
		{"semantic_check", "die", "server_down", "allow "},
		{"check_permissions", "deny\nnot on\x1b[31m Sundays", "<nil>", "deny not on[31m Sundays"},
		{"check_permissions", "ask", "<nil>", "ask "},
		{"check_permissions", "maybe", "<nil>", "its answer is none of allow, ask and deny"},
		{"check_permissions", "error", "<nil>", "its answer is none of allow, ask and deny"},
		{"check_permissions", "die", "<nil>", "server_down"},
	} {
		if refused, permitted := ask(tt.check, tt.answer); refused != tt.refused || permitted != tt.permitted {
			t.Errorf("%s %q: got %q and %q, want %q and %q", tt.check, tt.answer, refused, permitted, tt.refused, tt.permitted)
		}
	}
	if _, has := served(t, s, "echo").Runner.(tool.Checker); has {
		t.Error("a tool without checks is asked")
	}
	if _, err := checksOf(map[string]any{"checks": "semantic"}); err == nil {
		t.Error("an unknown check is accepted")
	}
}

// A probe shares its process with reads, and a read that is cut off can end the process: the
// probe is asked again in a new process.
func TestAProbeThatLosesItsProcess(t *testing.T) {
	dir := t.TempDir()
	prober := served(t, open(t, testConfig(t, dir)), "checkable").Runner.(tool.Prober)
	if err := os.WriteFile(filepath.Join(dir, "die"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := prober.Probe(t.Context(), newCall()); err != nil || got.Applied {
		t.Errorf("got %+v, %v, want not_done", got, err)
	}
}

// A result can carry details, which are for user interfaces.
func TestDetails(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	call := newCall()
	call.Input = json.RawMessage(`{"Check":"<nil>","Answer":"a"}`)
	out, err := served(t, s, "checked").Runner.Run(t.Context(), call)
	if err != nil || string(out.Value) != `"a"` || string(out.Details) != `{"rows":7}` {
		t.Errorf("got %s with details %s, %v", out.Value, out.Details, err)
	}
}

// A write is aborted while it waits for a process: it has not begun, and its error says so.
func TestAnAbortedWriteThatWaits(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	busy, err := s.pool.acquire(t.Context(), "a", true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := served(t, s, "apply").Runner.Run(ctx, newCall())
		ended <- err
	}()
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ran")
	}
	_, err = s.acquire(ctx, message{tenant: "a", alone: true})
	if !errors.Is(err, tool.ErrNotStarted) {
		t.Errorf("got %v, want %v", err, tool.ErrNotStarted)
	}
	s.pool.release(busy)
}
