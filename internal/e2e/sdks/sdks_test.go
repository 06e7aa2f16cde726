package sdks

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// clients are the programs, with additions to their environment. A slow one takes seconds for
// each case. It is tried over stdio only if SDK_ROUNDS is set.
var clients = []struct {
	name, program string
	env           []string
	slow          bool
}{
	{"sdk1", "sdk1.mjs", nil, false},
	{"client2-2026-07-28", "client2.mjs", []string{"VERSION=2026-07-28"}, false},
	{"client2-2025-11-25", "client2.mjs", []string{"VERSION=legacy"}, false},
	{"aisdk", "aisdk.mjs", nil, false},
	{"agents", "agents.mjs", nil, false},
	{"langchain", "langchain.mjs", nil, false},
	{"claude", "claude.mjs", nil, true},
}

// rounds returns how often the order of calls is tested.
func rounds(t *testing.T, slow bool) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("SDK_ROUNDS"), "20"))
	must(t, err)
	if slow && os.Getenv("SDK_ROUNDS") == "" {
		n = (n + 9) / 10
	}
	return n
}

// installed returns a folder with the client programs and the packages of TOOLFLEET_SDKS. It
// skips the test if TOOLFLEET_SDKS is not set.
func installed(t *testing.T) string {
	t.Helper()
	from := os.Getenv("TOOLFLEET_SDKS")
	if from == "" {
		t.Skip("TOOLFLEET_SDKS names no folder with the packages of package.json: .ci/run sdks installs them")
	}
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("clients")))
	must(t, os.Symlink(filepath.Join(from, "node_modules"), filepath.Join(dir, "node_modules")))
	return dir
}

func TestClients(t *testing.T) {
	dir := installed(t)
	toolfleet := filepath.Join(t.TempDir(), "toolfleet")
	if out, err := exec.Command("go", "build", "-o", toolfleet, "../../../cmd/toolfleet").CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	var seen conversations
	f := newFleet(t, seen.serve)
	for _, c := range clients {
		for _, over := range []string{"stdio", "http"} {
			t.Run(c.name+"/"+over, func(t *testing.T) {
				if c.slow && over == "stdio" && os.Getenv("SDK_ROUNDS") == "" {
					t.Skip("SDK_ROUNDS is not set")
				}
				t.Parallel()
				r := runner{t: t, f: f, rounds: rounds(t, c.slow), seen: &seen, dir: dir, program: c.program, session: t.Name(), env: append([]string{
					"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "NATS_URL=" + f.nats.URL(), fmt.Sprint("ROUNDS=", rounds(t, c.slow)), "SESSION=" + t.Name(),
				}, c.env...)}
				if over == "http" {
					r.env = append(r.env, "URL="+f.url)
				} else {
					r.env = append(r.env, "COMMAND="+toolfleet)
				}
				r.all()
			})
		}
	}
}

// serve adds the tools that the cases call.
func (s *conversations) serve(f *testFleet) {
	f.add(schemas.Tool{Name: "look", Kind: messages.KindRead}, `"note":{"type":"string"}`, func(_ context.Context, c tool.Call) (tool.Output, error) {
		var input struct{ Note string }
		if err := json.Unmarshal(c.Input, &input); err != nil {
			return tool.Output{}, err
		}
		of := s.conversationOf(c.Session)
		of.mu.Lock()
		defer of.mu.Unlock()
		return tool.Text(fmt.Sprintf("%d %s", of.notes, input.Note)), nil
	})
	f.add(schemas.Tool{Name: "note", Kind: messages.KindWrite}, "", func(_ context.Context, c tool.Call) (tool.Output, error) {
		of := s.conversationOf(c.Session)
		of.mu.Lock()
		defer of.mu.Unlock()
		of.notes++
		return tool.Text(fmt.Sprint(of.notes)), nil
	})
	f.add(schemas.Tool{Name: "fail", Kind: messages.KindRead}, "", func(context.Context, tool.Call) (tool.Output, error) {
		return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: "The shop is closed."}
	})
	f.add(schemas.Tool{Name: "meet", Kind: messages.KindRead}, "", func(ctx context.Context, c tool.Call) (tool.Output, error) {
		of := s.conversationOf(c.Session)
		of.log("enters")
		if len(of.history()) == 3 {
			close(of.full)
		}
		if err := wait(ctx, of.full); err != nil {
			return tool.Output{}, err
		}
		of.log("leaves")
		return tool.Text("all three are here"), nil
	})
	f.add(schemas.Tool{Name: "steps", Kind: messages.KindRead}, "", func(ctx context.Context, c tool.Call) (tool.Output, error) {
		c.Progress(messages.Progress{Fraction: 0.5, Text: "half"})
		return tool.Text("stepped"), wait(ctx, s.conversationOf(c.Session).steps)
	})
	// idle is a read, so that its end is known when it is cut off.
	f.add(schemas.Tool{Name: "idle", Kind: messages.KindRead}, "", func(ctx context.Context, c tool.Call) (tool.Output, error) {
		of := s.conversationOf(c.Session)
		of.entered <- c.Batch
		return tool.Text("was not cut off"), wait(ctx, of.gate)
	})
	f.add(schemas.Tool{Name: "hold", Kind: messages.KindWrite}, "", func(ctx context.Context, c tool.Call) (tool.Output, error) {
		of := s.conversationOf(c.Session)
		of.log("enters")
		of.entered <- c.Batch
		err := wait(ctx, of.gate)
		of.log("leaves")
		return tool.Text("held"), err
	})
}

