package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// pid returns the process id of the server.
func pid(t *testing.T, s *Server) int {
	t.Helper()
	n, err := strconv.Atoi(run(t, served(t, s, "pid").Runner, newCall()))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// A process that dies in a write leaves an unknown outcome, and the next call has a new process.
func TestAProcessThatDies(t *testing.T) {
	dir := t.TempDir()
	s := open(t, testConfig(t, dir))
	before := pid(t, s)
	const unknown = "outcome_unknown true crash may or may not have happened: the server test was lost while it ran it."
	if got := run(t, served(t, s, "crash").Runner, newCall()); !strings.HasPrefix(got, unknown) {
		t.Errorf("got %s", got)
	}
	if after := pid(t, s); after == before || alive(before) {
		t.Errorf("the process was %d and is %d", before, after)
	}
}

func TestAProcessThatIsKilled(t *testing.T) {
	for _, tt := range []struct {
		tool string
		kind messages.Kind
		runs int
		code messages.Code
	}{
		{"wait", "", 1, messages.CodeOutcomeUnknown},
		{"wait", messages.KindRead, 2, codeServerDown}, // it is run once more
	} {
		cfg := testConfig(t, t.TempDir())
		cfg.Server.Override = map[string]schemas.Override{tt.tool: {Kind: tt.kind}}
		s := open(t, cfg)
		call, runs := newCall(), 0
		pid(t, s)
		call.Progress = func(messages.Progress) { // now it runs
			runs++
			killProcess(s)
		}
		got := run(t, served(t, s, tt.tool).Runner, call)
		if runs != tt.runs || !strings.HasPrefix(got, string(tt.code)+" true ") {
			t.Errorf("%s: %d runs, then %s", tt.kind, runs, got)
		}
	}
}

// killProcess ends the process of a server as kill -9 does.
func killProcess(s *Server) {
	slot := s.pool.slots[0]
	slot.mu.Lock()
	defer slot.mu.Unlock()
	slot.session.stop(errors.New("killed by a test"))
}

// A server that ends a call when it is told to lives on. One that does not is killed.
func TestACallThatIsCutOff(t *testing.T) {
	stop := errors.New("stop")
	for name, killed := range map[string]bool{"wait": false, "hang": true} {
		cfg := testConfig(t, t.TempDir())
		if !killed {
			cfg.CancelGrace = time.Hour
		}
		s := open(t, cfg)
		before := pid(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		call := newCall()
		call.Progress = func(messages.Progress) { cancel(stop) }
		if _, err := served(t, s, name).Runner.Run(ctx, call); !errors.Is(err, stop) {
			t.Errorf("%s: %v", name, err)
		}
		if alive(before) == killed {
			t.Errorf("%s: is the process alive? %t", name, alive(before))
		}
		if after := pid(t, s); (after != before) != killed {
			t.Errorf("%s: the process was %d and is %d", name, before, after)
		}
	}
}

// slowly is a context that tells its children of its end a moment after the others.
type slowly struct {
	context.Context
	done chan struct{}
}

func (s slowly) Done() <-chan struct{} { return s.done }
func (s slowly) Err() error {
	select {
	case <-s.done:
		return context.Canceled
	default:
		return nil
	}
}

// When a call has returned, it does not run any more, also if the client hears first that
// it is cut off.
func TestACallThatIsCutOffHasEnded(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.CancelGrace = time.Millisecond
	s := open(t, cfg)
	for range 10 {
		before := pid(t, s)
		ctx := slowly{t.Context(), make(chan struct{})}
		call := newCall()
		call.Progress = func(messages.Progress) { close(ctx.done) }
		if _, err := served(t, s, "hang").Runner.Run(ctx, call); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if alive(before) {
			t.Fatal("the call runs on")
		}
	}
}

// A call that finds no process in its time was not run, and is not said to be unknown.
func TestEveryProcessIsBusy(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	held, err := s.pool.acquire(t.Context(), "a", true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = served(t, s, "crash").Runner.Run(ctx, newCall())
	var own *messages.Error
	if ctx.Err() == nil && (!errors.As(err, &own) || own.Code != codeServerBusy || !own.Retryable) {
		t.Errorf("got %v", err)
	}
	s.pool.release(held)
}

func TestTheServerGetsTheTrace(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}, "Tracestate": {"vendor=1"}})
	out, err := served(t, open(t, testConfig(t, t.TempDir())), "trace").Runner.Run(ctx, newCall())
	if err != nil || string(out.Value) != `"`+traceparent+` vendor=1"` {
		t.Errorf("got %s, %v", out.Value, err)
	}
}

