package exechook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

var (
	aCall = hook.Call{
		Tenant: "acme", Session: "s", Batch: "b", ID: "toolu_1", Index: 2, Tool: "Bash", Kind: messages.KindWrite,
		Input: json.RawMessage(`{"command":"ls","n":9007199254740993}`),
	}
	anEnd = hook.Done{Status: messages.StatusOK, Outcome: messages.Text("done"), Duration: 1500 * time.Millisecond}
)

// script returns a hook whose programs, before and after the tool, are this shell script.
func script(t testing.TB, body string, change func(*Config)) hook.Hook {
	t.Helper()
	return scriptOf(t, "#!/bin/sh\n"+body+"\n", change)
}

func scriptOf(t testing.TB, file string, change func(*Config)) hook.Hook {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hook"), []byte(file), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "h", Before: []string{"./hook", "one", "two words"}, After: []string{"./hook"}, Dir: dir}
	if change != nil {
		change(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func say(answer string) string { return "cat >/dev/null; cat <<'EOF'\n" + answer + "\nEOF" }

func TestAnswersBefore(t *testing.T) {
	specific := func(members string) string {
		return say(`{"hookSpecificOutput":{"hookEventName":"PreToolUse",` + members + `}}`)
	}
	for _, tt := range []struct {
		body string
		want hook.Verdict
	}{
		{`exit 0`, hook.Verdict{}},
		{`echo; echo`, hook.Verdict{}},
		{`echo words >&2`, hook.Verdict{}},
		{say(`{}`), hook.Verdict{}},
		{say(`{"hookSpecificOutput":null,"decision":null,"continue":true}`), hook.Verdict{}},
		{specific(`"permissionDecision":"allow"`), hook.Verdict{Opinion: hook.Allow}},
		{specific(`"permissionDecision":"ask","permissionDecisionReason":"big"`), hook.Verdict{Opinion: hook.Ask, Reason: "big"}},
		{specific(`"permissionDecision":"deny","permissionDecisionReason":"no","additionalContext":"c"`), hook.Verdict{Opinion: hook.Deny, Reason: "no", Context: "c"}},
		{specific(`"updatedInput":{"command":"ls -l","n":9007199254740993}`), hook.Verdict{Input: json.RawMessage(`{"command":"ls -l","n":9007199254740993}`)}},
		{say(`{"hookSpecificOutput":{"permissionDecision":"allow"},"tool_use_id":"toolu_1"}`), hook.Verdict{Opinion: hook.Allow}},
		{say(`{"continue":false,"stopReason":"enough","systemMessage":"m","suppressOutput":true}`), hook.Verdict{Stop: true, StopReason: "enough"}},
		{say(`{"decision":"approve","reason":"fine"}`), hook.Verdict{Opinion: hook.Allow, Reason: "fine"}},
		{say(`{"decision":"block","reason":"no"}`), hook.Verdict{Opinion: hook.Deny, Reason: "no"}},
		{say(`{"decision":"approve","hookSpecificOutput":{"permissionDecision":"ask"}}`), hook.Verdict{Opinion: hook.Ask}},
		{say(`{"decision":"block","reason":"no","hookSpecificOutput":{"permissionDecision":"allow"}}`), hook.Verdict{Opinion: hook.Deny, Reason: "no"}},
		{`echo '{"decision":"approve"}'; echo ' no way ' >&2; exit 2`, hook.Verdict{Opinion: hook.Deny, Reason: "no way"}},
	} {
		got, err := script(t, tt.body, nil).Before(t.Context(), aCall)
		if err != nil {
			t.Errorf("%s: %v", tt.body, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.body, diff)
		}
	}
}

// Output that is not an answer is an error, before and after the tool. It is never an opinion, and
// never ignored.
func TestCouldNotRun(t *testing.T) {
	for _, tt := range []struct{ name, body, says string }{
		{"exit 1", `exit 1`, "exit status 1"},
		{"exit 1 with an answer", say(`{"decision":"approve"}`) + "\nexit 1", "exit status 1"},
		{"exit 2 without a word", `echo '{"decision":"approve"}'; exit 2`, "no reason on stderr"},
		{"exit 2 with blanks", `echo >&2; exit 2`, "no reason on stderr"},
		{"exit 126", `exit 126`, "exit status 126"},
		{"exit 127", `no-such-program-anywhere`, "exit status 127"},
		{"signal", `kill -TERM $$`, "signal: terminated"},
		{"garbage", `echo yes`, "answered with something that is no JSON object: "},
		{"half", `echo '{"decision":'`, "ends in the middle"},
		{"two", say(`{}` + "\n" + `{}`), "more than one JSON value"},
		{"words around it", say("thinking...\n{}"), "invalid character"},
		{"no UTF-8", `printf '{"reason":"\377"}'`, "not valid UTF-8"},
		{"array", say(`[]`), "want an object, got an array"},
		{"null", say(`null`), "want an object, got null"},
		{"text", say(`"allow"`), "want an object, got a string"},
		{"twice", say(`{"decision":"block","decision":"approve"}`), `twice`},
		{"twice inside", say(`{"hookSpecificOutput":{"additionalContext":"a","additionalContext":"b"}}`), `twice`},
		{"unknown key", say(`{"desicion":"block"}`), "a key is not known here"},
		{"another case", say(`{"Decision":"block"}`), "a key is not known here"},
		{"unknown key inside", say(`{"hookSpecificOutput":{"permisionDecision":"deny"}}`), "a key of hookSpecificOutput is not known here"},
		{"unknown decision", say(`{"decision":"deny"}`), "decision: want approve or block"},
		{"empty decision", say(`{"decision":""}`), "decision: want approve or block"},
		{"wrong type", say(`{"continue":"false"}`), "continue is a string"},
		{"wrong type inside", say(`{"hookSpecificOutput":{"additionalContext":1}}`), "additionalContext is a number"},
		{"specific no object", say(`{"hookSpecificOutput":"deny"}`), "want an object, got a string"},
		{"another call", say(`{"tool_use_id":"toolu_2","decision":"approve"}`), "about another call"},
		{"another event", say(`{"hookSpecificOutput":{"hookEventName":"Stop"}}`), "hookSpecificOutput.hookEventName: asked was P"},
		{"flood", `head -c 5000000 /dev/zero | tr '\000' ' '`, "more than 4194304 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := script(t, tt.body, nil)
			v, err := h.Before(t.Context(), aCall)
			if err == nil || !strings.Contains(err.Error(), tt.says) || !cmp.Equal(v, hook.Verdict{}) {
				t.Errorf("before: got %+v, %v, want an error with %q", v, err, tt.says)
			}
			c, err := h.After(t.Context(), aCall, anEnd)
			if err == nil || !strings.Contains(err.Error(), tt.says) || !cmp.Equal(c, hook.Change{}) {
				t.Errorf("after: got %+v, %v, want an error with %q", c, err, tt.says)
			}
		})
	}
	for _, tt := range []struct{ name, body, says string }{
		{"defer", say(`{"hookSpecificOutput":{"permissionDecision":"defer"}}`), "want allow, deny or ask"},
		{"empty decision", say(`{"hookSpecificOutput":{"permissionDecision":""}}`), "permissionDecision: want allow, deny or ask"},
		{"decision in capitals", say(`{"hookSpecificOutput":{"permissionDecision":"Allow"}}`), "want allow, deny or ask"},
		{"input no object", say(`{"hookSpecificOutput":{"updatedInput":[1]}}`), "updatedInput: want an object, got an array"},
		{"output before the tool", say(`{"hookSpecificOutput":{"updatedToolOutput":1}}`), "not known here"},
		{"answer to what comes after", say(`{"hookSpecificOutput":{"hookEventName":"PostToolUse"}}`), "asked was PreToolUse"},
	} {
		if v, err := script(t, tt.body, nil).Before(t.Context(), aCall); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %+v, %v, want an error with %q", tt.name, v, err, tt.says)
		}
	}
	for _, tt := range []struct{ name, body, says string }{
		{"input after the tool", say(`{"hookSpecificOutput":{"updatedInput":{}}}`), "not known here"},
		{"decision after the tool", say(`{"hookSpecificOutput":{"permissionDecision":"deny"}}`), "not known here"},
	} {
		if c, err := script(t, tt.body, nil).After(t.Context(), aCall, anEnd); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %+v, %v, want an error with %q", tt.name, c, err, tt.says)
		}
	}
}

