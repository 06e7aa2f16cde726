package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// newProcessesWithShortLeases returns a fleet of processes with short leases. A worker that
// stalls for a second, as on a busy machine, keeps its lease. A worker stops its tool two
// seconds before others may take the call.
func newProcessesWithShortLeases(t *testing.T) *processes {
	t.Helper()
	return newProcesses(t, "TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=3s", "TOOLFLEET_GRACE=1s", "TOOLFLEET_DRAIN=1s")
}

// effectTools writes a tools file with the read look and the writes once, idem and check. Each
// run writes its start and its worker into the ledger, waits until the file "go" exists, and
// then writes its effect.
func (p *processes) effectTools() (file string, dir string) {
	p.t.Helper()
	dir = p.t.TempDir()
	file = filepath.Join(dir, "tools.yaml")
	script := `echo "start $WHO $TOOLFLEET_FENCE $TOOLFLEET_IDEMPOTENCY_KEY $$" >>"$DIR/ledger"
while [ ! -e "$DIR/go" ]; do sleep 0.05; done
echo "done $WHO $TOOLFLEET_FENCE $TOOLFLEET_IDEMPOTENCY_KEY $$" >>"$DIR/ledger"; echo "$WHO"`
	probe := `if grep -q "^done" "$DIR/ledger"; then echo done; else echo not_done; fi`
	var body strings.Builder
	body.WriteString("tools:\n")
	entry := func(name, more string) {
		fmt.Fprintf(&body, "  - name: %s\n    timeout: 60s\n    input_schema: {type: object}\n    env: [DIR, WHO]\n    exec: {command: [sh, %s]}\n    sandbox: {off: true} # its process id is the one that the test sees\n%s", name, filepath.Join(dir, "run.sh"), more)
	}
	entry("look", "    kind: read\n")
	entry("once", "    kind: write\n")
	entry("idem", "    kind: write\n    on_crash: idempotent\n")
	entry("check", fmt.Sprintf("    kind: write\n    on_crash: checkable\n    check: {command: [sh, %s]}\n", filepath.Join(dir, "probe.sh")))
	for name, text := range map[string]string{"tools.yaml": body.String(), "run.sh": script, "probe.sh": probe} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	p.env = append(p.env, "DIR="+dir)
	return file, dir
}

// worker starts a worker with a name that its tools know.
func (p *processes) worker(file, name string, flags ...string) *daemon {
	p.t.Helper()
	env := p.env
	defer func() { p.env = env }()
	p.env = append(append([]string(nil), env...), "WHO="+name)
	return p.ready(append([]string{"worker", "--tools", file, "--name", name}, flags...)...)
}

func (d *daemon) signal(s syscall.Signal) { _ = d.cmd.Process.Signal(s) }

// exited returns a channel that is closed when a daemon has ended.
func (p *processes) exited(d *daemon) <-chan struct{} {
	done := make(chan struct{})
	go func() { _ = d.cmd.Wait(); close(done) }()
	p.t.Cleanup(func() { // runs before the cleanup that kills it and waits too
		d.signal(syscall.SIGKILL)
		<-done
	})
	return done
}

func ledgerLines(dir string) (starts, dones []string) {
	body, _ := os.ReadFile(filepath.Join(dir, "ledger"))
	for line := range strings.Lines(string(body)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "start" {
			starts = append(starts, rest)
		} else {
			dones = append(dones, rest)
		}
	}
	return starts, dones
}

func (p *processes) started(dir string, n int) {
	p.t.Helper()
	p.until(fmt.Sprintf("%d runs have started", n), func() bool { starts, _ := ledgerLines(dir); return len(starts) >= n })
}

func (p *processes) goOn(dir string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// reply waits for the reply of a submitted batch.
func (p *processes) reply(c *client.Client, b messages.Batch) messages.Reply {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	reply, err := c.Await(ctx, b.Session, b.ID)
	if err != nil {
		p.t.Fatal(err)
	}
	return reply
}

// result waits for the result of the only call of a batch.
func (p *processes) result(c *client.Client, b messages.Batch) messages.Result {
	p.t.Helper()
	return p.reply(c, b).Results[0]
}

// hasEnded reports whether the process of a run has ended. The run's line in the ledger ends
// with its process id.
func hasEnded(line string) bool {
	var pid int
	_, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &pid)
	return err == nil && syscall.Kill(pid, 0) == syscall.ESRCH
}

