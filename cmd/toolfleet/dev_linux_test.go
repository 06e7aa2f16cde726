package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
)

// devAt is a dev at a terminal, with a tools file.
type devAt struct {
	t    *testing.T
	term *terminaltest.Terminal
	dir  string
	url  string
	runs int
}

var readyAt = regexp.MustCompile(`ready at (nats://[0-9.:]+)`)

func startDev(t *testing.T, tools string) *devAt {
	t.Helper()
	d := &devAt{t: t, term: terminaltest.New(t), dir: t.TempDir()}
	d.write(tools)
	cmd := exec.Command("toolfleet", "dev", "--listen", "127.0.0.1:0", "--api", "none", "--tools", "tools.yaml", "--no-builtin", "--data", "data")
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "TOOLFLEET_CONFIG=none", "XDG_CONFIG_HOME="+d.dir, "GORACE=atexit_sleep_ms=0", "NO_COLOR=1", "TERM=xterm")
	cmd.Stdout, cmd.Stderr = d.term.Tool, d.term.Tool
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("dev ends with %v", err)
		}
	})
	d.term.Expect("Ctrl-C ends it")
	found := readyAt.FindStringSubmatch(d.term.Text())
	if found == nil {
		t.Fatal("dev names no address")
	}
	d.url = found[1]
	return d
}

// write writes the tools file as an editor does: in one step.
func (d *devAt) write(tools string) {
	d.t.Helper()
	name := filepath.Join(d.dir, "tools.yaml")
	if err := os.WriteFile(name+".new", []byte(tools), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		d.t.Fatal(err)
	}
}

// call runs one call, and returns what the model reads.
func (d *devAt) call(tool string) string {
	d.t.Helper()
	d.runs++
	batch := fmt.Sprintf(`{"calls":[{"id":"1","name":%q,"input":{}}]}`, tool)
	var out, said bytes.Buffer
	if status := run([]string{"run", "--provider", "canonical", "--nats", d.url, "--config", "none", "--session", "s", "--batch", fmt.Sprint("b", d.runs)},
		strings.NewReader(batch), &out, &said); status != 0 {
		d.t.Errorf("run %s: %d\n%s", tool, status, &said)
	}
	return out.String()
}

const (
	oneTool = "tools:\n  - {name: one, kind: read, input_schema: {type: object}, exec: {command: [echo, %s]}}\n"
	gate    = "  - {name: gate, kind: read, input_schema: {type: object}, exec: {command: [sh, -c, 'until [ -e go ]; do sleep 0.02; done; echo %s']}}\n"
)

// dev shows the calls of others as they run, and serves its tools file as it is now. What runs
// meanwhile ends with the tools that it began with.
func TestDevShowsCallsAndReloads(t *testing.T) {
	d := startDev(t, fmt.Sprintf(oneTool+gate, "first", "first"))
	if got := d.call("one"); !strings.Contains(got, `"output":"first\n"`) {
		t.Errorf("got %s", got)
	}
	d.term.Expect("s b1  ")
	d.term.Expect("one: ok")
	d.term.Expect("s b1  completed: 1 call")
	answer := make(chan string, 1)
	go func() { answer <- d.call("gate") }()
	d.term.Expect("gate: running")

	d.write("tools:\n  - {nam: one}\n")
	d.term.Expect("The tools stay as they are")
	d.term.Expect(`tools.yaml:2:6: tools[0]: unknown key "nam"`)
	d.write(fmt.Sprintf(strings.ReplaceAll(oneTool+gate, "read", "compute"), "second", "second") + "  - {name: two, kind: compute, builtin: noop}\n")
	d.term.Expect("The tools file was read again: 3 tools; new: two; changed: gate, one.")
	if err := os.WriteFile(filepath.Join(d.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; !strings.Contains(got, `"output":"first\n"`) {
		t.Errorf("the call that ran meanwhile: %s", got)
	}
	// The coordinator learns of the new tool a moment later.
	for end := time.Now().Add(30 * time.Second); !strings.Contains(d.call("two"), `"output":{}`); {
		if time.Now().After(end) {
			t.Fatal("the new tool is not served")
		}
	}
	if got := d.call("one"); !strings.Contains(got, `"output":"second\n"`) {
		t.Errorf("after the change: %s", got)
	}

	// A tool is removed from the file: a call of it ends as unknown, and does not wait for a
	// worker.
	d.write("tools:\n  - {name: two, kind: compute, builtin: noop}\n")
	d.term.Expect("The tools file was read again: 1 tool; gone: gate, one.")
	for end := time.Now().Add(30 * time.Second); !strings.Contains(d.call("one"), "unknown_tool"); {
		if time.Now().After(end) {
			t.Fatal("the tool that is gone is still known")
		}
	}
}

// The file of a long-lived program changes: dev starts the program again.
func TestDevStartsAChangedProgramAgain(t *testing.T) {
	d := startDev(t, fmt.Sprintf(oneTool, "first"))
	program := func(tools string) {
		name := filepath.Join(d.dir, "program")
		if err := os.WriteFile(name+".new", []byte("#!/bin/sh\nexec mcp-test-server "+tools+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	program("look")
	d.write("mcp: [{name: p, command: [./program], trust: annotations, sandbox: {off: true}}]\n")
	d.term.Expect("The tools file was read again: 1 tool; new: p__look; gone: one.")
	program("look at")
	d.term.Expect("A program has changed, so it was started again: 2 tools; new: p__at.")
}

// A change of a file is reported once, after two looks have found the same content.
func TestChangesOfFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	w := newFileWatch(name, "")
	got := ""
	look := func() { got += map[bool]string{false: ".", true: "x"}[w.changed()] }
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look()
	write("a")
	look()
	write("ab")
	look()
	look()
	look()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	look()
	look()
	look()
	if got != "...x..x." {
		t.Errorf("got %s", got)
	}
}