// Closing a server ends its process.
func TestClose(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	before := pid(t, s)
	s.Close()
	if alive(before) {
		t.Error("the process is alive")
	}
	if got := run(t, served(t, s, "pid").Runner, newCall()); !strings.HasPrefix(got, "server_down true ") {
		t.Errorf("got %s", got)
	}
}

// Closing a server ends a start that is under way.
func TestCloseDuringAStart(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(t, dir)
	cfg.Server.Lock = filepath.Join(dir, "lock.json")
	if err := WriteLock(cfg.Server.Lock, NewLock(nil)); err != nil {
		t.Fatal(err)
	}
	begun := filepath.Join(dir, "begun")
	cfg.Server.Command = []string{"sh", "-c", "echo $$ > " + begun + ".new && mv " + begun + ".new " + begun + " && exec sleep 1000"}
	s := open(t, cfg)
	warmed := make(chan error, 1)
	go func() { warmed <- s.Warm(t.Context()) }()
	var started []byte
	for len(started) == 0 {
		select {
		case err := <-warmed:
			t.Fatal(err)
		case <-time.After(2 * time.Millisecond):
			started, _ = os.ReadFile(begun)
		}
	}
	s.Close()
	if err := <-warmed; err == nil || !strings.Contains(err.Error(), errClosed.Error()) {
		t.Errorf("got %v", err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(started))); err != nil || alive(pid) {
		t.Errorf("the process %d is alive, %v", pid, err)
	}
}

// While one call reads a list that has changed, another does not go by the old one.
func TestCallsWaitForAChangedList(t *testing.T) {
	entered, gate := make(chan struct{}, 2), make(chan struct{})
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	about := &mcp.Tool{Name: "look", InputSchema: json.RawMessage(`{"type":"object"}`)}
	server.AddTool(about, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, nil })
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if method == "tools/list" {
				entered <- struct{}{}
				<-gate
			}
			return next(ctx, method, r)
		}
	})
	here, there := mcp.NewInMemoryTransports()
	if _, err := server.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s := &session{client: client, calls: newCalls(), listing: make(chan struct{}, 1)}
	s.digests.Store(&map[string]string{"look": "old"})
	s.stale.Store(true)
	digests := make(chan string, 2)
	ask := func() {
		digest, err := s.digest(t.Context(), "look")
		if err != nil {
			t.Error(err)
		}
		digests <- digest
	}
	go ask()
	<-entered
	go ask()
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if digest, err := s.digest(short, "look"); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that has ended: got %s, %v", digest, err)
	}
	close(gate)
	if one, other := <-digests, <-digests; one == "old" || one != other {
		t.Errorf("got %s and %s", one, other)
	}
}

