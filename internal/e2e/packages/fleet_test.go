package packages

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// fleet is a running `toolfleet dev` with the tools of testdata.
type fleet struct {
	url  string // of the HTTP API
	nats string // of the NATS server
	dir  string // hold appends its runs to the file "runs", and ends when the file "open" exists
}

// startFleet starts a fleet with the tools of a program, and waits until the tool name is
// served.
func startFleet(t *testing.T, name string, program ...string) fleet {
	t.Helper()
	f := fleet{dir: t.TempDir()}
	command := toolfleet(t)
	words, err := json.Marshal(append(program, f.dir))
	must(t, err)
	tools := filepath.Join(f.dir, "tools.yaml")
	must(t, os.WriteFile(tools, fmt.Appendf(nil, "programs: [{command: %s, sandbox: {off: true}}]\n", words), 0o600))
	api, server := natstest.FreeAddr(t), natstest.FreeAddr(t)
	f.url, f.nats = "http://"+api, "nats://"+server
	start(t, command, []string{"XDG_CONFIG_HOME=" + t.TempDir()}, "dev", "--listen", server, "--api", api, "--tools", tools, "--root", t.TempDir(), "--data", t.TempDir())
	until(t, "the tools are served", func() bool {
		response, err := http.Get(f.url + "/v1/tools?names=" + name)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return f
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// toolfleet returns the path of the command, which is built once for all tests.
func toolfleet(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "toolfleet"); built.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", built.dir, "../../../cmd/toolfleet").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build the command: %w\n%s", err, out)
		}
	})
	must(t, built.err)
	return filepath.Join(built.dir, "toolfleet")
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// start starts a program that is stopped at the end of the test, and returns a scanner of its
// stdout.
func start(t *testing.T, command string, env []string, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		defer late.Stop()
		_ = cmd.Wait()
	})
	return bufio.NewScanner(out)
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// installed returns a folder with the npm packages of package.json and with our packed
// package. It skips the test if TOOLFLEET_PACKAGES names no such folder.
func installed(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TOOLFLEET_PACKAGES")
	if dir == "" {
		t.Skip("TOOLFLEET_PACKAGES names no folder with the packages of package.json: .ci/run packages installs them")
	}
	return dir
}

var recipe = regexp.MustCompile("(?ms)^## ([^\n]*)$|<!-- test: recipe -->\n```js\n(.*?)^```$")

// limits replaces the limits of rounds that the SDKs have in docs/recipes.md with larger ones.
var limits = strings.NewReplacer(
	"stepCountIs(10)", "stepCountIs(10_000)",
	`look.")).finalOutput`, `look.", { maxTurns: 10_000 })).finalOutput`,
	"{ configurable:", "{ recursionLimit: 10_000, configurable:",
)

// Each program of docs/recipes.md runs the calls of a scripted model through the executor of
// its SDK. Three reads run together, and a read sees the write before it. With
// TOOLFLEET_ROUNDS=200 the test repeats the write and the read, and measures how long three
// reads of a second take.
func TestRecipes(t *testing.T) {
	dir := installed(t)
	document, err := os.ReadFile("../../../docs/recipes.md")
	must(t, err)
	tools := filepath.Join(dir, "tools.mjs")
	must(t, os.WriteFile(tools, read(t, "testdata/tools.mjs"), 0o600))
	f := startFleet(t, "hold", node(t), tools)
	want := []string{"met", "met", "met", "noted", "1"}
	rounds, _ := strconv.Atoi(os.Getenv("TOOLFLEET_ROUNDS"))
	if rounds > 0 {
		want = []string{"slept", "slept", "slept", "met", "met", "met"}
		for n := range rounds {
			want = append(want, "noted", strconv.Itoa(n+1))
		}
	}
	heading, tried := "", 0
	for _, m := range recipe.FindAllStringSubmatch(string(document), -1) {
		if m[1] != "" {
			heading = m[1]
			continue
		}
		tried++
		t.Run(fmt.Sprint(tried, " ", heading), func(t *testing.T) {
			file := filepath.Join(dir, fmt.Sprintf("recipe-%d.mjs", tried))
			program := m[2]
			if rounds > 0 {
				program = limits.Replace(program)
			}
			must(t, os.WriteFile(file, []byte(program), 0o600))
			got, _ := f.runAgent(t, rounds, node(t), file)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the model was sent other results:\n%s", diff)
			}
		})
	}
	if want := strings.Count(string(document), "```js\n"); tried != want {
		t.Errorf("%d of %d blocks are tried", tried, want)
	}
}

