package toolservers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// serveWord as the first argument makes this test program an MCP server. The other arguments
// are its tools.
const serveWord = "serve-mcp"

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != serveWord {
		os.Exit(m.Run())
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	for _, name := range os.Args[2:] {
		about := &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: &mcp.ToolAnnotations{ReadOnlyHint: name == "look"}}
		server.AddTool(about, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			said := "I am " + name
			if name == "sh" {
				said = shell(r.Params.Arguments)
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: said}}}, nil
		})
	}
	_ = server.Run(context.Background(), &mcp.StdioTransport{})
}

// shell runs the script in a call's input.
func shell(input []byte) string {
	var in struct{ Script string }
	if err := json.Unmarshal(input, &in); err != nil {
		return err.Error()
	}
	out, err := exec.Command("bash", "-c", in.Script).CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// entry returns the entry of a server with these tools, for a tools file.
func entry(t *testing.T, name, keys string, tools ...string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command, _ := json.Marshal(append([]string{program, serveWord}, tools...))
	return fmt.Sprintf("- {name: %s, command: %s%s}\n", name, command, keys)
}

func parse(t *testing.T, text string) []schemas.Server {
	t.Helper()
	file, err := schemas.ParseToolsFile("tools.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file.Servers
}

func names(tools []schemas.Tool) (all []string) {
	for _, t := range tools {
		all = append(all, t.Name)
	}
	return all
}

// The worker serves exactly the tools that it promises, under the rules of the tools file.
func TestOpen(t *testing.T) {
	file := parse(t, "mcp:\n"+entry(t, "a", ", trust: annotations", "look", "change")+entry(t, "b", `, tools: [look], prefix: ""`, "look", "change"))
	var reg tool.Registry
	servers, err := toolservers.Open(t.Context(), &reg, file, toolservers.Place{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(servers.Close)
	if diff := cmp.Diff([]string{"a__change", "a__look", "look"}, names(reg.Definitions())); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"a__change": `"I am change"`, "look": `"I am look"`} {
		found, _ := reg.Lookup(name)
		if out, err := found.Runner.Run(t.Context(), tool.Call{Input: json.RawMessage(`{}`)}); err != nil || string(out.Value) != want {
			t.Errorf("%s: %s, %v", name, out.Value, err)
		}
	}
	var asked []string
	for _, rule := range servers.Rules() {
		asked = append(asked, rule.Tool)
		trust, override := strings.Contains(rule.Reason, "`trust: annotations` in its entry"), "`override: {"+strings.TrimPrefix(rule.Tool, "a__")+": {ask: false}}`"
		if trust != (rule.Tool == "look") || !strings.Contains(rule.Reason, override) {
			t.Errorf("%s asks because: %s", rule.Tool, rule.Reason)
		}
	}
	if diff := cmp.Diff([]string{"a__change", "look"}, asked); diff != "" {
		t.Errorf("asks for\n%s", diff)
	}
	promised, rules, err := toolservers.Promises(t.Context(), file, toolservers.Place{})
	if err != nil || len(promised) != 3 || len(rules) != 2 {
		t.Errorf("promised are %q under %d rules, %v", names(promised), len(rules), err)
	}
	for _, p := range promised {
		if got, _ := reg.Lookup(p.Name); got.Digest != p.Digest {
			t.Errorf("%s is promised with another digest than it is served with", p.Name)
		}
	}
}

// Two servers have a tool of the same name: this is a mistake if the lock file lists it. A
// server without a lock file may list any name at any time, so it only loses this tool.
func TestNamesAreTakenOnce(t *testing.T) {
	place := toolservers.Place{Dir: t.TempDir()}
	for _, row := range []struct{ lock, want string }{
		{"", ""},
		{", lock: b.json", "line 3: server b: tool look is registered twice; two versions of it need a version each"},
	} {
		file := parse(t, "mcp:\n"+entry(t, "a", `, prefix: ""`, "look")+entry(t, "b", `, prefix: ""`+row.lock, "look", "Bash", "own"))
		if row.lock != "" {
			listed, _, err := toolservers.Compare(t.Context(), file[1], place)
			if err != nil {
				t.Fatal(err)
			}
			if err := toolservers.Accept(file[1], place, listed); err != nil {
				t.Fatal(err)
			}
		}
		var reg tool.Registry
		bash := schemas.Tool{Name: "Bash", Version: "2", Kind: messages.KindRead, InputSchema: []byte(`{"type":"object"}`)}
		if err := reg.Add(bash, tool.Func(nil)); err != nil {
			t.Fatal(err)
		}
		servers, err := toolservers.Open(t.Context(), &reg, file, place)
		if row.want != "" {
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "line 3: server b: tool Bash is registered in version 2") {
				t.Errorf("with a lock file: got %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(servers.Close)
		if diff := cmp.Diff([]string{"Bash", "look", "own"}, names(reg.Definitions())); diff != "" {
			t.Error(diff)
		}
		if b := servers.States()[1]; b.Tools != 1 || len(b.Refused) != 2 || len(servers.Rules()) != 2 {
			t.Errorf("got %+v and %d rules", b, len(servers.Rules()))
		}
	}
}

// A server cannot be started: only its own tools are missing, and the error says why.
func TestAServerIsDown(t *testing.T) {
	file := parse(t, "mcp:\n"+entry(t, "a", "", "look")+"- {name: b, command: [./missing]}\n")
	var reg tool.Registry
	servers, err := toolservers.Open(t.Context(), &reg, file, toolservers.Place{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(servers.Close)
	states := servers.States()
	if len(states) != 2 || states[0].Down != "" || states[0].Tools != 1 || !strings.Contains(states[1].Down, "no such file") {
		t.Errorf("got %+v", states)
	}
}

func TestAcceptAndCompare(t *testing.T) {
	place := toolservers.Place{Dir: t.TempDir()}
	one := func(tools ...string) schemas.Server {
		return parse(t, "mcp:\n"+entry(t, "a", ", lock: a.json", tools...))[0]
	}
	listed, differences, err := toolservers.Compare(t.Context(), one("look", "old"), place)
	if diff := cmp.Diff([]toolservers.Difference{{Tool: "look", State: "new"}, {Tool: "old", State: "new"}}, differences); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	if err := toolservers.Accept(one(), place, listed); err != nil {
		t.Fatal(err)
	}
	_, differences, err = toolservers.Compare(t.Context(), one("look", "more"), place)
	want := []toolservers.Difference{{Tool: "look", State: "same"}, {Tool: "more", State: "new"}, {Tool: "old", State: "gone"}}
	if diff := cmp.Diff(want, differences); err != nil || diff != "" {
		t.Error(err, diff)
	}

	// With a lock file, the tools are there even if the server is not.
	broken := one()
	broken.Command = []string{"./missing"}
	var reg tool.Registry
	servers, err := toolservers.Open(t.Context(), &reg, []schemas.Server{broken}, place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(servers.Close)
	if diff := cmp.Diff([]string{"a__look", "a__old"}, names(reg.Definitions())); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(filepath.Join(place.Dir, "a.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := toolservers.Open(t.Context(), &tool.Registry{}, []schemas.Server{broken}, place); err == nil || !strings.Contains(err.Error(), "tools mcp accept") {
		t.Errorf("without its lock file: %v", err)
	}
}

// Somebody accepts other tools of a server with a lock file: the running process of the server
// serves them. If one of their names is taken, everything stays as it was.
func TestAgain(t *testing.T) {
	place := toolservers.Place{Dir: t.TempDir()}
	accept := func(tools ...string) schemas.Server {
		server := parse(t, "mcp:\n"+entry(t, "a", ", lock: a.json", tools...))[0]
		listed, _, err := toolservers.Compare(t.Context(), server, place)
		if err != nil {
			t.Fatal(err)
		}
		if err := toolservers.Accept(server, place, listed); err != nil {
			t.Fatal(err)
		}
		return server
	}
	accept("look")
	server := parse(t, "mcp:\n"+entry(t, "a", ", lock: a.json", "look", "more"))[0]
	var reg tool.Registry
	servers, err := toolservers.Open(t.Context(), &reg, []schemas.Server{server}, place)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes, wait := servers.Changes(ctx)
	accept("look", "more")
	<-changes
	cancel()
	wait()
	taken := &tool.Registry{}
	if err := taken.Add(schemas.Tool{Name: "a__more", Kind: messages.KindRead, InputSchema: []byte(`{"type":"object"}`)}, tool.Func(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := servers.Again(t.Context(), taken); err == nil {
		t.Error("a tool is registered twice")
	}
	var now tool.Registry
	next, err := servers.Again(t.Context(), &now)
	if err != nil {
		t.Fatal(err)
	}
	servers.Close()
	t.Cleanup(next.Close)
	if diff := cmp.Diff([]string{"a__look", "a__more"}, names(now.Definitions())); diff != "" {
		t.Error(diff)
	}
	found, _ := now.Lookup("a__more")
	if out, err := found.Runner.Run(t.Context(), tool.Call{Input: json.RawMessage(`{}`)}); err != nil || string(out.Value) != `"I am more"` {
		t.Errorf("got %s, %v", out.Value, err)
	}
}
