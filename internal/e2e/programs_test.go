package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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

// effectsProgram is the first argument that makes this test binary a long-lived program with
// tools. The second argument is the folder of its ledger.
const effectsProgram = "serve-effects"

// serveEffects serves a tool of each kind. The tools do the same as effectsScript.
func serveEffects(dir string) {
	server := mcp.NewServer(&mcp.Implementation{Name: "effects", Version: "1"}, nil)
	no := false
	for name, meta := range map[string]mcp.Meta{
		"look":  {"toolfleet/kind": "read"},
		"once":  {"toolfleet/kind": "write"},
		"again": {"toolfleet/on_crash": "idempotent"},
		"asked": {"toolfleet/on_crash": "checkable"},
	} {
		about := &mcp.Tool{
			Name: name, Meta: meta, InputSchema: json.RawMessage(`{"type":"object"}`),
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: name == "look", IdempotentHint: name == "again", DestructiveHint: &no},
		}
		server.AddTool(about, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: runEffect(dir, name, r)}}}, nil
		})
	}
	_ = server.Run(context.Background(), &mcp.StdioTransport{})
}

// killInput is the input of a tool. The first run of the tool is killed before its effect,
// after it, or (for "at") MS milliseconds after the start.
type killInput struct {
	ID  string `json:"id"`
	Die string `json:"die"`
	MS  int    `json:"ms"`
}

