package mcptool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// pid returns the process id of the server, which its tool pid reports.
func pid(t *testing.T, s *Server) int {
	t.Helper()
	n, err := strconv.Atoi(run(t, served(t, s, "pid").Runner, newCall()))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// The process dies during a write: the outcome is unknown, and the next call has a new
// process.
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
		{"wait", messages.KindRead, 2, codeServerDown}, // a read runs once more
	} {
		cfg := testConfig(t, t.TempDir())
		cfg.Server.Override = map[string]schemas.Override{tt.tool: {Kind: tt.kind}}
		s := open(t, cfg)
		call, runs := newCall(), 0
		pid(t, s)
		call.Progress = func(messages.Progress) { // the tool runs now
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

// A call is cut off: if the server ends the call, its process goes on. Otherwise the process
// is killed.
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

// slowly is a context whose Done channel is closed by the test. Contexts that are derived from
// it end a moment later than its own channel.
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

// A call that has returned does not run any more, even if the client notices the cut-off
// before the worker does.
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

// A server is closed while its process is starting: the start is ended.
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

// A program prints text and ends at its start: the problem keeps a bounded number of lines.
// The secrets that the program's entry gives to it are masked.
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

// A server's process gets the variables that its entry names and sets, and no others of the
// worker.
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
