package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/messages"
)

// serveNames is the first argument that makes this test binary an MCP server. The second
// argument is a file: each line names a tool of the server. The server notices when the file
// changes.
const serveNames = "serve-names"

func servesNames(file string) {
	server := mcp.NewServer(&mcp.Implementation{Name: "names", Version: "1"}, nil)
	known := map[string]bool{}
	look := func() {
		body, _ := os.ReadFile(file)
		for _, name := range strings.Fields(string(body)) {
			if known[name] {
				continue
			}
			known[name] = true
			about := &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}
			server.AddTool(about, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(name, " of ", os.Getpid())}}}, nil
			})
		}
	}
	look()
	go func() {
		for ; ; time.Sleep(10 * time.Millisecond) {
			look()
		}
	}()
	_ = server.Run(context.Background(), &mcp.StdioTransport{})
}

// An MCP server without a lock file appears after its worker has started, and later lists
// another tool. The worker serves both tools without a restart, from one process.
func TestToolsOfAServerComeLater(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	dir := t.TempDir()
	in := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name+".new", []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := in("tools.yaml", "mcp: [{name: late, command: [./server], trust: annotations, sandbox: {off: true}}]\n", 0o600)
	p.ready("coordinator")
	worker := p.start("worker", "--tools", file)
	p.until("the worker waits", func() bool { return strings.Contains(worker.log.String(), "waits for a server") })
	names := in("names", "one", 0o600)
	in("server", fmt.Sprintf("#!/bin/sh\nexec %q %s %q\n", self, serveNames, names), 0o700)
	c, n := p.client(), 0
	served := func(name string) (said string) {
		p.until(name+" is served", func() bool {
			n++
			reply, err := c.Run(t.Context(), canonical("s", fmt.Sprint("b", n), call{"late__" + name, ""}))
			if err != nil {
				t.Fatal(err)
			}
			said = string(reply.Results[0].Output)
			return reply.Results[0].Status == messages.StatusOK
		})
		return said
	}
	_, first, _ := strings.Cut(served("one"), " of ")
	in("names", "one two", 0o600)
	if _, second, _ := strings.Cut(served("two"), " of "); second != first {
		t.Errorf("the process is %s after it was %s", second, first)
	}
	if said := worker.log.String(); !strings.Contains(said, "A server has changed its tools: 2 tools; new: late__two.") {
		t.Error("the log does not tell of the change")
	}
}
