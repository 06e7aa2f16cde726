package mcpserver_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

func TestToolsAndTheirAnnotations(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		c, _ := f.dial(mcpserver.Config{}, nil, "s")
		list, err := c.ListTools(t.Context(), nil)
		must(t, err)
		var got []string
		for _, d := range list.Tools {
			a := d.Annotations
			got = append(got, fmt.Sprintf("%s read=%t idempotent=%t destructive=%t", d.Name, a.ReadOnlyHint, a.IdempotentHint, *a.DestructiveHint))
		}
		want := []string{
			"fail read=true idempotent=false destructive=false", "gate read=true idempotent=false destructive=false",
			"hold read=false idempotent=false destructive=false", "look read=true idempotent=false destructive=false",
			"note read=false idempotent=true destructive=false", "refund read=false idempotent=false destructive=true",
			"steps read=true idempotent=false destructive=false",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// A result has the text for the model, and everything that is known about the call.
func TestAResult(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		c, _ := f.dial(mcpserver.Config{}, nil, "s")
		for _, row := range []struct {
			tool, text string
			failed     bool
			status     messages.Status
		}{
			{"look", `{"n":1}`, false, messages.StatusOK},
			{"fail", "The shop is closed.", true, messages.StatusError},
			{"nothing", "no tool named", true, "unknown_tool"},
		} {
			r, err := c.CallTool(t.Context(), call(row.tool, `{"n":1}`, "toolfleet/id", "call-"+row.tool))
			must(t, err)
			raw, err := json.Marshal(r.StructuredContent)
			must(t, err)
			var result messages.Result
			must(t, json.Unmarshal(raw, &result))
			if !strings.Contains(text(r), row.text) || r.IsError != row.failed || result.Status != row.status || result.Tool != row.tool {
				t.Errorf("%s: got %q, error %t, %s", row.tool, text(r), r.IsError, raw)
			}
			if r.Meta["toolfleet/id"] != "call-"+row.tool || r.Meta["toolfleet/session"] != "s" {
				t.Errorf("%s: _meta is %v", row.tool, r.Meta)
			}
		}
		if _, err := c.CallTool(t.Context(), call("look", `{}`, "toolfleet/id", 7)); err == nil || !strings.Contains(err.Error(), "want a string") {
			t.Errorf("an id that is a number: got %v", err)
		}
	})
}

// A result has no structured content if it has a text for the model, because Claude Code would
// show the model the structured content instead of the text.
func TestStructuredContent(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		c, _ := f.dial(mcpserver.Config{}, nil, "s")
		for _, row := range []struct {
			name string
			meta []any
			want bool
		}{
			{"any client", nil, true},
			{"Claude Code", []any{"claudecode/toolUseId", "toolu-1"}, false},
			{"a client that wants none", []any{"toolfleet/result", false}, false},
			{"one of Claude Code that wants it", []any{"claudecode/toolUseId", "toolu-2", "toolfleet/result", true}, true},
		} {
			r, err := c.CallTool(t.Context(), call("look", `{"n":1}`, row.meta...))
			must(t, err)
			if got := r.StructuredContent != nil; got != row.want || !strings.Contains(text(r), `{"n":1}`) {
				t.Errorf("%s: structured content: %t, want %t; the text is %q", row.name, got, row.want, text(r))
			}
		}
	})
}

// In protocol 2026-07-28 a result has to say that it is complete, or clients refuse it. In
// earlier protocols this member does not exist.
func TestAResultSaysThatItIsComplete(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		l := f.pipe(t)
		for _, row := range []struct{ tool, meta, want string }{
			{"look", "", ""},
			{"look", modern, "complete"},
			{"fail", modern, "complete"},
			{"nothing", modern, "complete"},
		} {
			l.write(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + row.tool + `","arguments":{},"_meta":{` + row.meta + `}}}`)
			if r := l.read(); r.Error != nil || r.Result.ResultType != row.want {
				t.Errorf("%s with %q: the type is %q, want %q; error %s", row.tool, row.meta, r.Result.ResultType, row.want, r.Error)
			}
		}
	})
}

// modern is the content of _meta in a request of protocol 2026-07-28.
const modern = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
