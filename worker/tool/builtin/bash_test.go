package builtin

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func bashRoot(t *testing.T) *Root {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	root, err := OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestBashPromise(t *testing.T) {
	bashRoot(t)
	promise, _ := Promise("Bash")
	if promise.ShellCommand != "command" || promise.Kind != messages.Write || promise.OnCrash != messages.Once ||
		promise.TimeoutMS != 30_000 || promise.MaxOutput != 10_000 || promise.Truncate != schemas.TruncateTail {
		t.Errorf("got %+v", promise)
	}
	// Only bash reads a command as the classifier does.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sh"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if promise, _ := Promise("Bash"); promise.ShellCommand != "" {
		t.Error("commands for a plain sh are looked into")
	}
}

func TestBashRunsInTheFolder(t *testing.T) {
	root := bashRoot(t)
	for command, want := range map[string]string{
		"pwd -P":                    root.Dir() + "\n",
		"echo out; echo err >&2":    "out\nerr\n",
		"[[ -z $(cat) ]] && echo x": "x\n",
		"true":                      "",
		"printf 'a\\377b'":          "a\uFFFDb",
		"echo $TOOLFLEET_CALL_ID":   "c1\n",
	} {
		call := callOf(t, "Bash", in{"command": command, "description": "Tries a command"})
		call.ID = "c1"
		runner, err := New("Bash", root)
		if err != nil {
			t.Fatal(err)
		}
		out, err := runner.Run(t.Context(), call)
		if diff := cmp.Diff(string(messages.Quote(want)), string(out.Value)); err != nil || diff != "" {
			t.Errorf("%s: %v %s", command, err, diff)
		}
	}
}

// bashFails is the message of a command that must run and fail.
func bashFails(t *testing.T, root *Root, command string) string {
	t.Helper()
	runner, _ := New("Bash", root)
	_, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": command}))
	var told *messages.Error
	if !errors.As(err, &told) || told.Code != messages.CodeToolError {
		t.Fatalf("%s: got %v", command, err)
	}
	return told.Message
}

func TestBashFailureHoldsStatusAndOutput(t *testing.T) {
	root := bashRoot(t)
	for command, want := range map[string]string{
		"echo out; echo err >&2; exit 1": "exit status 1\nout\nerr",
		"exit 7":                         "exit status 7",
		"kill -TERM $$":                  "signal: terminated",
	} {
		if got := bashFails(t, root, command); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	long := bashFails(t, root, "seq 100000; exit 1")
	if len(long) > maxBashMessage+100 || !strings.HasPrefix(long, "exit status 1\n[... ") || !strings.HasSuffix(long, "\n100000") {
		t.Errorf("got %d bytes: %.60q", len(long), long)
	}
}

func TestBashRefusesWhatNoShellCanRun(t *testing.T) {
	root := bashRoot(t)
	for _, input := range []in{{"command": " "}, {"command": "a\x00b"}, {"command": "ls", "timeout_ms": 0}, {"command": "ls", "Command": "rm x"}, {}} {
		refused(t, root, "Bash", input, messages.CodeInvalidArguments)
	}
}

func TestBashWithoutAnyShell(t *testing.T) {
	runner, _ := New("Bash", bashRoot(t))
	t.Setenv("PATH", t.TempDir())
	_, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": "ls"}))
	var told *messages.Error
	if !errors.As(err, &told) || !strings.Contains(told.Message, "neither bash nor sh") {
		t.Errorf("got %v", err)
	}
}

func TestBashTimeoutSaysWhatWasPrinted(t *testing.T) {
	root := bashRoot(t)
	runner, _ := New("Bash", root)
	_, err := runner.Run(t.Context(), callOf(t, "Bash", in{"command": "echo begun; sleep 1000", "timeout_ms": 2000}))
	var told *messages.Error
	if !errors.As(err, &told) || told.Code != messages.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(told.Message, "killed\nbegun") {
		t.Errorf("got %v", err)
	}
}

func TestBashTellsProgressAndEndsWithItsContext(t *testing.T) {
	root := bashRoot(t)
	runner, _ := New("Bash", root)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	call := callOf(t, "Bash", in{"command": "echo begun; sleep 1000 & wait"})
	var told []string
	call.Progress = func(p messages.Progress) {
		told = append(told, p.Text)
		cancel(stop)
	}
	if _, err := runner.Run(ctx, call); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"begun"}, told); diff != "" {
		t.Error(diff)
	}
}