// A program prints a secret: no error quotes it, because many people see errors. The text is
// logged once, at level debug.
func TestErrorsDoNotQuote(t *testing.T) {
	for _, body := range []string{
		`{"decision":"SECRET"}`, `{"SECRET":1}`, `{"reason":"a","SECRET":1,"SECRET":2}`, `[{"SECRET":1,"SECRET":2}]`,
		`{"hookSpecificOutput":{"permissionDecision":"SECRET"}}`, `{"hookSpecificOutput":{"hookEventName":"SECRET"}}`, `{"hookSpecificOutput":{"SECRET":1}}`,
	} {
		var log bytes.Buffer
		h := script(t, say(body), func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		if _, err := h.Before(t.Context(), aCall); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v", body, err)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "SECRET") || !strings.Contains(got, "call=toolu_1") {
			t.Errorf("%s: log %s", body, got)
		}
	}
}

// The program of an observer exits with 2 and writes to stderr: the run is an error and not an
// opinion. A shell exits like this if its script is missing, and a broken observer must not
// stop calls.
func TestObserverThatEndsWith2(t *testing.T) {
	for _, body := range []string{`echo no >&2; exit 2`, `echo '{"decision":"block"}'; echo no >&2; exit 2`} {
		h := script(t, body, func(c *Config) { c.Class = hook.Observe })
		if v, err := h.Before(t.Context(), aCall); err == nil || !cmp.Equal(v, hook.Verdict{}) {
			t.Errorf("%s: before: got %+v, %v, want an error", body, v, err)
		}
		if c, err := h.After(t.Context(), aCall, anEnd); err == nil || !cmp.Equal(c, hook.Change{}) {
			t.Errorf("%s: after: got %+v, %v, want an error", body, c, err)
		}
	}
	h := script(t, say(`{"decision":"block","reason":"no"}`), func(c *Config) { c.Class = hook.Observe })
	if v, err := h.Before(t.Context(), aCall); err != nil || v.Opinion != hook.Deny {
		t.Errorf("in JSON: got %+v, %v, want a deny", v, err)
	}
}

