package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// effectsProgram as the first argument makes this test program a long-lived program, which keeps
// its ledger in the folder of the second.
const effectsProgram = "serve-effects"

// serveEffects serves a tool of each kind. A run writes a line into the file runs, and its effect
// is a line in the file effects. The first run of a call is killed where its input says.
func serveEffects(dir string) {
	server := mcp.NewServer(&mcp.Implementation{Name: "effects", Version: "1"}, nil)
	for name, meta := range map[string]mcp.Meta{
		"look":  {"toolfleet/kind": "read"},
		"once":  {"toolfleet/kind": "write"},
		"again": {"toolfleet/on_crash": "idempotent"},
		"asked": {"toolfleet/on_crash": "checkable"},
	} {
		about := &mcp.Tool{Name: name, Meta: meta, InputSchema: json.RawMessage(`{"type":"object"}`)}
		server.AddTool(about, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return runEffect(dir, name, r), nil
		})
	}
	_ = server.Run(context.Background(), &mcp.StdioTransport{})
}

func runEffect(dir, name string, r *mcp.CallToolRequest) *mcp.CallToolResult {
	var input struct{ Die string }
	_ = json.Unmarshal(r.Params.Arguments, &input)
	key := fmt.Sprint(r.Params.Meta["toolfleet/key"])
	applied := strings.Contains(effectsFile(dir, "effects"), key)
	answer := func(text string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	}
	if r.Params.Meta["toolfleet/probe"] == true {
		if applied {
			return answer("done")
		}
		return answer("not_done")
	}
	first := !strings.Contains(effectsFile(dir, "runs"), key)
	noteEffect(dir, "runs", key)
	die := func(where string) {
		if first && input.Die == where {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	die("before")
	if name != "look" && (name != "again" || !applied) {
		noteEffect(dir, "effects", key)
	}
	die("after")
	return answer("ran")
}

// noteEffect adds a line to a file of the ledger.
func noteEffect(dir, file, line string) {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(line + "\n")
		_ = f.Close()
	}
}

func effectsFile(dir, file string) string {
	raw, _ := os.ReadFile(filepath.Join(dir, file))
	return string(raw)
}

// A program is killed in the middle of a read, and of a write of each on_crash, before its effect
// and after it. No effect happens twice, and the result says what is true.
func TestAProgramIsKilled(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	servers, err := toolservers.Open(t.Context(), f.tools, []schemas.Server{
		{Name: "effects", Command: []string{program, effectsProgram, dir}, Program: true, Processes: 2,
			Override: map[string]schemas.Override{"look": {TimeoutMS: 60_000}, "once": {TimeoutMS: 60_000}, "again": {TimeoutMS: 60_000}, "asked": {TimeoutMS: 60_000}},
			Sandbox:  schemas.Sandbox{State: []string{dir}, Read: []string{program}}},
	}, toolservers.Place{Logger: f.log, Box: worker.Place{Dir: dir}.ServerBox})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	f.worker(worker.Config{Name: "w"})
	f.coordinator(coordinator.Config{})
	for _, tt := range []struct {
		tool, die     string
		status        messages.Status
		runs, effects int
	}{
		{"look", "before", messages.StatusOK, 2, 0},
		{"once", "before", messages.StatusOutcomeUnknown, 1, 0},
		{"once", "after", messages.StatusOutcomeUnknown, 1, 1},
		{"again", "before", messages.StatusOK, 2, 1},
		{"again", "after", messages.StatusOK, 2, 1},
		{"asked", "before", messages.StatusOK, 2, 1},
		{"asked", "after", messages.StatusOK, 1, 1},
		{"once", "", messages.StatusOK, 1, 1},
	} {
		t.Run(tt.tool+" "+tt.die, func(t *testing.T) {
			runs, effects := effectsFile(dir, "runs"), effectsFile(dir, "effects")
			b := canonical("s", "b-"+tt.tool+tt.die, call{tt.tool, `{"die":"` + tt.die + `"}`})
			f.submit(b)
			reply := f.reply(b, time.Minute)
			if got := reply.Results[0].Status; got != tt.status {
				t.Errorf("the status is %s, want %s: %s", got, tt.status, reply.Reinjection)
			}
			if got := strings.Count(effectsFile(dir, "runs")[len(runs):], "\n"); got != tt.runs {
				t.Errorf("%d runs, want %d", got, tt.runs)
			}
			if got := strings.Count(effectsFile(dir, "effects")[len(effects):], "\n"); got != tt.effects {
				t.Errorf("%d effects, want %d", got, tt.effects)
			}
		})
	}
}
