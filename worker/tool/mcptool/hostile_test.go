package mcptool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// listOf lists the tools of a server in this process.
func listOf(t *testing.T, tools ...*mcp.Tool) (List, error) {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "hostile", Version: "1"}, nil)
	for _, about := range tools {
		server.AddTool(about, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text(""), nil })
	}
	near, far := mcp.NewInMemoryTransports()
	if _, err := server.Connect(t.Context(), far, nil); err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return list(t.Context(), session)
}

func hostile(name string, change func(*mcp.Tool)) *mcp.Tool {
	about := &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}
	if change != nil {
		change(about)
	}
	return about
}

// A tool that is too large for anybody to read is not served, and the others are.
func TestHostileDefinitions(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	listed, err := listOf(t,
		hostile("good", nil),
		hostile("n"+large, nil),
		hostile("description", func(t *mcp.Tool) { t.Description = large }),
		hostile("title", func(t *mcp.Tool) { t.Title = large }),
		hostile("schema", func(t *mcp.Tool) {
			t.InputSchema = json.RawMessage(`{"type":"object","properties":{"` + large + `":{}}}`)
		}),
		hostile("meta", func(t *mcp.Tool) { t.Meta = mcp.Meta{"toolfleet/kind": large} }),
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(listed.Tools) != 1 || listed.Tools[0].Name != "good" || len(listed.Refused) != 5 {
		t.Errorf("served are %d, refused %d", len(listed.Tools), len(listed.Refused))
	}
	for _, r := range listed.Refused {
		if len(r.String()) > 400 {
			t.Errorf("an error of %d bytes: %.100s", len(r.String()), r)
		}
	}
}

func TestTooManyTools(t *testing.T) {
	var tools []*mcp.Tool
	for i := range maxTools + 1 {
		tools = append(tools, hostile(fmt.Sprintf("t%d", i), nil))
	}
	if _, err := listOf(t, tools...); err == nil || !strings.Contains(err.Error(), "lists more than 1000 tools") {
		t.Errorf("got %v", err)
	}
}

// The digest covers whatever a model or the fleet goes by.
func TestDigests(t *testing.T) {
	no := false
	digests := map[string]string{}
	for name, d := range map[string]Definition{
		"plain":       {Name: "t", InputSchema: json.RawMessage(`{}`)},
		"title":       {Name: "t", InputSchema: json.RawMessage(`{}`), Title: "x"},
		"description": {Name: "t", InputSchema: json.RawMessage(`{}`), Description: "x"},
		"schema":      {Name: "t", InputSchema: json.RawMessage(`{"a":1}`)},
		"read-only":   {Name: "t", InputSchema: json.RawMessage(`{}`), ReadOnly: true},
		"destructive": {Name: "t", InputSchema: json.RawMessage(`{}`), Destructive: &no},
		"idempotent":  {Name: "t", InputSchema: json.RawMessage(`{}`), Idempotent: true},
		"meta":        {Name: "t", InputSchema: json.RawMessage(`{}`), Meta: map[string]any{"kind": "read"}},
	} {
		if other, ok := digests[d.Digest()]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		digests[d.Digest()] = name
	}
}