// A worker is paused in the middle of a write until its lease has lapsed, and resumes when the
// call was decided without it. The call keeps its result.
func TestAWorkerSleepsThroughItsLease(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		tool string
		want messages.Status
	}{{"once", messages.StatusOutcomeUnknown}, {"idem", messages.StatusOK}} {
		t.Run(row.tool, func(t *testing.T) {
			t.Parallel()
			p := newProcessesWithShortLeases(t)
			file, dir := p.effectTools()
			p.ready("coordinator")
			sleeper := p.worker(file, "sleeper")
			c := p.client()
			b := canonical("s", "b", call{row.tool, ""})
			if err := c.Submit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			p.started(dir, 1)
			sleeper.signal(syscall.SIGSTOP)
			t.Cleanup(func() { sleeper.signal(syscall.SIGCONT) })
			p.worker(file, "heir")
			if row.tool == "idem" {
				p.started(dir, 2) // the heir has taken the call over and waits too
				sleeper.signal(syscall.SIGCONT)
				starts, _ := ledgerLines(dir)
				p.until("the process of the paused worker's run has ended", func() bool { return hasEnded(starts[0]) })
				p.goOn(dir)
			}
			r := p.result(c, b)
			sleeper.signal(syscall.SIGCONT)
			starts, _ := ledgerLines(dir)
			p.until("the process of the paused worker's run has ended", func() bool { return hasEnded(starts[0]) })
			p.goOn(dir)
			// Both workers still serve calls: nothing waits for the old claim. If the machine
			// stalls, a lease may lapse without a fault, so these calls may run again.
			for n := range 4 {
				if r := p.run(c, canonical("s", fmt.Sprint("after", n), call{"idem", ""})); r.Status != messages.StatusOK {
					t.Errorf("a later call: %+v", r)
				}
			}
			again := p.result(c, b)
			if r.Status != row.want || again.Status != row.want || again.Worker != r.Worker {
				t.Errorf("the result is %+v, and later %+v; want %s", r, again, row.want)
			}
			starts, dones := ledgerLines(dir)
			if row.want == messages.StatusOK {
				key := func(line string) string { return strings.Fields(line)[2] }
				if r.Worker != "heir" || key(starts[0]) != key(starts[1]) || strings.Fields(starts[0])[1] == strings.Fields(starts[1])[1] {
					t.Errorf("run by %s; runs %q", r.Worker, starts[:2])
				}
			}
			for _, line := range dones {
				if strings.Fields(line)[3] == strings.Fields(starts[0])[3] {
					t.Errorf("the run of the sleeper went on to its effect: %q", line)
				}
			}
		})
	}
}

func (p *processes) run(c *client.Client, b messages.Batch) messages.Result {
	p.t.Helper()
	if err := c.Submit(p.t.Context(), b); err != nil {
		p.t.Fatal(err)
	}
	return p.result(c, b)
}

// cutProxy is a TCP proxy that can be cut. Both ends then get no data and no error.
type cutProxy struct {
	addr string
	mu   sync.Mutex
	cut  bool // guarded by mu
}

func newCutProxy(t *testing.T, to string) *cutProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	w := &cutProxy{addr: l.Addr().String()}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
			go w.pass(near, far)
			go w.pass(far, near)
		}
	}()
	return w
}

func (w *cutProxy) pass(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if w.isCut() { // the data is dropped
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				_ = to.Close()
			}
			return
		}
	}
}

func (w *cutProxy) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

func (w *cutProxy) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

// The connection of a worker is cut while a tool runs. The tool is dead before another worker
// may start the call.
func TestACutOffWorkerKillsItsTool(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"once", "idem", "check"} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			p := newProcessesWithShortLeases(t)
			file, dir := p.effectTools()
			p.ready("coordinator")
			straight := p.url
			w := newCutProxy(t, strings.TrimPrefix(straight, "nats://"))
			p.url = "nats://" + w.addr
			p.worker(file, "cut off")
			p.url = straight
			c := p.client()
			b := canonical("s", "b", call{tool, ""})
			if err := c.Submit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			p.started(dir, 1)
			p.worker(file, "heir")
			w.setCut(true)
			starts, _ := ledgerLines(dir)
			if tool == "once" {
				if r := p.result(c, b); r.Status != messages.StatusOutcomeUnknown {
					t.Errorf("result %+v", r)
				}
			} else {
				p.started(dir, 2)
			}
			if !hasEnded(starts[0]) { // a takeover means that the lease has lapsed
				t.Error("the tool of the worker that was cut off outlived its lease")
			}
			p.goOn(dir)
			r := p.result(c, b)
			w.setCut(false)
			if tool != "once" && (r.Status != messages.StatusOK || r.Worker != "heir") {
				t.Errorf("result %+v", r)
			}
			if _, dones := ledgerLines(dir); tool != "once" && len(dones) != 1 {
				t.Errorf("effects %q", dones)
			}
		})
	}
}

