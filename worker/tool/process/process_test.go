package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

func needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
}

// sh runs a script that has only PATH in its environment.
func sh(ctx context.Context, script string, change func(*Command)) (Result, error) {
	c := Command{Args: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")}}
	if change != nil {
		change(&c)
	}
	return Run(ctx, c)
}

func TestRunReportsStreamsAndStatus(t *testing.T) {
	needs(t, "sh")
	for _, test := range []struct {
		script, stdin  string
		merge          bool
		stdout, stderr string
		status         string
	}{
		{script: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n", status: "exit status 0"},
		{script: "echo 1; echo 2 >&2; echo 3", merge: true, stdout: "1\n2\n3\n", status: "exit status 0"},
		{script: "cat", stdin: "a\x00b\xff", stdout: "a\x00b\xff", status: "exit status 0"},
		{script: "cat", status: "exit status 0"},
		{script: "exec <&-; exit 3", stdin: strings.Repeat("x", 1<<20), status: "exit status 3"},
		{script: "kill -TERM $$", status: "signal: terminated"},
	} {
		r, err := sh(t.Context(), test.script, func(c *Command) { c.Stdin, c.Merge = []byte(test.stdin), test.merge })
		if err != nil {
			t.Errorf("%s: %v", test.script, err)
		}
		got := []string{string(r.Stdout.Bytes()), string(r.Stderr.Bytes()), r.Status()}
		if diff := cmp.Diff([]string{test.stdout, test.stderr, test.status}, got); diff != "" {
			t.Errorf("%s: %s", test.script, diff)
		}
	}
}

func TestRunNamesWhatCouldNotStart(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"no-such-program-here": "run no-such-program-here: executable file not found in $PATH",
		plain:                  "run " + plain + ": permission denied",
	} {
		if _, err := Run(t.Context(), Command{Args: []string{name}}); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := Run(t.Context(), Command{}); err == nil {
		t.Error("a command without a program ran")
	}
}

// escapes are ways to start a process that outlives its parent. HOLD stands for a process that
// runs for ever, and wait_up for a wait until HOLD runs.
var escapes = map[string]string{
	"foreground":          `HOLD`,
	"background":          `HOLD & wait_up`,
	"nohup":               `nohup HOLD >/dev/null 2>&1 & wait_up`,
	"setsid":              `setsid HOLD >/dev/null 2>&1 </dev/null & wait_up`,
	"daemon":              `(setsid sh -c '(HOLD) &' >/dev/null 2>&1 </dev/null &) ; wait_up`,
	"holds our stdout":    `(setsid sh -c '(HOLD) &' &) ; wait_up`,
	"ignores signals":     `trap '' TERM HUP INT; HOLD & wait_up`,
	"emptied environment": `env -i "$(command -v setsid)" "$(command -v sh)" -c 'PATH=/usr/bin:/bin; HOLD' & wait_up`,
}

// hold fills in HOLD and wait_up in a script. It also returns the file to which HOLD writes
// its process id.
func hold(t *testing.T, escape string) (script, pidFile string) {
	t.Helper()
	pidFile = filepath.Join(t.TempDir(), "pid")
	holder := filepath.Join(t.TempDir(), "hold")
	body := fmt.Sprintf("echo $$ > %[1]s.new; mv %[1]s.new %[1]s; while :; do sleep 1000; done", pidFile)
	if err := os.WriteFile(holder, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	script = fmt.Sprintf("wait_up() { while [ ! -e %s ]; do sleep 0.01; done; }\n", pidFile)
	return script + strings.ReplaceAll(escape, "HOLD", "sh "+holder), pidFile
}

func TestNothingOutlivesTheCommand(t *testing.T) {
	needs(t, "sh", "setsid", "nohup", "env")
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("only /proc shows what left the process group")
	}
	for name, escape := range escapes {
		for _, end := range []string{"normal", "cancelled"} {
			if end == "normal" && !strings.Contains(escape, "wait_up") {
				continue
			}
			t.Run(name+"/"+end, func(t *testing.T) {
				script, pidFile := hold(t, escape)
				if end == "cancelled" {
					script += "\nwhile :; do sleep 1000; done"
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				stop := errors.New("stop")
				if end == "cancelled" {
					go func() { // once HOLD is known to run
						for ctx.Err() == nil {
							if pid, _ := os.ReadFile(pidFile); len(pid) > 0 {
								cancel(stop)
							}
							time.Sleep(time.Millisecond)
						}
					}()
				}
				_, err := sh(ctx, script, nil)
				if end == "cancelled" && !errors.Is(err, stop) || end == "normal" && err != nil {
					t.Fatalf("got %v", err)
				}
				raw, err := os.ReadFile(pidFile)
				if err != nil {
					t.Fatal(err)
				}
				if cmdline, _ := os.ReadFile("/proc/" + strings.TrimSpace(string(raw)) + "/cmdline"); len(cmdline) > 0 {
					t.Errorf("process %s still runs: %q", raw, cmdline)
				}
				cancel(nil)
			})
		}
	}
}

func TestRunOfAnEndedContextStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	mark := filepath.Join(t.TempDir(), "mark")
	if _, err := sh(ctx, "touch "+mark, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran")
	}
}

func TestOutputBufferKeepsHeadAndTail(t *testing.T) {
	var all []byte
	for i := range 300 {
		all = fmt.Appendf(all, "%d,", i)
	}
	for _, limit := range []int{1, 2, 7, 64, 500, len(all) - 1, len(all), 5000} {
		for _, step := range []int{1, 3, 10, 1000} {
			k := newOutputBuffer(limit, false)
			for rest := all; len(rest) > 0; {
				n := min(step, len(rest))
				k.add(rest[:n])
				rest = rest[n:]
			}
			out := k.output()
			half := max(limit/2, 1)
			if len(all) <= 2*half {
				if string(out.Bytes()) != string(all) || out.Dropped != 0 {
					t.Errorf("limit %d step %d: got %d bytes, %d dropped", limit, step, len(out.Bytes()), out.Dropped)
				}
				continue
			}
			if string(out.Head) != string(all[:half]) || string(out.Tail) != string(all[len(all)-half:]) || out.Dropped != int64(len(all)-2*half) {
				t.Errorf("limit %d step %d: got %q ... %q, %d dropped", limit, step, out.Head, out.Tail, out.Dropped)
			}
		}
	}
}

func TestFloodIsBounded(t *testing.T) {
	needs(t, "sh", "head", "tr")
	var seen int
	r, err := sh(t.Context(), "head -c 5000000 /dev/zero | tr '\\000' x", func(c *Command) {
		c.Limit, c.OnStdout = 1000, func(p []byte) { seen += len(p) }
	})
	if err != nil || seen != 5_000_000 || len(r.Stdout.Head)+len(r.Stdout.Tail) != 1000 || r.Stdout.Dropped != 4_999_000 {
		t.Errorf("got %v, %d seen, %d dropped", err, seen, r.Stdout.Dropped)
	}
}

// A command ends and its reader comes late, after the deadline of the read: everything in the
// pipe is still read.
func TestAReaderThatIsLateLosesNothing(t *testing.T) {
	begun, late := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c := Command{Merge: true, OnStdout: func([]byte) {
		once.Do(func() { close(begun) })
		<-late
	}}
	p, err := connect(exec.Command("true"), c)
	if err != nil {
		t.Fatal(err)
	}
	far := p.childEnds[0] // the end that a command would hold, kept open here
	p.childEnds = nil
	p.begin(c)
	say := func(text string) {
		if _, err := far.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	say("first ")
	<-begun
	say("and last")
	if err := errors.Join(far.Close(), p.stdout.SetReadDeadline(time.Now())); err != nil {
		t.Fatal(err)
	}
	close(late)
	p.wg.Wait()
	if stdout, _ := p.finish(0); string(stdout.Bytes()) != "first and last" {
		t.Errorf("read %q", stdout.Bytes())
	}
}

func TestLinesReportAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		l := NewLines(func(s string) { told = append(told, s) })
		l.Add([]byte("one\ntw"))
		l.Add([]byte("o\nthree\n"))
		l.Add([]byte("fo"))
		time.Sleep(ReportEvery)
		synctest.Wait()
		l.Add([]byte("ur"))
		l.Flush()
		l.Add([]byte("late\n"))
		l.Flush()
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"one", "two\nthree", "four"}, told); diff != "" {
			t.Error(diff)
		}
	})
}

func TestLinesKeepTheNewestOfAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		l := NewLines(func(s string) { told = append(told, s) })
		for i := range 100_000 {
			l.Add(fmt.Appendf(nil, "line %d\n", i))
		}
		l.Flush()
		if len(told) != 2 || len(told[1]) > MaxReport || !strings.HasSuffix(told[1], "line 99999") {
			t.Errorf("got %d reports, the last of %d bytes", len(told), len(told[len(told)-1]))
		}
		NewLines(nil).Add([]byte("nobody listens\n"))
	})
}

func TestEnvironIsScrubbed(t *testing.T) {
	t.Setenv("PATH", "/bin")
	t.Setenv("HOME", "/home")
	t.Setenv("LANG", "C")
	t.Setenv("NATS_CREDS", "secret")
	t.Setenv("DB_URL", "db")
	t.Setenv("TOOLFLEET_DEADLINE", "secret")
	call := tool.Call{Session: "s \n=", Batch: "b", ID: "c", Index: 2, Attempt: 3, IdempotencyKey: "ab", Fence: 1 << 63}
	t.Setenv("TRACEPARENT", "the worker's own")
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Tracestate": {"vendor=1"}})
	got, err := Environ(ctx, call, []string{"DB_URL", "NOT_SET", "TOOLFLEET_DEADLINE"})
	want := []string{
		"PATH=/bin", "HOME=/home", "LANG=C", "DB_URL=db", "TOOLFLEET_SESSION=s \n=", "TOOLFLEET_BATCH=b", "TOOLFLEET_CALL_ID=c",
		"TOOLFLEET_INDEX=2", "TOOLFLEET_ATTEMPT=3", "TOOLFLEET_IDEMPOTENCY_KEY=ab", "TOOLFLEET_FENCE=9223372036854775808",
		"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "TRACESTATE=vendor=1",
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	call.User, call.Labels = "bob", map[string]string{"env": "prod", "cost-center": "7", "a/b.c": "x y"}
	got, err = Environ(t.Context(), call, nil)
	for _, want := range []string{"TOOLFLEET_PRINCIPAL_USER=bob", "TOOLFLEET_LABEL_ENV=prod", "TOOLFLEET_LABEL_COST_CENTER=7", "TOOLFLEET_LABEL_A_B_C=x y"} {
		if err != nil || !slices.Contains(got, want) {
			t.Errorf("no %s in %q, %v", want, got, err)
		}
	}
	call.Batch = "b\x00"
	var refused *messages.Error
	if _, err := Environ(t.Context(), call, nil); !errors.As(err, &refused) || !strings.Contains(refused.Message, "TOOLFLEET_BATCH holds a NUL") {
		t.Errorf("got %v", err)
	}
}

func TestEnvironRefusesWhatNoVariableCanHold(t *testing.T) {
	needs(t, "true")
	longest := maxVariable - len("TOOLFLEET_CALL_ID=")
	env, err := Environ(t.Context(), tool.Call{ID: messages.CallID(strings.Repeat("x", longest))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Command{Args: []string{"true"}, Env: env}); err != nil {
		t.Errorf("the longest: %v", err)
	}
	var refused *messages.Error
	_, err = Environ(t.Context(), tool.Call{ID: messages.CallID(strings.Repeat("x", longest+1))}, nil)
	if !errors.As(err, &refused) || !strings.HasPrefix(refused.Message, "TOOLFLEET_CALL_ID is too long") {
		t.Errorf("got %.200v", err)
	}
}

func TestTailCountsWhatIsLost(t *testing.T) {
	all := strings.Repeat("one\ntwo \u00e4\n", 1000)
	for _, step := range []int{1, 3, 64, 100_000} {
		k := newOutputBuffer(100, true)
		for rest := []byte(all); len(rest) > 0; {
			n := min(step, len(rest))
			k.add(rest[:n])
			rest = rest[n:]
		}
		out := k.output()
		lost := all[:len(all)-100]
		if len(out.Head) != 0 || string(out.Tail) != all[len(lost):] || out.Dropped != int64(len(lost)) ||
			out.DroppedLines != strings.Count(lost, "\n") || out.DroppedChars != utf8.RuneCountInString(lost) {
			t.Errorf("step %d: got %q, %d bytes, %d lines, %d characters", step, out.Tail, out.Dropped, out.DroppedLines, out.DroppedChars)
		}
	}
}