func TestResults(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	for name, want := range map[string]string{
		"noise":          `"ok"`,
		"structured":     `{"n":1}`,
		"digits":         `{"n":12345678901234567890,"f":1.10}`,
		"ask":            `"decline"`,
		"coded":          "no_customer false " + tooltest.Failure,
		"protocol_error": "tool_error false not [2Jthat",
	} {
		if got := run(t, served(t, s, name).Runner, newCall()); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	out, err := served(t, s, "blocks").Runner.Run(t.Context(), newCall())
	want := []messages.Block{
		{Type: "text", Text: "hé"},
		{Type: "image", Data: "cG5n", MimeType: "image/png"},
		{Type: "audio", Data: "d2F2", MimeType: "audio/wav"},
		{Type: "resource_link", URI: "file:///a", Name: "a"},
		{Type: "resource", Resource: &messages.Resource{URI: "file:///b", MimeType: "text/plain", Text: "b"}},
		{Type: "text", Text: `{"n":1}`},
	}
	if diff := cmp.Diff(want, out.Content); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestLargeOutput(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := run(t, served(t, s, "large").Runner, newCall()); len(got) != tooltest.FloodSize+len(tooltest.FloodTail)+2 {
		t.Errorf("got %d bytes: %.100s", len(got), got)
	}
}

// A message without an end ends the server, not the worker.
func TestEndlessOutput(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := run(t, served(t, s, "endless").Runner, newCall()); !strings.HasPrefix(got, "outcome_unknown true ") {
		t.Errorf("got %.300s", got)
	}
	pid(t, s)
}

// A definition that has changed since it was accepted is not run.
func TestAChangedDefinition(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := run(t, served(t, s, "change").Runner, newCall()); got != `"ok"` {
		t.Fatal(got)
	}
	// The notice of the change comes a moment after the answer.
	for got := ""; !strings.HasPrefix(got, "tool_changed false The server test has changed the definition of describe"); {
		if got = run(t, served(t, s, "describe").Runner, newCall()); got == `"changed"` {
			continue
		}
		if t.Context().Err() != nil {
			t.Fatal(got)
		}
	}
	if got := run(t, served(t, s, "echo").Runner, newCall()); got != `{}` {
		t.Errorf("another tool: %s", got)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(t, dir)
	cfg.Dir, cfg.Server.Lock = dir, "lock.json"
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "tools mcp accept") {
		t.Fatalf("without its lock file: %v", err)
	}
	listed, err := Look(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteLock(cfg.LockPath(), NewLock(listed.Tools)); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if len(s.Tools()) != len(listed.Tools) || s.pool.slots[0].session != nil {
		t.Errorf("%d tools of %d, and the server was started: %t", len(s.Tools()), len(listed.Tools), s.pool.slots[0].session != nil)
	}
	if got := run(t, served(t, s, "echo").Runner, newCall()); got != `{}` {
		t.Errorf("got %s", got)
	}

	// A server that cannot be started has its tools all the same.
	broken := cfg
	broken.Server.Command = []string{"./missing"}
	s = open(t, broken)
	got := run(t, served(t, s, "echo").Runner, newCall())
	if !strings.HasPrefix(got, "server_down true The server test does not run, so the call was not run: program ") || s.Down() == nil {
		t.Errorf("got %s, %v", got, s.Down())
	}

	// A lock file that somebody has changed by hand.
	raw, err := os.ReadFile(cfg.LockPath())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.LockPath(), []byte(strings.Replace(string(raw), "Does [31mecho.", "Does more.", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), `the definition of "echo" does not fit its digest`) {
		t.Errorf("got %v", err)
	}
}

func TestPromises(t *testing.T) {
	yes, no := true, false
	schema := json.RawMessage(`{"type":"object"}`)
	for _, tt := range []struct {
		name   string
		server schemas.Server
		d      Definition
		want   schemas.Tool
		ask    bool
		fails  string
	}{
		{"not trusted", schemas.Server{Prefix: "s__"}, Definition{ReadOnly: true}, schemas.Tool{Name: "s__t", Kind: "write", OnCrash: "once"}, true, ""},
		{"trusted read", schemas.Server{Trusted: true}, Definition{ReadOnly: true}, schemas.Tool{Name: "t", Kind: "read"}, false, ""},
		{"trusted write", schemas.Server{Trusted: true}, Definition{Destructive: &no}, schemas.Tool{Name: "t", Kind: "write", OnCrash: "once"}, false, ""},
		{"destructive", schemas.Server{Trusted: true}, Definition{Destructive: &yes, Idempotent: true}, schemas.Tool{Name: "t", Kind: "write", OnCrash: "idempotent"}, true, ""},
		{"nothing said", schemas.Server{Trusted: true}, Definition{}, schemas.Tool{Name: "t", Kind: "write", OnCrash: "once"}, true, ""},
		{"override", schemas.Server{Override: map[string]schemas.Override{"t": {Kind: "read", TimeoutMS: 7, Pool: "p"}}}, Definition{},
			schemas.Tool{Name: "t", Kind: "read", TimeoutMS: 7, Pool: "p"}, false, ""},
		{"override to ask", schemas.Server{Trusted: true, Override: map[string]schemas.Override{"t": {Ask: &yes}}}, Definition{ReadOnly: true},
			schemas.Tool{Name: "t", Kind: "read"}, true, ""},
		{"program", schemas.Server{Program: true}, Definition{Meta: map[string]any{"kind": "read", "timeout": "3s", "pool": "p", "later": 1}},
			schemas.Tool{Name: "t", Kind: "read", TimeoutMS: 3000, Pool: "p"}, false, ""},
		{"program of another kind", schemas.Server{Program: true}, Definition{Meta: map[string]any{"kind": "look"}}, schemas.Tool{}, false, `kind "look"`},
		{"program with a number", schemas.Server{Program: true}, Definition{Meta: map[string]any{"kind": 1}}, schemas.Tool{}, false, "toolfleet/kind is no text"},
		{"name too long", schemas.Server{Prefix: strings.Repeat("p", 64)}, Definition{}, schemas.Tool{}, false, "want 1 to 64"},
		{"schema", schemas.Server{}, Definition{InputSchema: json.RawMessage(`{"$ref":"http://evil.example/s"}`)}, schemas.Tool{}, false, "nothing is loaded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.d.Name = "t"
			if tt.d.InputSchema == nil {
				tt.d.InputSchema = schema
			}
			got, ask, err := Promise(tt.server, tt.d)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("got %v, want %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.want, err = func() (schemas.Tool, error) { tt.want.InputSchema = schema; return tt.want.WithDefaults() }(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || ask != tt.ask {
				t.Errorf("ask %t\n%s", ask, diff)
			}
		})
	}
}

// What a server says about itself is cleaned before anybody reads it.
func TestWordsAreCleaned(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := served(t, s, "echo").Description; got != "Does [31mecho." {
		t.Errorf("got %q", got)
	}
	if got := clean("a\u202eb\u2066c\x07d\U000E0041e\u0085f\tg\n\xff"); got != "abcdef\tg\n\uFFFD" {
		t.Errorf("got %q", got)
	}
}

func TestAServerThatCannotBeStarted(t *testing.T) {
	for name, tt := range map[string]struct{ command, says string }{
		"missing":            {"./missing", "no such file"},
		"ends at once":       {"echo no such table >&2; exit 3", "(exit status 3). It printed: no such table"},
		"speaks another way": {"while read line; do echo hello; done", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Server: schemas.Server{Name: "s", Command: []string{"sh", "-c", tt.command}}, Dir: t.TempDir()}
			if name == "missing" {
				cfg.Server.Command = []string{tt.command}
			}
			ctx := t.Context()
			if name == "speaks another way" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				cancel()
				tt.says = context.Canceled.Error()
			}
			if _, err := Look(ctx, cfg); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
			if _, err := Open(ctx, cfg); err == nil || strings.Contains(err.Error(), "no such table") {
				t.Errorf("the words of the server are in %v", err)
			} else if got := ProblemOf(err).Printed; name == "ends at once" && got != "no such table" {
				t.Errorf("the operator reads %q", got)
			}
		})
	}
}

