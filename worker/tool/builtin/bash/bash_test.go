package bash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

func TestBashPromise(t *testing.T) {
	bashFolder(t)
	promise := Promise()
	if promise.ShellCommand != "command" || promise.Kind != messages.KindWrite || promise.OnCrash != messages.OnCrashOnce ||
		promise.TimeoutMS != 30_000 || promise.MaxOutput != 10_000 || promise.Truncate != schemas.TruncateTail {
		t.Errorf("got %+v", promise)
	}
	if promise.ConcurrencySafe != nil {
		t.Error("ConcurrencySafe is set: no command for bash would be classified")
	}
	// If there is only sh and no bash, every command runs alone, because the classifier reads
	// commands as bash does. Permission rules still read the command.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sh"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if promise := Promise(); promise.ShellCommand != "command" ||
		promise.ConcurrencySafe == nil || *promise.ConcurrencySafe {
		t.Errorf("for a plain sh: got %+v", promise)
	}
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestBashRunsInTheFolder(t *testing.T) {
	root := bashFolder(t)
	for command, want := range map[string]string{
		"pwd -P":                    root.Dir() + "\n",
		"echo out; echo err >&2":    "out\nerr\n",
		"[[ -z $(cat) ]] && echo x": "x\n",
		"true":                      "",
		"echo $TRACEPARENT":         traceparent + "\n",
	} {
		call := callOf(t, "Bash", in{"command": command, "description": "Tries a command"})
		runner := boxed(root)
		out, err := runner.Run(tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}}), call)
		if diff := cmp.Diff(string(rawjson.Quote(want)), string(out.Value)); err != nil || diff != "" {
			t.Errorf("%s: %v %s", command, err, diff)
		}
	}
}

// bashFails runs a command that has to fail, and returns the message of its error.
func bashFails(t *testing.T, root *rootdir.Root, command string) string {
	t.Helper()
	runner := boxed(root)
	_, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": command}))
	var told *messages.Error
	if !errors.As(err, &told) || told.Code != messages.CodeToolError {
		t.Fatalf("%s: got %v", command, err)
	}
	return told.Message
}

func TestBashFailureHoldsStatusAndOutput(t *testing.T) {
	root := bashFolder(t)
	for command, want := range map[string]string{
		"echo out; echo err >&2; exit 1": "exit status 1\nout\nerr",
		"exit 7":                         "exit status 7",
		"kill -TERM $$":                  "signal: terminated",
	} {
		if got := bashFails(t, root, command); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	for _, numbers := range []int{100_000, 1_000_000} { // the second text is longer than what is kept
		long := bashFails(t, root, fmt.Sprintf("seq %d; exit 1", numbers))
		rest, ok := strings.CutPrefix(long, "exit status 1\n")
		if !ok || len(long) > maxBashMessage+100 {
			t.Errorf("got %d bytes: %.60q", len(long), long)
		}
		isTailOf(t, rest+"\n", sequence(numbers))
	}
}

// sequence returns what the program seq prints.
func sequence(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// isTailOf checks that got is the end of whole, with a first line that says how much is
// missing.
func isTailOf(t *testing.T, got, whole string) {
	t.Helper()
	marker, kept, _ := strings.Cut(got, "\n")
	missing, ok := strings.CutSuffix(whole, kept)
	if !ok || kept == "" {
		t.Fatalf("got %.100q", got)
	}
	want := fmt.Sprintf("[truncated - %d more lines, %d characters]", strings.Count(missing, "\n"), utf8.RuneCountInString(missing))
	if marker != want {
		t.Errorf("got %s, want %s", marker, want)
	}
}

func TestBashKeepsTheEndOfAFlood(t *testing.T) {
	root := bashFolder(t)
	flood := func(command string) string {
		runner := boxed(root)
		out, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": command}))
		var text string
		if err == nil {
			err = json.Unmarshal(out.Value, &text)
		}
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	lines := flood("seq 1000000")
	isTailOf(t, lines, sequence(1_000_000))
	if n := utf8.RuneCountInString(lines); n > base.MaxOutput || n < base.MaxOutput-200 { // short enough that the worker does not cut it again
		t.Errorf("got %d characters", n)
	}
	isTailOf(t, flood(`head -c 1500000 /dev/zero | tr '\000' x | sed 's/x/\xc3\xa4/g'`), strings.Repeat("\u00e4", 1_500_000))
	if got := flood("seq 100000"); got != sequence(100_000) {
		t.Errorf("less than a flood is cut: %.60q", got)
	}
}

func TestBashRefusesWhatNoShellCanRun(t *testing.T) {
	root := bashFolder(t)
	for _, input := range []in{{"command": " "}, {"command": "a\x00b"}, {"command": strings.Repeat("x", 128<<10)}, {"command": "ls", "timeout_ms": 0}, {"command": "ls", "Command": "rm x"}, {}} {
		refused(t, root, "Bash", input, messages.CodeInvalidArguments)
	}
}

func TestBashWithoutAnyShell(t *testing.T) {
	runner := boxed(bashFolder(t))
	t.Setenv("PATH", t.TempDir())
	_, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": "ls"}))
	var told *messages.Error
	if !errors.As(err, &told) || !strings.Contains(told.Message, "neither bash nor sh") {
		t.Errorf("got %v", err)
	}
}

// timesUp is a context whose error, once it is cancelled, is that of a deadline.
type timesUp struct{ context.Context }

func (timesUp) Value(any) any { return nil } // hides the inner context, and so its cause, from context.Cause

func (c timesUp) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

func TestBashTimeoutSaysWhatWasPrinted(t *testing.T) {
	root := bashFolder(t)
	runner := boxed(root)
	var told *messages.Error
	_, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": "sleep 1000", "timeout_ms": 20}))
	if !errors.As(err, &told) || told.Code != messages.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(told.Message, "killed") {
		t.Errorf("timeout_ms: got %v", err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	call := callOf(t, "Bash", in{"command": "echo begun; sleep 1000"})
	call.Progress = func(messages.Progress) { end() } // cancelled once the command has printed
	_, err = runner.Run(timesUp{ctx}, call)
	if !errors.As(err, &told) || told.Code != messages.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(told.Message, "killed\nbegun") {
		t.Errorf("got %v", err)
	}
}
