package programhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/hookjson"
	"github.com/toolfleet/toolfleet/worker/hook/programhook"
)

// python returns an interpreter, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no python3")
	return ""
}

// hooked is a hook that runs before and after a tool, with the folder and the log of its
// program.
type hooked struct {
	hook.Hook
	dir string
	log *bytes.Buffer // read it after the last call
}

// testHook returns a hook whose program is testdata/hooks.py.
func testHook(t *testing.T, change func(*schemas.HookProgram)) hooked {
	t.Helper()
	script, err := filepath.Abs("testdata/hooks.py")
	if err != nil {
		t.Fatal(err)
	}
	h := hooked{dir: t.TempDir(), log: &bytes.Buffer{}}
	program := schemas.HookProgram{Command: []string{python(t), script, h.dir}, Tool: schemas.DefaultHookTool, Processes: 1}
	if change != nil {
		change(&program)
	}
	log := slog.New(slog.NewTextHandler(&locked{w: h.log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	programs, err := programhook.New(programhook.Config{Dir: h.dir, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	target := programs.Target("h", program, []string{"GIVEN"})
	h.Hook = hookjson.New(hook.Hook{Name: "h", Budget: time.Minute}, target, programs.Target("h", program, []string{"GIVEN"}))
	t.Cleanup(func() {
		for _, kept := range h.Keep {
			kept.Stop()
		}
	})
	return h
}

// locked is a writer for many goroutines.
type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer // guarded by mu
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func callTo(do string) hook.Call {
	input, _ := json.Marshal(map[string]string{"do": do})
	return hook.Call{Tenant: "acme", Session: "s", Batch: "b", ID: "c", Tool: "Bash", Kind: messages.KindWrite, Input: input}
}

// says makes the hook run after a call, and returns the context that the hook adds. The test
// program answers in this context.
func (h hooked) says(t *testing.T, ctx context.Context, do string) string {
	t.Helper()
	change, err := h.After(ctx, callTo(do), hook.Done{Status: messages.StatusOK})
	if err != nil {
		t.Fatalf("%s: %v", do, err)
	}
	return change.Context
}

func TestAnswers(t *testing.T) {
	h := testHook(t, nil)
	for do, want := range map[string]hook.Verdict{
		"nothing": {}, "": {}, "deny": {Opinion: hook.Deny, Reason: "no"}, "noise": {}, "die once": {},
	} {
		if got, err := h.Before(t.Context(), callTo(do)); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", do, got, err, want)
		}
	}
}

// The program gives no valid answer: the hook returns an error with the cause. No error quotes
// the program.
func TestCouldNotRun(t *testing.T) {
	h := testHook(t, nil)
	for do, want := range map[string]hook.Fault{
		"die":     {Cause: hook.BadExit, Err: errors.New("its process ended twice: exit status 3")},
		"fail":    {Cause: hook.BadExit, Err: errors.New("its tool hook answered with an error")},
		"words":   {Cause: hook.BadAnswer, Err: errors.New("no JSON object")},
		"unknown": {Cause: hook.BadAnswer, Err: errors.New("a key is not known here")},
		"large":   {Cause: hook.BadAnswer, Err: errors.New("longer than 4194304 bytes")},
	} {
		got, err := h.Before(t.Context(), callTo(do))
		var fault *hook.Fault
		if !errors.As(err, &fault) || fault.Cause != want.Cause || !strings.Contains(err.Error(), want.Err.Error()) || !cmp.Equal(got, hook.Verdict{}) {
			t.Errorf("%s: got %+v, %v, want %q and %v", do, got, err, want.Cause, want.Err)
		}
		if strings.Contains(fmt.Sprint(err), "SECRET") {
			t.Errorf("%s: %v quotes the program", do, err)
		}
	}
	for _, kept := range h.Keep {
		kept.Stop()
	}
	if got := h.log.String(); !strings.Contains(got, "SECRET") || strings.Contains(got, "level=INFO") {
		t.Errorf("the log at level debug has not what the program said: %s", got)
	}
}

func TestAnotherTool(t *testing.T) {
	h := testHook(t, func(p *schemas.HookProgram) { p.Tool = "gone" })
	var fault *hook.Fault
	if _, err := h.Before(t.Context(), callTo("")); !errors.As(err, &fault) || fault.Cause != hook.BadExit || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("got %v", err)
	}
}

// The program of a gate is missing: the gate refuses calls. Once the program is there, calls
// pass without a restart of the worker.
func TestMissingProgram(t *testing.T) {
	interpreter := python(t)
	h := testHook(t, func(p *schemas.HookProgram) { p.Command = append([]string{"./hooks"}, p.Command[2:]...) })
	set, err := hook.NewSet(h.Hook)
	if err != nil {
		t.Fatal(err)
	}
	r := set.Before(t.Context(), callTo(""), nil)
	if r.Refused == nil || r.Refused.Cause != hook.NotStarted || r.Refused.Program != "./hooks" {
		t.Fatalf("got %+v, want a gate that did not start", r.Refused)
	}
	if failing := set.Failing(); len(failing) != 1 || failing[0].Hook != "h" {
		t.Errorf("failing are %v, want h", failing)
	}
	script, err := os.ReadFile("testdata/hooks.py")
	if err != nil {
		t.Fatal(err)
	}
	script = append([]byte("#!"+interpreter+"\n"), script...)
	if err := os.WriteFile(filepath.Join(h.dir, "hooks"), script, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := set.Before(t.Context(), callTo("deny"), nil); r.Opinion != hook.Deny || len(set.Failing()) > 0 {
		t.Errorf("once it is there: got %+v, failing %v", r, set.Failing())
	}
}

// The hooks of a set share a process from before the first call until the set ends.
func TestOneProcessServesAllCalls(t *testing.T) {
	h := testHook(t, nil)
	set, err := hook.NewSet(h.Hook)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		set.Run(ctx)
	}()
	first := h.says(t, t.Context(), "pid")
	if again := h.says(t, t.Context(), "pid"); again != first || first == "" {
		t.Errorf("the processes are %s and %s, want one", first, again)
	}
	if got := set.Before(t.Context(), callTo("deny"), nil); got.Opinion != hook.Deny {
		t.Errorf("got %+v", got)
	}
	cancel()
	<-ended
	if out, err := exec.Command("kill", "-0", first).CombinedOutput(); err == nil {
		t.Errorf("process %s lives after the set has ended: %s", first, out)
	}
}

// The process was killed between two calls: the next call gets a new process and succeeds.
func TestKilledProcess(t *testing.T) {
	h := testHook(t, nil)
	first := h.says(t, t.Context(), "pid")
	if out, err := exec.Command("kill", "-9", first).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if second := h.says(t, t.Context(), "pid"); second == first {
		t.Errorf("process %s lives", first)
	}
}

// A run does not end when its time is over: its process is killed, and the next call has a new
// process.
func TestHangingProcess(t *testing.T) {
	h := testHook(t, nil)
	first := h.says(t, t.Context(), "pid")
	pipe := filepath.Join(h.dir, "pipe")
	if out, err := exec.Command("mkfifo", pipe).CombinedOutput(); err != nil {
		t.Skipf("no named pipes here: %v: %s", err, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := h.Before(ctx, callTo("hang"))
		ended <- err
	}()
	f, err := os.Open(pipe) // opening waits until the run hangs
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the hook ended with %v, want its context's end", err)
	}
	if second := h.says(t, t.Context(), "pid"); second == first {
		t.Errorf("process %s, which hangs, lives", first)
	}
}

func TestRequest(t *testing.T) {
	h := testHook(t, nil)
	got := h.says(t, t.Context(), "request")
	for _, part := range []string{
		`"hook_event_name": "PostToolUse"`, `"session_id": "s"`, `"tool_name": "Bash"`, `"tool_input": {"do": "request"}`, `"tool_use_id": "c"`,
		`"tenant": "acme"`, `"cwd": "` + h.dir + `"`, `"status": "ok"`,
	} {
		if !strings.Contains(got, part) {
			t.Errorf("the program got %s, without %s", got, part)
		}
	}
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}})
	if got := h.says(t, ctx, "trace"); got != traceparent {
		t.Errorf("the program got the trace %q", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("TOKEN", "SECRET")
	t.Setenv("GIVEN", "yes")
	h := testHook(t, nil)
	got := h.says(t, t.Context(), "environment")
	for _, want := range []string{`"GIVEN": "yes"`, `"CLAUDE_PROJECT_DIR": "` + h.dir + `"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if strings.Contains(got, "SECRET") {
		t.Errorf("a variable of the worker is in %s", got)
	}
}

// The example in Python answers as examples/hooks/tidy.py does.
func TestTheExample(t *testing.T) {
	dir, err := filepath.Abs("../../../examples/hooks")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := programhook.New(programhook.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	target := programs.Target("tidy", schemas.HookProgram{Command: []string{python(t), "-B", "stays.py"}, Tool: schemas.DefaultHookTool, Processes: 1}, nil)
	h := hookjson.New(hook.Hook{Name: "tidy"}, target, target)
	defer h.Keep[0].Stop()
	call := callTo("")
	call.Input = json.RawMessage(`{"email": " Ann@Example.com"}`)
	v, err := h.Before(t.Context(), call)
	if err != nil || string(v.Input) != `{"email": "ann@example.com"}` {
		t.Errorf("before: got %+v, %v", v, err)
	}
	c, err := h.After(t.Context(), call, hook.Done{Status: messages.StatusOK, Outcome: messages.Text("pay with 4111 1111 1111 1111")})
	if err != nil || string(c.Output) != `"pay with [card number]"` {
		t.Errorf("after: got %+v, %v", c, err)
	}
}
