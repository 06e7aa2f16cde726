package mcptool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/schemas"
)

// hostileWord is the first argument of a hostile server: this test program, started again. The
// second argument says what the server does.
const hostileWord = "serve-hostile"

// serveHostile answers tools/list with messages that no server should send. It writes the
// messages itself, since a library would refuse to.
func serveHostile(how string) {
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	const good = `{"name":"good","inputSchema":{"type":"object"}}`
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var message struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(lines.Bytes(), &message) != nil || message.ID == nil {
			continue
		}
		fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,`, message.ID)
		if message.Method == "initialize" {
			fmt.Fprintln(out, `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"h","version":"1"}}}`)
			out.Flush()
			continue
		}
		switch how {
		case "a name of 10 MB":
			fmt.Fprintf(out, `"result":{"tools":[%s,{"name":"%s","inputSchema":{"type":"object"}}]}}`+"\n", good, strings.Repeat("n", 10<<20))
		case "a million tools":
			fmt.Fprint(out, `"result":{"tools":[`+good)
			for i := range 1_000_000 {
				if _, err := fmt.Fprintf(out, `,{"name":"t%d","inputSchema":{"type":"object"}}`, i); err != nil {
					return
				}
			}
			fmt.Fprintln(out, `]}}`)
		case "pages without end":
			fmt.Fprintln(out, `"result":{"tools":[],"nextCursor":"more"}}`)
		case "a message without end":
			for err := error(nil); err == nil; {
				_, err = out.Write(bytes.Repeat([]byte("x"), 1<<20))
			}
			return
		case "escapes in a name":
			fmt.Fprintln(out, `"result":{"tools":[`+good+`,{"name":"\u001b[2J\u202ename","description":"\u001b]0;title\u0007","inputSchema":{"type":"object"}}]}}`)
		case "an error with escapes":
			fmt.Fprintln(out, `"error":{"code":-32000,"message":"\u001b[2J`+strings.Repeat("x", 1<<20)+`"}}`)
		case "a task":
			fmt.Fprintln(out, `"result":{"tools":[{"name":"good","execution":{"taskSupport":"optional"},"inputSchema":{"type":"object"}},`+
				`{"name":"long","execution":{"taskSupport":"required"},"inputSchema":{"type":"object"}}]}}`)
		case "no schema":
			fmt.Fprintln(out, `"result":{"tools":[`+good+`,{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":7}}}}]}}`)
		}
		out.Flush()
	}
}

// A server lists tools that nobody can use: the list is refused, or served without these
// tools. What is said about them is short, and has no control characters for a terminal.
func TestHostileServers(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{ // part of the error, or of the only refusal
		"pages without end":     "more than 200 pages",
		"escapes in a name":     "name",
		"an error with escapes": "list its tools",
		"no schema":             "its input schema",
		"a task":                `"long": it runs only as a task of the protocol (taskSupport: required)`,
	}
	if !testing.Short() { // only without the race detector, which makes each byte slow
		wants["a name of 10 MB"] = "its name has 10485760 bytes"
		wants["a million tools"] = "it sent a message of more than 16777216 bytes"
		wants["a message without end"] = "it sent a message of more than 16777216 bytes"
	}
	for how, want := range wants {
		t.Run(how, func(t *testing.T) {
			s, err := Open(t.Context(), Config{Server: schemas.Server{Name: "h", Prefix: "h__", Command: []string{program, hostileWord, how}, Processes: 1}})
			said := fmt.Sprint(err)
			if err == nil {
				defer s.Close()
				said = fmt.Sprint(s.Refused())
				if len(s.Tools()) != 1 || s.Tools()[0].Name != "h__good" || len(s.Refused()) != 1 {
					t.Errorf("served are %d tools, refused %d", len(s.Tools()), len(s.Refused()))
				}
			}
			if !strings.Contains(said, want) || len(said) > 3000 || strings.ContainsAny(said, "\x1b\a\u202e") {
				t.Errorf("got %d bytes: %.300q, want at most 3000 with %q", len(said), said, want)
			}
		})
	}
}

// listOf returns the list of tools of a server in this process.
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
	return list(t.Context(), session, func(string) bool { return false })
}

func hostile(name string, change func(*mcp.Tool)) *mcp.Tool {
	about := &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}
	if change != nil {
		change(about)
	}
	return about
}

// A tool's definition is too large for anybody to read: that tool is not served, and the
// others are.
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

// The digest of a definition covers everything that a model or the fleet decides by.
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
