package schemas

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMCPJSON(t *testing.T) {
	env := map[string]string{"TOKEN": "t0ken", "DIR": "/work"}
	servers, err := ParseMCPJSON(".mcp.json", []byte(`{"mcpServers": {
		"files (local)": {"command": "npx", "args": ["-y", "server", "${DIR:-.}", "${OTHER:-a b}"], "env": {"KEY": "${TOKEN}"}, "autoApprove": [], "sandbox": {"state": ["~/.npm"]}},
		"issues": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "trust": "annotations"},
		"off": {"command": "x", "disabled": true}}}`), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	want := []Server{
		{Name: "files-local", Prefix: "files-local__", Processes: 1, Loopback: true, Command: []string{"npx", "-y", "server", "/work", "a b"},
			Values: []HTTPValue{{Name: "KEY", Template: "t0ken"}}, Sandbox: Sandbox{State: []string{"~/.npm"}}},
		{Name: "issues", Prefix: "issues__", Processes: 1, Loopback: true, URL: "https://example.com/mcp", Trusted: true,
			Values: []HTTPValue{{Name: "Authorization", Template: "Bearer t0ken"}}},
	}
	if diff := cmp.Diff(want, servers); diff != "" {
		t.Error(diff)
	}
	for file, says := range map[string]string{
		`{`:  "ends in the middle",
		`{}`: `want {"mcpServers"`,
		`{"servers":{"a":{"command":"${MISSING}"}}}`:                     `server "a": the environment variable MISSING is not set`,
		`{"servers":{"a":{"command":"x","url":"https://b"}}}`:            "want a command or a url",
		`{"servers":{"a":{"command":"x","sandbox":{"state":["/"]}}}}`:    "the whole machine",
		`{"servers":{"a":{"command":"x","sandbox":{"netwrok":"none"}}}}`: "netwrok",
		`{"servers":{"a":{}}}`:                                           "want a command or a url",
		`{"servers":{"":{"command":"x"}}}`:                               "want a name",
		`{"servers":{"a":{"type":"sse","url":"https://b"}}}`:             "use http",
	} {
		if _, err := ParseMCPJSON("f", []byte(file), func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", file, err, says)
		}
	}
}