// A worker gets SIGTERM while it runs a call, and drains. A second SIGTERM makes the worker
// hurry. A call that may run again then does so without waiting for the lease.
func TestTwoSIGTERMs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		tool string
		want messages.Status
	}{{"look", messages.StatusOK}, {"once", messages.StatusOutcomeUnknown}, {"idem", messages.StatusOK}, {"check", messages.StatusOK}} {
		t.Run(row.tool, func(t *testing.T) {
			t.Parallel()
			// The test does not wait for the lease or the drain.
			p := newProcesses(t, "TOOLFLEET_LEASE=10m", "TOOLFLEET_DRAIN=10m")
			file, dir := p.effectTools()
			p.ready("coordinator")
			going := p.worker(file, "going")
			c := p.client()
			b := canonical("s", "b", call{row.tool, ""})
			if err := c.Submit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			p.started(dir, 1)
			p.worker(file, "heir")
			exited := p.exited(going)
			going.signal(syscall.SIGTERM)
			p.until("the worker drains", func() bool { return strings.Contains(going.log.String(), "draining") })
			select {
			case <-exited:
				t.Fatal("a drain of ten minutes is over at once")
			default:
			}
			going.signal(syscall.SIGTERM)
			select {
			case <-exited:
			case <-time.After(time.Minute):
				t.Fatal("two SIGTERMs did not end it")
			}
			starts, _ := ledgerLines(dir)
			if !hasEnded(starts[0]) {
				t.Error("its tool is still running")
			}
			if row.tool != "once" {
				p.started(dir, 2)
				p.goOn(dir)
			}
			if r := p.result(c, b); r.Status != row.want {
				t.Errorf("result %+v", r)
			}
			if _, dones := ledgerLines(dir); row.want == messages.StatusOK && len(dones) != 1 {
				t.Errorf("effects %q", dones)
			}
		})
	}
}

// A call kills each worker that starts it. The call ends after it has killed five workers, and
// the other calls of its batch are answered.
func TestACallThatKillsItsWorkers(t *testing.T) {
	t.Parallel()
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=2s", "TOOLFLEET_GRACE=500ms")
	p.ready("coordinator")
	file := filepath.Join(t.TempDir(), "tools.yaml")
	body := `tools:
  - {name: echo, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: bombread, kind: read, timeout: 60s, input_schema: {type: object}, sandbox: {off: true}, exec: {command: [sh, -c, 'kill -9 $PPID; sleep 60']}}
  - {name: bombwrite, kind: write, on_crash: idempotent, timeout: 60s, input_schema: {type: object}, sandbox: {off: true}, exec: {command: [sh, -c, 'kill -9 $PPID; sleep 60']}}
`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	var workers []*daemon
	for n := range 6 {
		workers = append(workers, p.ready("worker", "--tools", file, "--name", fmt.Sprint("w", n)))
	}
	c := p.client()
	run := func(tool string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		reply, err := c.Run(ctx, canonical("s", tool, call{"echo", ""}, call{tool, ""}, call{"echo", ""}))
		if err != nil {
			t.Fatal(err)
		}
		return statuses(reply)
	}
	if got := run("bombread"); got != "ok error ok" {
		t.Errorf("with a read that kills: %s", got)
	}
	for n := range 5 {
		workers = append(workers, p.ready("worker", "--tools", file, "--name", fmt.Sprint("w", 6+n)))
	}
	if got := run("bombwrite"); got != "ok outcome_unknown ok" {
		t.Errorf("with a write that kills: %s", got)
	}
	var ended atomic.Int32
	for _, w := range workers {
		exited := p.exited(w)
		go func() { <-exited; ended.Add(1) }()
	}
	p.until("ten of 11 workers have ended", func() bool { return ended.Load() >= 10 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if reply, err := c.Run(ctx, canonical("s", "after", call{"echo", ""})); err != nil || statuses(reply) != "ok" {
		t.Errorf("with the one worker that is left: %s, %v", statuses(reply), err)
	}
}