// The blocks of docs/recipes.md that need no npm package work: curl, the configuration of an
// MCP client, and the calls of a framework in Python.
func TestOtherRecipes(t *testing.T) {
	document := string(read(t, "../../../docs/recipes.md"))
	block := func(language string) string {
		_, rest, ok := strings.Cut(document, "```"+language+"\n")
		text, more, _ := strings.Cut(rest, "\n```")
		if !ok || strings.Contains(more, "```"+language+"\n") {
			t.Fatalf("want one block of %s, which is tried", language)
		}
		return text
	}
	dir := folder(t)
	f := startFleet(t, "hold", python(t), filepath.Join(dir, "tools.py"))
	here := strings.NewReplacer("http://127.0.0.1:8090", f.url)
	t.Run("curl", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip("no curl: its recipe is not tried")
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", here.Replace(block("sh")))
		cmd.Dir = "../../.."
		out, err := cmd.Output()
		var reply struct{ Status string }
		if err != nil || json.Unmarshal(out, &reply) != nil || reply.Status != "completed" {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("MCP", func(t *testing.T) {
		var config struct {
			MCPServers map[string]struct{ Type, URL string } `json:"mcpServers"`
		}
		must(t, json.Unmarshal([]byte(here.Replace(block("json"))), &config))
		server := config.MCPServers["fleet"]
		transport := &mcp.StreamableClientTransport{Endpoint: server.URL}
		session, err := mcp.NewClient(&mcp.Implementation{Name: "recipe", Version: "1"}, nil).Connect(t.Context(), transport, nil)
		must(t, err)
		defer session.Close()
		answer, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "look"})
		if err != nil || answer.IsError || server.Type != "http" {
			t.Errorf("got %+v and %v", answer, err)
		}
	})
	t.Run("Python", func(t *testing.T) {
		program := "import asyncio\nfrom toolfleet import AsyncFleet, text_of\nfleet, session = AsyncFleet(), 'framework'\n" + block("python") +
			"\nasync def main():\n    print(await asyncio.gather(execute('1', 'note', {}), execute('2', 'look', {})))\n\nasyncio.run(main())\n"
		cmd := exec.CommandContext(t.Context(), python(t), "-B", "-c", program)
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "TOOLFLEET_URL="+f.url), t.Output()
		if out, err := cmd.Output(); err != nil || string(out) != "['noted', '1']\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// runAgent runs an agent with a scripted model, which calls a write and a read rounds times.
// It returns the results that the model received last, and the output of the agent.
func (f fleet) runAgent(t *testing.T, rounds int, program, file string, env ...string) (results []string, printed string) {
	t.Helper()
	model := start(t, node(t), []string{fmt.Sprint("ROUNDS=", rounds)}, "testdata/model.mjs")
	if !model.Scan() {
		t.Fatal("the scripted model does not start")
	}
	url := model.Text()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute+time.Duration(rounds)*10*time.Second)
	defer cancel()
	home, err := os.MkdirTemp("", "home")
	must(t, err)
	defer os.RemoveAll(home)
	cmd := exec.CommandContext(ctx, program, file)
	// The Claude Agent SDK starts Claude Code, which writes files into HOME and contacts other
	// services.
	cmd.Env = append(append(os.Environ(), "TOOLFLEET_URL="+f.url, "ANTHROPIC_BASE_URL="+url, "OPENAI_BASE_URL="+url+"/v1",
		"ANTHROPIC_API_KEY=none", "OPENAI_API_KEY=none", "OPENAI_AGENTS_DISABLE_TRACING=1",
		"HOME="+home, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "ENABLE_TOOL_SEARCH=false"), env...)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that the agent's own processes can be killed
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.Output()
	if cmd.Process != nil {
		_ = cmd.Cancel()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ask := func(path string, answer any) {
		response, err := http.Get(url + path)
		must(t, err)
		defer response.Body.Close()
		must(t, json.NewDecoder(response.Body).Decode(answer))
	}
	ask("/results", &results)
	if rounds > 0 {
		var ms int
		ask("/naps", &ms)
		t.Logf("three reads of 1 s took %d ms together; %d times a write and a read", ms, rounds)
	}
	return results, string(out)
}

// The examples of README.md work: the agent in Python with the tools in TypeScript, and the
// other way round.
func TestExamples(t *testing.T) {
	dir := installed(t)
	must(t, os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../../../examples/packages")))
	source, err := filepath.Abs("../../../clients/python")
	must(t, err)
	env := []string{"PYTHONPATH=" + source, "PYTHONDONTWRITEBYTECODE=1"}
	in := func(name string) string { return filepath.Join(dir, "examples", name) }
	for _, of := range []struct {
		name          string
		tools, agents []string
	}{
		{"tools-typescript", []string{node(t), in("tools.mjs")}, []string{python(t), in("agent.py")}},
		{"tools-python", []string{"env", env[0], env[1], python(t), in("tools.py")}, []string{node(t), in("agent.mjs")}},
	} {
		t.Run(of.name, func(t *testing.T) {
			f := startFleet(t, "orders_of", of.tools...)
			results, printed := f.runAgent(t, 0, of.agents[0], of.agents[1], env...)
			if want := `[{"id":"A-1001","customer":"ann"}]`; len(results) != 1 || strings.ReplaceAll(results[0], " ", "") != want || printed != "done\n" {
				t.Errorf("got %q and %q, want %q", results, printed, want)
			}
		})
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(file)
	must(t, err)
	return body
}
