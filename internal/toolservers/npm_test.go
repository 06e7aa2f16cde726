package toolservers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The servers that everybody tries first. MCP_SERVERS names a folder with their programs, if PATH
// has them not.
func TestServersFromNPM(t *testing.T) {
	t.Setenv("PATH", os.Getenv("MCP_SERVERS")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MEMORY_FILE_PATH", filepath.Join(dir, "memory.json"))
	var packages []string
	if bin := os.Getenv("MCP_SERVERS"); bin != "" {
		packages = []string{filepath.Dir(bin)} // what is in it are links to its neighbours
	}
	var servers []schemas.Server
	for name, args := range map[string][]string{"filesystem": {dir}, "memory": nil, "everything": nil} {
		program := "mcp-server-" + name
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s: npm i -g @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory @modelcontextprotocol/server-everything", program)
		}
		servers = append(servers, schemas.Server{
			Name: name, Prefix: name + "__", Command: append([]string{program}, args...), Processes: 1, Trusted: true, Env: []string{"MEMORY_FILE_PATH"},
			Override: map[string]schemas.Override{"trigger-long-running-operation": {Kind: messages.KindWrite}},
			Sandbox:  schemas.Sandbox{State: []string{dir}, Read: packages},
		})
	}
	var reg tool.Registry
	opened, err := toolservers.Open(t.Context(), &reg, servers, toolservers.Place{Dir: dir, Box: worker.Place{Dir: dir}.ServerBox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	for _, s := range opened.States() {
		if s.Down != "" || s.Tools == 0 || len(s.Refused) > 0 {
			t.Errorf("got %+v", s)
		}
	}
	file := filepath.Join(dir, "a.txt")
	for _, tt := range []struct {
		name  string
		input any
		says  string
	}{
		{"filesystem__write_file", map[string]string{"path": file, "content": "hé"}, "Successfully wrote"},
		{"filesystem__read_text_file", map[string]string{"path": file}, "hé"},
		{"filesystem__read_text_file", map[string]string{"path": "/etc/passwd"}, "Access denied"},
		{"memory__create_entities", map[string]any{"entities": []any{map[string]any{"name": "n", "entityType": "t", "observations": []string{"o"}}}}, `"n"`},
		{"memory__read_graph", map[string]any{}, `"n"`},
		{"everything__echo", map[string]string{"message": "hé"}, "Echo: hé"},
		{"everything__get-sum", map[string]int{"a": 2, "b": 3}, "5"},
		{"everything__get-tiny-image", map[string]any{}, `"image"`},
	} {
		found, ok := reg.Lookup(tt.name)
		if !ok {
			t.Errorf("%s is not served", tt.name)
			continue
		}
		input, _ := json.Marshal(tt.input)
		out, err := found.Runner.Run(t.Context(), tool.Call{Input: input, IdempotencyKey: "k"})
		answer, _ := json.Marshal(out.Content)
		got := string(out.Value) + string(answer)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.says) {
			t.Errorf("%s: got %.200s, want %q", tt.name, got, tt.says)
		}
	}
	killedInAWrite(t, &reg)
}

// killedInAWrite ends a server as kill -9 does, while it runs a write.
func killedInAWrite(t *testing.T, reg *tool.Registry) {
	t.Helper()
	slow, _ := reg.Lookup("everything__trigger-long-running-operation")
	input := json.RawMessage(`{"duration": 60, "steps": 600}`)
	killed := 0
	_, err := slow.Runner.Run(t.Context(), tool.Call{Input: input, IdempotencyKey: "k", Progress: func(messages.Progress) {
		if killed == 0 {
			killed = killChildren("server-everything")
		}
	}})
	var own *messages.Error
	if !errors.As(err, &own) || own.Code != messages.CodeOutcomeUnknown || killed == 0 {
		t.Errorf("after %d kills: got %v, want an unknown outcome", killed, err)
	}
	echo, _ := reg.Lookup("everything__echo")
	if out, err := echo.Runner.Run(t.Context(), tool.Call{Input: json.RawMessage(`{"message":"again"}`)}); err != nil || string(out.Value) != `"Echo: again"` {
		t.Errorf("after the kill: got %s, %v", out.Value, err)
	}
}

// killChildren kills the processes that this one has started with these words, and returns how
// many.
func killChildren(words string) (killed int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			pid, err := strconv.Atoi(child)
			if err == nil && strings.Contains(string(line), words) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed
}