// What a program prints about its start has a bounded number of lines, and not the secrets that its
// entry gives to it.
func TestWhatAServerPrintedBeforeItsEnd(t *testing.T) {
	t.Setenv("TOKEN", "tkn-0123456789")
	t.Setenv("FILE", "/srv/data")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("key-0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Server: schemas.Server{
			Name: "s", Command: []string{"sh", "-c", `seq 20 >&2; echo "$TOKEN $KEY $FILE" >&2; exit 1`}, Env: []string{"TOKEN", "FILE"},
			Values: []schemas.HTTPValue{{Name: "KEY", Secret: "key", Prefix: "Bearer "}},
		},
		Dir: dir, Secrets: secrets.Folder(dir),
	}
	_, err := Open(t.Context(), cfg)
	if got := ProblemOf(err); got.Printed != "14\n15\n16\n17\n18\n19\n20\n[secret] [secret] /srv/data" {
		t.Errorf("got %q, %v", got.Printed, err)
	}
}

// Neither the worker's variables nor another call's reach a server.
func TestTheEnvironmentOfAServer(t *testing.T) {
	t.Setenv("HIDDEN", "x")
	t.Setenv("GIVEN", "y")
	dir := t.TempDir()
	cfg := Config{Server: schemas.Server{Name: "s", Command: []string{"sh", "-c", "env > env.txt"}, Env: []string{"GIVEN"}, Values: []schemas.HTTPValue{{Name: "OWN", Template: "z"}}}, Dir: dir}
	_, _ = Look(t.Context(), cfg)
	raw, err := os.ReadFile(filepath.Join(dir, "env.txt"))
	if err != nil {
		t.Fatal(err)
	}
	env := "\n" + string(raw)
	if strings.Contains(env, "HIDDEN") || !strings.Contains(env, "\nGIVEN=y\n") || !strings.Contains(env, "\nOWN=z\n") {
		t.Errorf("got %s", env)
	}
}

var _ tool.Runner = (*runner)(nil)