// runEffect does one run of a tool: it adds a line to the file runs, and its effect is a line
// in the file effects. Each line has the id of the input and the idempotency key.
func runEffect(dir, name string, r *mcp.CallToolRequest) string {
	var input killInput
	_ = json.Unmarshal(r.Params.Arguments, &input)
	line := input.ID + " " + fmt.Sprint(r.Params.Meta["toolfleet/key"])
	applied := strings.Contains(effectsFile(dir, "effects"), line)
	if r.Params.Meta["toolfleet/probe"] == true {
		if applied {
			return "done"
		}
		return "not_done"
	}
	first := !strings.Contains(effectsFile(dir, "runs"), line)
	noteEffect(dir, "runs", line)
	die := func(where string) {
		if first && input.Die == where {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if input.Die == "at" {
		killer := time.AfterFunc(time.Duration(input.MS)*time.Millisecond, func() { die("at") })
		defer killer.Stop() // a later call must not be killed
		time.Sleep(2 * time.Millisecond)
	}
	die("before")
	if name != "look" && (name != "again" || !applied) {
		noteEffect(dir, "effects", line)
	}
	die("after")
	if input.Die == "at" {
		time.Sleep(2 * time.Millisecond)
	}
	return "ran"
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

// effectsScript is runEffect in sh. Its arguments are the folder of the ledger and the name of
// the tool.
const effectsScript = `
input=$(cat) id=${input#*\"id\":\"} ms=${input#*\"ms\":}
id=${id%%\"*} ms=${ms%%\}*}
line="$id $TOOLFLEET_IDEMPOTENCY_KEY"
known() { grep -qxF "$line" "$1/$2" 2>/dev/null; }
first=yes; known "$1" runs && first=
echo "$line" >>"$1/runs"
die() { case $first$input in yes*\"die\":\"$1\"*) kill -9 $$ ;; esac; }
case $first$input in yes*\"die\":\"at\"*) (sleep "0.00$ms"; kill -9 $$) >/dev/null 2>&1 & sleep 0.002 ;; esac
die before
case $2 in
look) ;;
again) known "$1" effects || echo "$line" >>"$1/effects" ;;
*) echo "$line" >>"$1/effects" ;;
esac
die after
case $input in *\"die\":\"at\"*) sleep 0.002 ;; esac
echo ran
`

// probeScript is the probe of effectsScript's tool.
const probeScript = `
input=$(cat) id=${input#*\"id\":\"}
if grep -qxF "${id%%\"*} $TOOLFLEET_IDEMPOTENCY_KEY" "$1/effects" 2>/dev/null; then echo done; else echo not_done; fi
`

// effectsTools returns tools whose names say how they run and what they promise, such as
// exec_once, sh_look, program_again and mcp_look.
func effectsTools(t *testing.T, dir string) (schemas.ToolsFile, []schemas.Server) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "effect.sh"), []byte("#!/bin/sh\n"+effectsScript), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "tools:\n"
	for name, promise := range map[string]string{
		"look": "kind: read", "once": "on_crash: once", "again": "on_crash: idempotent",
		"asked": "on_crash: checkable, check: {command: [/bin/sh, -c, " + quoted(probeScript) + ", sh, " + quoted(dir) + "], timeout: 60s}",
	} {
		for how, command := range map[string]string{"exec": "./effect.sh", "sh": "/bin/sh, -c, " + quoted(effectsScript) + ", sh"} {
			text += fmt.Sprintf("- {name: %s_%s, %s, timeout: 60s, input_schema: {type: object}, sandbox: {state: [%q]}, exec: {command: [%s, %q, %s]}}\n",
				how, name, promise, dir, command, dir, name)
		}
	}
	file, err := schemas.ParseToolsFile("tools.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	patient := map[string]schemas.Override{"look": {TimeoutMS: 60_000}, "once": {TimeoutMS: 60_000}, "again": {TimeoutMS: 60_000}}
	program := schemas.Server{
		Name: "program", Prefix: "program_", Command: []string{self, effectsProgram, dir}, Program: true, Processes: 2, Override: patient,
		Sandbox: schemas.Sandbox{State: []string{dir}, Read: []string{self}},
	}
	server := program
	server.Name, server.Prefix, server.Program, server.Trusted = "mcp", "mcp_", false, true
	server.Tools = []string{"look", "once", "again"} // the server mcp has no probe
	return file, []schemas.Server{program, server}
}

// quoted returns a value as JSON, which is also YAML.
func quoted(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}

// The process of a tool is killed with SIGKILL: before the effect of a read or a write, after
// it, or at a random moment. The process is a program that is started for each call, a shell,
// a long-lived program, or an MCP server. No effect happens twice, and no result says anything
// false.
func TestToolProcessesAreKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	file, entries := effectsTools(t, dir)
	place := worker.Place{Dir: dir}
	if err := worker.OpenTools(f.tools, file, place); err != nil {
		t.Fatal(err)
	}
	servers, err := toolservers.Open(t.Context(), f.tools, entries, toolservers.Place{Logger: f.log, Box: place.ServerBox})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	f.worker(worker.Config{Name: "w"})
	f.coordinator(coordinator.Config{})
	// kill runs a call whose process is killed. It returns the call's result, and how often
	// the call was run and applied.
	kill := func(name string, input killInput) (messages.Result, int, int) {
		b := canonical("s-"+input.ID, "b-"+input.ID, call{name, quoted(input)})
		reply, err := f.client.Run(t.Context(), b)
		if err != nil || len(reply.Results) != 1 {
			t.Errorf("%s %+v: %v", name, input, err)
			return messages.Result{}, 0, 0
		}
		count := func(file string) int { return strings.Count(effectsFile(dir, file), input.ID+" ") }
		return reply.Results[0], count("runs"), count("effects")
	}
	hows := []string{"exec", "sh", "program", "mcp"}
	t.Run("points", func(t *testing.T) {
		exactly := hows
		if testing.Short() { // the others behave like one of these two
			exactly = []string{"exec", "program"}
		}
		for _, how := range exactly {
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
				if how == "mcp" && tt.tool == "asked" {
					continue
				}
				name := how + "_" + tt.tool
				t.Run(name+" "+tt.die, func(t *testing.T) {
					t.Parallel()
					got, runs, effects := kill(name, killInput{ID: name + tt.die, Die: tt.die})
					if got.Status != tt.status || runs != tt.runs || effects != tt.effects {
						t.Errorf("got %s (%+v) with %d runs and %d effects, want %s with %d and %d", got.Status, got.Err, runs, effects, tt.status, tt.runs, tt.effects)
					}
				})
			}
		}
	})
	t.Run("any moment", func(t *testing.T) {
		var next atomic.Int64
		var killing sync.WaitGroup
		defer killing.Wait()
		for range 6 {
			killing.Go(func() {
				for n := next.Add(1); int(n) <= repeats(24, 1000) && !t.Failed(); n = next.Add(1) {
					promise := []string{"look", "once", "again", "asked"}[rand.IntN(4)]
					how := hows[rand.IntN(len(hows))]
					if how == "mcp" && promise == "asked" {
						promise = "once"
					}
					input := killInput{ID: fmt.Sprintf("n%d", n), Die: "at", MS: rand.IntN(8)}
					got, runs, effects := kill(how+"_"+promise, input)
					if why := brokenGuarantee(promise, got.Status, runs, effects); why != "" {
						t.Errorf("%s_%s %+v: %s: %s (%+v) with %d runs and %d effects", how, promise, input, why, got.Status, got.Err, runs, effects)
					}
				}
			})
		}
	})
}

// brokenGuarantee returns how a result breaks a guarantee, or "". A read may fail, and a write
// may have an unknown outcome even if it may run twice: one kill can also hit the next call of
// the same process, so that a call loses two processes.
func brokenGuarantee(promise string, status messages.Status, runs, effects int) string {
	switch {
	case promise == "look" && (effects > 0 || status != messages.StatusOK && status != messages.StatusError):
		return "a read fails, or changes something"
	case promise == "look":
	case effects > 1:
		return "it is applied twice"
	case status == messages.StatusOK && effects != 1:
		return "it is said to be done"
	case promise == "once" && runs > 1:
		return "it runs again"
	case status != messages.StatusOK && status != messages.StatusOutcomeUnknown:
		return "the status is wrong"
	}
	return ""
}