func wait(ctx context.Context, open <-chan struct{}) error {
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runner runs the program of one client.
type runner struct {
	t       *testing.T
	f       *testFleet
	seen    *conversations
	dir     string
	program string
	session string
	rounds  int
	env     []string
}

// answer is a line that a program prints.
type answer struct {
	Case     string
	OK       bool
	Go       bool   // the program waits until the test has done its part
	Failed   string // why the case failed
	Cannot   string // why the client cannot run the case
	Protocol string
	Swapped  *int
}

// process is a running client program.
type process struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

// begin starts the program with some of the cases.
func (r *runner) begin(cases ...string) *process {
	r.t.Helper()
	cmd := exec.Command("node", r.program)
	cmd.Dir, cmd.Env, cmd.Stderr = r.dir, append(r.env, "CASES="+strings.Join(cases, ","), "ID=the-id"), r.t.Output()
	in, err := cmd.StdinPipe()
	must(r.t, err)
	out, err := cmd.StdoutPipe()
	must(r.t, err)
	// The program's own processes may outlive it, as Claude Code does, and may write to its
	// folder.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(r.t, cmd.Start())
	stuck := time.AfterFunc(40*time.Minute, func() { _ = cmd.Process.Kill() }) // the next read fails
	r.t.Cleanup(func() {
		stuck.Stop()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return &process{cmd, in, bufio.NewScanner(out)}
}

func (r *runner) read(p *process, want string) (a answer) {
	r.t.Helper()
	if !p.lines.Scan() {
		r.t.Fatalf("%s: the program has ended: %v", want, p.lines.Err())
	}
	if err := json.Unmarshal(p.lines.Bytes(), &a); err != nil || a.Case != want {
		r.t.Fatalf("want %s, got %v and %s", want, err, p.lines.Bytes())
	}
	if a.Failed != "" {
		r.t.Errorf("%s: %s", a.Case, a.Failed)
	}
	if a.Cannot != "" {
		r.t.Logf("%s: not tried: %s", a.Case, a.Cannot)
	}
	return a
}

func (r *runner) tell(p *process, what string) {
	r.t.Helper()
	_, err := io.WriteString(p.in, what+"\n")
	must(r.t, err)
}

func (r *runner) conversationOf(name string) *conversation {
	return r.seen.conversationOf(messages.SessionID(r.session + "-" + name))
}

func (r *runner) all() {
	p := r.begin("list", "call", "error", "order", "together", "reads", "progress", "cancel")
	if a := r.read(p, "list"); a.Protocol != "" {
		r.t.Logf("protocol %s", a.Protocol)
	}
	r.read(p, "call")
	r.read(p, "error")
	r.read(p, "order")
	if got := r.conversationOf("order").notes; got != r.rounds {
		r.t.Errorf("order: %d notes, want %d", got, r.rounds)
	}
	if a := r.read(p, "together"); a.Swapped != nil {
		overStdio := slices.ContainsFunc(r.env, func(s string) bool { return strings.HasPrefix(s, "COMMAND=") })
		if *a.Swapped > 0 && overStdio {
			r.t.Errorf("together: %d of %d reads came before their write", *a.Swapped, r.rounds)
		}
		r.t.Logf("together: %d of %d reads came before their write", *a.Swapped, r.rounds)
	}
	r.read(p, "reads")
	if got, want := strings.Join(r.conversationOf("reads").history(), " "), "enters enters enters leaves leaves leaves"; got != want {
		r.t.Errorf("reads: %s, want %s", got, want)
	}
	if a := r.read(p, "progress"); a.Go {
		close(r.conversationOf("progress").steps)
		r.read(p, "progress")
	}
	r.cancel(p)
	r.kill()
}

// cancel checks that an abort by the client aborts its call.
func (r *runner) cancel(p *process) {
	r.t.Helper()
	answers := make(chan answer, 1)
	go func() { answers <- r.next(p) }()
	select {
	case a := <-answers: // the client cannot abort
		if a.Cannot == "" {
			r.t.Errorf("cancel: %+v", a)
		}
		r.t.Logf("cancel: not tried: %s", a.Cannot)
		return
	case batch := <-r.conversationOf("cancel").entered:
		r.tell(p, "entered")
		if a := <-answers; !a.Go {
			r.t.Fatalf("cancel: %+v", a)
		}
		var status messages.Status
		until(r.t, "the cancelled call has ended", func() bool {
			reply, err := r.f.client.Get(r.t.Context(), messages.SessionID(r.session+"-cancel"), batch)
			if err == nil {
				status = reply.Results[0].Status
			}
			return err == nil
		})
		if status != messages.StatusAborted {
			r.t.Errorf("cancel: the call is %s", status)
		}
		r.tell(p, "aborted")
		r.read(p, "cancel")
	}
}

// next returns the next line of the program. The answer has no case if there is no line.
func (r *runner) next(p *process) (a answer) {
	if p.lines.Scan() {
		_ = json.Unmarshal(p.lines.Bytes(), &a)
	}
	return a
}

// kill checks that a call with an id outlives its client.
func (r *runner) kill() {
	r.t.Helper()
	first := r.begin("kill")
	if a := r.read(first, "kill"); !a.Go {
		return
	}
	of := r.conversationOf("kill")
	select {
	case <-of.entered:
	case <-time.After(time.Minute):
		r.t.Fatal("kill: the call does not run")
	}
	must(r.t, first.cmd.Process.Kill()) // SIGKILL
	_ = first.cmd.Wait()
	second := r.begin("kill")
	r.read(second, "kill")
	close(of.gate)
	r.read(second, "kill")
	if got := strings.Join(of.history(), " "); got != "enters leaves" {
		r.t.Errorf("kill: the write %s, want one run", got)
	}
}