func TestAnswersAfter(t *testing.T) {
	specific := func(members string) string {
		return say(`{"hookSpecificOutput":{"hookEventName":"PostToolUse",` + members + `}}`)
	}
	blocks := []messages.Block{{Type: "text", Text: "a"}, {Type: "image", Data: "AA==", MimeType: "image/png"}}
	written := string(rawjson.MustMarshal(blocks))
	inBlocks := hook.Done{Status: messages.StatusOK, Outcome: messages.Outcome{Content: []messages.Block{{Type: "text", Text: "x"}}}}
	looksLikeBlocks := hook.Done{Status: messages.StatusOK, Outcome: messages.Outcome{Output: json.RawMessage(written)}}
	for _, tt := range []struct {
		name, body string
		done       hook.Done
		want       hook.Change
	}{
		{"nothing", `exit 0`, anEnd, hook.Change{}},
		{"block is context", say(`{"decision":"block","reason":"lint failed"}`), anEnd, hook.Change{Context: "lint failed"}},
		{"block beside context", say(`{"decision":"block","reason":"lint failed","hookSpecificOutput":{"additionalContext":"see x"}}`), anEnd, hook.Change{Context: "lint failed\nsee x"}},
		{"approve", say(`{"decision":"approve"}`), anEnd, hook.Change{}},
		{"exit 2 is context", `echo "lint failed" >&2; exit 2`, anEnd, hook.Change{Context: "lint failed"}},
		{"stop", say(`{"continue":false,"stopReason":"enough"}`), anEnd, hook.Change{Stop: true, StopReason: "enough"}},
		{"replaced", specific(`"updatedToolOutput":{"a":1.10}`), anEnd, hook.Change{Output: json.RawMessage(`{"a":1.10}`)}},
		{"replaced by text", specific(`"updatedToolOutput":"x","additionalContext":"c"`), anEnd, hook.Change{Output: json.RawMessage(`"x"`), Context: "c"}},
		{"blocks for blocks", specific(`"updatedToolOutput":` + written), inBlocks, hook.Change{Content: blocks}},
		{"text for blocks", specific(`"updatedToolOutput":"x"`), inBlocks, hook.Change{Output: json.RawMessage(`"x"`)}},
		{"an array that looks like blocks", specific(`"updatedToolOutput":` + written), looksLikeBlocks, hook.Change{Output: json.RawMessage(written)}},
		{"MCP blocks", specific(`"updatedMCPToolOutput":` + written), anEnd, hook.Change{Content: blocks}},
		{"MCP result", specific(`"updatedMCPToolOutput":{"content":` + written + `}`), anEnd, hook.Change{Content: blocks}},
		{"MCP text", specific(`"updatedMCPToolOutput":"x"`), anEnd, hook.Change{Output: json.RawMessage(`"x"`)}},
		{"of a failure", say(`{"hookSpecificOutput":{"hookEventName":"PostToolUseFailure","additionalContext":"c"}}`),
			hook.Done{Status: messages.StatusTimeout, Outcome: messages.Failed(messages.CodeTimeout, "late")}, hook.Change{Context: "c"}},
	} {
		got, err := script(t, tt.body, nil).After(t.Context(), aCall, tt.done)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// keeps returns a hook whose program writes its stdin and its number of arguments to files in
// dir. The function read returns the stdin.
func keeps(t *testing.T) (h hook.Hook, dir string, read func() string) {
	t.Helper()
	h = script(t, `cat > stdin; echo "$#" > args`, func(c *Config) { dir = c.Dir })
	return h, dir, func() string {
		t.Helper()
		stdin, err := os.ReadFile(filepath.Join(dir, "stdin"))
		if err != nil {
			t.Fatal(err)
		}
		return string(stdin)
	}
}

func TestRequest(t *testing.T) {
	h, dir, read := keeps(t)
	if _, err := h.Before(t.Context(), aCall); err != nil {
		t.Fatal(err)
	}
	want := `{"hook_event_name":"PreToolUse","session_id":"s","transcript_path":"","cwd":"` + dir + `","permission_mode":"default",` +
		`"tool_name":"Bash","tool_input":{"command":"ls","n":9007199254740993},"tool_use_id":"toolu_1","tenant":"acme","principal":{"tenant":"acme"},"batch":"b","index":2,"kind":"write"}`
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	if args, _ := os.ReadFile(filepath.Join(dir, "args")); string(args) != "2\n" {
		t.Errorf("started with %q arguments, want 2", args)
	}
	tail := `"tenant":"acme","principal":{"tenant":"acme"},"batch":"b","index":2,"kind":"write"`
	for _, tt := range []struct {
		done hook.Done
		want string
	}{
		{anEnd, `"hook_event_name":"PostToolUse"|"tool_response":"done","duration_ms":1500,` + tail + `,"status":"ok"}`},
		{hook.Done{Status: messages.StatusOK, Outcome: messages.Outcome{Content: []messages.Block{{Type: "text", Text: "a"}}}},
			`"hook_event_name":"PostToolUse"|"tool_response":[{"type":"text","text":"a"}],"duration_ms":0,` + tail + `,"status":"ok"}`},
		{hook.Done{Status: messages.StatusError, Outcome: messages.Outcome{Content: []messages.Block{{Type: "text", Text: "bad"}}, IsError: true}},
			`"hook_event_name":"PostToolUseFailure"|"tool_response":[{"type":"text","text":"bad"}],"error":"bad","is_interrupt":false,"duration_ms":0,` + tail + `,"status":"error"}`},
		{hook.Done{Status: messages.StatusAborted, Outcome: messages.Failed(messages.CodeAborted, "stopped")},
			`"hook_event_name":"PostToolUseFailure"|"error":"stopped","is_interrupt":true,"duration_ms":0,` + tail + `,"status":"aborted","error_code":"aborted"}`},
	} {
		if _, err := h.After(t.Context(), aCall, tt.done); err != nil {
			t.Fatal(err)
		}
		got := read()
		for _, part := range strings.Split(tt.want, "|") {
			if !strings.Contains(got, part) {
				t.Errorf("after %s: got %s\nwithout %s", tt.done.Status, got, part)
			}
		}
	}
	// Arguments that are not JSON reach an observer as a string.
	bad := aCall
	bad.Input = json.RawMessage(`{"a":`)
	if _, err := h.After(t.Context(), bad, hook.Done{Status: messages.StatusValidationError}); err != nil || !strings.Contains(read(), `"tool_input":"{\"a\":"`) {
		t.Errorf("got %v, %s", err, read())
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("TOKEN", "SECRET")
	t.Setenv("GIVEN", "yes")
	t.Setenv("TOOLFLEET_X", "SECRET")
	dir := ""
	h := script(t, `env > env; pwd -P > pwd`, func(c *Config) { c.Env, dir = []string{"GIVEN", "ABSENT"}, c.Dir })
	if _, err := h.Before(t.Context(), aCall); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	env := "\n" + string(raw)
	for _, want := range []string{"\nGIVEN=yes\n", "\nCLAUDE_PROJECT_DIR=" + dir + "\n", "\nPATH="} {
		if !strings.Contains(env, want) {
			t.Errorf("no %q in the environment:\n%s", want, env)
		}
	}
	for _, never := range []string{"SECRET", "TOKEN", "TOOLFLEET_CALL_ID", "TOOLFLEET_X"} {
		if strings.Contains(env, never) {
			t.Errorf("%q in the environment:\n%s", never, env)
		}
	}
}

func TestBudget(t *testing.T) {
	set, err := hook.NewSet(script(t, `sleep 60`, func(c *Config) { c.Budget, c.After = 50*time.Millisecond, nil }))
	if err != nil {
		t.Fatal(err)
	}
	r := set.Before(t.Context(), aCall, nil)
	if r.Refused == nil || r.Failures[0].Cancelled || !strings.Contains(r.Refused.Error(), "longer than its budget") {
		t.Fatalf("got %+v, want a gate that was too slow", r)
	}
}

// The time of a hook is over: the worker kills the hook and everything that the hook has
// started.
func TestNothingIsLeftRunning(t *testing.T) {
	dir := ""
	h := script(t, `(sleep 60 > pipe) & exec sleep 60`, func(c *Config) { dir = c.Dir })
	pipe := filepath.Join(dir, "pipe")
	if out, err := exec.Command("mkfifo", pipe).CombinedOutput(); err != nil {
		t.Skipf("no named pipes here: %v: %s", err, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := h.Before(ctx, aCall)
		ended <- err
	}()
	f, err := os.Open(pipe) // opening waits for the child of the hook
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the hook ended with %v, want its context's end", err)
	}
	// Read returns when no process of the hook holds the pipe open any more.
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("reading from the child: %v, want the end of it", err)
	}
}

func TestNew(t *testing.T) {
	for _, command := range [][]string{{}, {""}, {"a\x00b"}, {"a", "\x00"}} {
		if _, err := New(Config{Name: "h", Before: command}); err == nil || !strings.Contains(err.Error(), `hook "h"`) {
			t.Errorf("command %q: %v, want an error that names the hook", command, err)
		}
	}
	h, err := New(Config{Name: "h", Match: "m", Priority: 3, Class: hook.Observe, Budget: time.Minute, After: []string{"true"}})
	if err != nil || h.Before != nil || h.After == nil || h.Name != "h" || h.Match != "m" || h.Priority != 3 || h.Class != hook.Observe || h.Budget != time.Minute {
		t.Errorf("got %+v, %v", h, err)
	}
	if _, err := h.After(t.Context(), aCall, anEnd); err != nil {
		t.Errorf("a program of PATH: %v", err)
	}
}

// The program of a hook is missing: the worker logs it at its start, and each run is an error
// until the program is there. For a gate the line has level error, because the gate refuses
// all calls until then.
func TestMissingProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "hook")
	for _, class := range []hook.Class{"", hook.Gate, hook.Observe} {
		for command, why := range map[string]string{"./hook": "no such file or directory", program: "no such file or directory", "no-such-program-anywhere": "executable file not found in $PATH"} {
			var log bytes.Buffer
			h, err := New(Config{Name: "h", Class: class, Before: []string{command}, Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			level, means := "level=ERROR", "are refused"
			if class == hook.Observe {
				level, means = "level=WARN", "go on without it"
			}
			for _, want := range []string{level, means, "hook=h", "class=" + map[bool]string{true: "observe", false: "gate"}[class == hook.Observe], "program=" + command, `err="` + why + `"`} {
				if err != nil || !strings.Contains(log.String(), want) {
					t.Errorf("%s %s: %v, log %q without %s", class, command, err, log.String(), want)
				}
			}
			var fault *hook.Fault
			if _, err := h.Before(t.Context(), aCall); !errors.As(err, &fault) || fault.Cause != hook.NotStarted || err.Error() != "it did not start: "+why {
				t.Errorf("%s: got %v, want that it did not start: %s", command, err, why)
			}
		}
	}
	h, err := New(Config{Name: "h", Before: []string{"./hook"}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+say(`{"decision":"approve"}`)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Before(t.Context(), aCall); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a file that is not executable: %v", err)
	}
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Before(t.Context(), aCall); err != nil || v.Opinion != hook.Allow {
		t.Errorf("once it is there: got %+v, %v", v, err)
	}
}

// A script exists and cannot be started: the error says why.
func TestFirstLine(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0\n":           "it did not start: exec format error; a script needs a first line such as #!/bin/sh",
		"#!/no/such/shell\n": "it did not start: no such file or directory: what the first line of the script names",
	} {
		h := scriptOf(t, script, nil)
		if _, err := h.Before(t.Context(), aCall); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", script, err, want)
		}
	}
}

// The script in the documentation runs as it is printed, with no programs but bash and jq,
// which the text names. If a condition used a missing program, the script would let calls
// pass.
func TestTheDocumentedScript(t *testing.T) {
	path := t.TempDir()
	for _, program := range []string{"bash", "jq"} {
		file, err := exec.LookPath(program)
		if err != nil {
			t.Skipf("no %s: the script is not run", program)
		}
		if err := os.Symlink(file, filepath.Join(path, program)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", path)
	docs, err := os.ReadFile("../../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(docs), "```bash\n")
	block, _, _ = strings.Cut(block, "```")
	for command, want := range map[string]hook.Opinion{"ls": hook.None, "cat .env": hook.Deny} {
		call := aCall
		call.Input = rawjson.MustMarshal(map[string]string{"command": command})
		if v, err := scriptOf(t, block, func(c *Config) { c.Budget = time.Minute }).Before(t.Context(), call); err != nil || v.Opinion != want {
			t.Errorf("%s: got %+v, %v, want %q", command, v, err, want)
		}
	}
}

// A program writes to stderr: the text is logged at level debug with the call, and no error
// quotes it.
func TestStderrIsForDebugging(t *testing.T) {
	for _, tt := range []struct {
		body  string
		cause hook.Cause
		logs  bool
	}{
		{`echo SECRET >&2; exit 1`, hook.BadExit, true},
		{`echo SECRET >&2; echo SECRET`, hook.BadAnswer, true},
		{`echo SECRET >&2`, "", true},
		{`echo SECRET >&2; exit 2`, "", false},
		{`exit 1`, hook.BadExit, false},
	} {
		var log bytes.Buffer
		h := script(t, tt.body, func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		_, err := h.Before(t.Context(), aCall)
		var fault *hook.Fault
		if errors.As(err, &fault) != (tt.cause != "") || fault != nil && fault.Cause != tt.cause {
			t.Errorf("%s: got %v, want the cause %q", tt.body, err, tt.cause)
		}
		for _, part := range []string{"level=DEBUG", "SECRET", "hook=h", "session=s", "batch=b", "call=toolu_1"} {
			if strings.Contains(log.String(), part) != tt.logs {
				t.Errorf("%s: log %q, want %s in it: %v", tt.body, log.String(), part, tt.logs)
			}
		}
	}
}
