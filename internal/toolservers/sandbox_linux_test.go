package toolservers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// canary is the text of a key that no program may read.
const canary = "cnry-of-the-worker"

// confined is a server that has the tool sh, in a sandbox, with files around it that it must
// not touch.
type confined struct {
	dir, outside, key string
	sh                tool.Runner
}

// newConfined starts the server of a confined. list is the list of the tools file that the
// server is in, and keys are the keys of its sandbox.
func newConfined(t *testing.T, list, keys string) confined {
	t.Helper()
	if m := sandbox.Local(); m.Landlock < 6 || !m.Seccomp {
		t.Skipf("this machine has Landlock with ABI %d, and seccomp: %v", m.Landlock, m.Seccomp)
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := confined{dir: filepath.Join(base, "tools"), outside: filepath.Join(base, "outside")}
	c.key = filepath.Join(c.outside, "worker.nk")
	temp := filepath.Join(base, "temp")
	for _, name := range []string{c.dir, c.outside, temp} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{c.key: canary, filepath.Join(c.outside, "file"): "untouched", filepath.Join(c.dir, "prices"): "12"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", temp)
	t.Setenv("WORKERS_SECRET", canary)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command, _ := json.Marshal([]string{program, serveWord, "sh"})
	servers := parse(t, fmt.Sprintf("%s:\n- {name: a, prefix: a__, command: %s, sandbox: {read: [%s]%s}}\n", list, command, program, keys))
	place := worker.Place{Dir: c.dir, Hidden: []string{c.key}}
	var reg tool.Registry
	opened, err := toolservers.Open(t.Context(), &reg, servers, toolservers.Place{Dir: c.dir, Box: place.ServerBox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	found, ok := reg.Lookup("a__sh")
	if !ok {
		t.Fatalf("there is no shell: %+v", opened.States())
	}
	c.sh = found.Runner
	return c
}

// run returns what a script prints in the server's sandbox.
func (c confined) run(t *testing.T, script string) (string, error) {
	t.Helper()
	input, _ := json.Marshal(map[string]string{"script": fmt.Sprintf("OUT=%s KEY=%s WORKER=%d\n%s", c.outside, c.key, os.Getpid(), script)})
	out, err := c.sh.Run(t.Context(), tool.Call{Input: input, IdempotencyKey: "k", Fence: 1})
	return string(out.Value), err
}

// A program and an MCP server try to reach the worker and files of others: the sandbox refuses
// it.
func TestServersAreConfined(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCONT)
	defer signal.Stop(signals)
	for _, list := range []string{"mcp", "programs"} {
		t.Run(list, func(t *testing.T) {
			c := newConfined(t, list, ", network: none, state: [./ledger]")
			for name, script := range map[string]string{
				"the key": `grep -q cnry $KEY && echo won`,
				// In a sandbox with its own process ids, all ids are low.
				"the worker's environment": `[ $WORKER -gt 300 ] && head -c 1 /proc/$WORKER/environ >/dev/null && echo won`,
				"its own environment":      `[ -n "$WORKERS_SECRET" ] && echo won`,
				"a file outside":           `echo x >$OUT/file && echo won`,
				"a new file outside":       `echo x >$OUT/new && echo won`,
				"the folder of the tools":  `echo x >new && echo won`,
				"home":                     `echo x >>~/.toolfleet-test && echo won`,
				"signals to the worker":    `kill -CONT $WORKER`,
				"TCP":                      `(exec 3<>/dev/tcp/127.0.0.1/` + fmt.Sprint(listener.Addr().(*net.TCPAddr).Port) + `) && echo won`,
			} {
				out, err := c.run(t, script)
				if err != nil || strings.Contains(out, "won") {
					t.Errorf("%s: %s, %v", name, out, err)
				}
			}
			for _, script := range []string{"echo x >ledger/a && cat ledger/a", "t=$(mktemp) && echo x >$t", "grep 12 prices", "echo a | cat"} {
				if out, err := c.run(t, script); err != nil || !strings.Contains(out, "<nil>") {
					t.Errorf("%s: %s, %v", script, out, err)
				}
			}
			if text, err := os.ReadFile(filepath.Join(c.outside, "file")); err != nil || string(text) != "untouched" {
				t.Errorf("the file outside: %q, %v", text, err)
			}
		})
	}
	select {
	case <-signals:
		t.Error("a program sent a signal to the worker")
	default:
	}
}

// A program takes too much memory: it is killed in the middle of its call, and started again
// for the next one.
func TestAServerPassesItsLimit(t *testing.T) {
	c := newConfined(t, "mcp", ", limits: {memory: 200MB}")
	_, err := c.run(t, "head -c 400000000 /dev/zero | tail -c 400000000 | sleep 1000")
	var own *messages.Error
	if !errors.As(err, &own) || own.Code != messages.CodeOutcomeUnknown {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	if out, err := c.run(t, "echo again"); err != nil || !strings.Contains(out, "again") {
		t.Errorf("after that: %s, %v", out, err)
	}
}

// The sandbox refuses something to a program at its start: the error says what the sandbox
// allows.
func TestAServerThatNeedsMore(t *testing.T) {
	c := newConfined(t, "mcp", "")
	hidden := filepath.Join(c.outside, "server")
	if err := os.WriteFile(hidden, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	servers := parse(t, fmt.Sprintf("mcp: [{name: a, command: [bash, -c, 'echo x >/etc/toolfleet-test']}, {name: b, command: [%s]}]", hidden))
	place := worker.Place{Dir: c.dir}
	opened, err := toolservers.Open(t.Context(), &tool.Registry{}, servers, toolservers.Place{Dir: c.dir, Box: place.ServerBox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	for _, s := range opened.States() {
		want := map[string]string{"a": "`sandbox: {state: [/etc]}` in its entry", "b": "`sandbox: {read: [" + hidden + "]}` in its entry"}[s.Name]
		if !strings.Contains(s.Down, "change only $TMPDIR") || !strings.HasPrefix(s.Advice, want) || (s.Name == "a") != strings.Contains(s.Printed, "/etc/toolfleet-test") {
			t.Errorf("%s says %+v", s.Name, s)
		}
	}
}

func TestASandboxThatIsRequired(t *testing.T) {
	servers := parse(t, "mcp:\n"+entry(t, "a", ", sandbox: {required: [files]}", "look"))
	lacking := func(schemas.Server) (*sandbox.Box, error) { return nil, errors.New("the sandbox requires it") }
	_, err := toolservers.Open(t.Context(), &tool.Registry{}, servers, toolservers.Place{Box: lacking})
	if err == nil || err.Error() != "line 2: server a: the sandbox requires it" {
		t.Errorf("got %v", err)
	}
}
