// Package process tests the command toolfleet as its users run it: real processes, a real
// server, signals, disks and terminals. Behaviour that one process can show is tested in
// package e2e, in simulated time.
package process

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	fleetpkg "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// built is the folder of the binary, or "" before build has run.
var built string

// build compiles the command once for all tests of the package.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "toolfleet-e2e-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "toolfleet")
	if out, err := exec.Command("go", "build", "-o", path, "../../../cmd/toolfleet").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the command: %w\n%s", err, out)
	}
	return path, nil
})

// binary returns the path of the command. Under the race detector it skips the test, because
// the detector does not see other processes.
func binary(t *testing.T) string {
	t.Helper()
	if fleettest.RaceDetector {
		t.Skip("what runs in processes of its own is not seen by the race detector")
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// These tests mostly wait for their processes, so four of them run at once even on two cores.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serveNames {
		servesNames(os.Args[2])
		return
	}
	_ = flag.Set("test.parallel", "4") // before the flags are read, so that -parallel overrides it
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// daemon is a running process of the command.
type daemon struct {
	cmd *exec.Cmd
	log *lockedBuffer
}

// processes is a fleet of real processes: a NATS server, and the daemons that were started for
// it.
type processes struct {
	t    *testing.T
	url  string
	env  []string
	path string // of the command; "" means the one that build makes
}

func newProcesses(t *testing.T, env ...string) *processes {
	t.Helper()
	p := &processes{t: t, env: env}
	addr := natstest.FreeAddr(t)
	p.url = "nats://" + addr
	p.start("nats", "--listen", addr, "--data", natstest.DataDir(t))
	p.until("the server listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return p
}

// start runs a daemon until the test ends or kills it. If the test fails, it logs the daemon's
// output.
func (p *processes) start(args ...string) *daemon {
	p.t.Helper()
	d, err := p.launch(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		d.kill()
		if p.t.Failed() {
			p.t.Logf("%s said:\n%s", strings.Join(args, " "), d.log)
		}
	})
	return d
}

// executable returns the path of the command.
func (p *processes) executable() string {
	if p.path != "" {
		return p.path
	}
	return binary(p.t)
}

// launch starts a daemon that the caller must stop.
func (p *processes) launch(args ...string) (*daemon, error) {
	d := &daemon{cmd: exec.Command(p.executable(), args...), log: &lockedBuffer{}}
	d.cmd.Env = append(append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none"), p.env...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	return d, d.cmd.Start()
}

// ready starts a daemon with an HTTP address and waits until its /readyz reports that it is
// ready.
func (p *processes) ready(args ...string) *daemon {
	p.t.Helper()
	addr := natstest.FreeAddr(p.t)
	d := p.start(append(args, "--http", addr)...)
	p.until(args[0]+" is ready", func() bool {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return d
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Signal(syscall.SIGKILL)
	_ = d.cmd.Wait()
}

func (p *processes) until(what string, is func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain until %s", what)
		}
		<-time.NewTimer(10 * time.Millisecond).C
	}
}

func (p *processes) client() *client.Client {
	p.t.Helper()
	c, err := client.Connect(p.t.Context(), fleetpkg.Options{URL: p.url})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

// exec runs a command to its end and returns its stdout, stderr and exit status.
func (p *processes) exec(args ...string) (stdout, stderr string, code int) {
	p.t.Helper()
	cmd := exec.Command(p.executable(), args...)
	cmd.Env = append(append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none"), p.env...)
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = cmd.Run() // the caller checks the exit status
	return out.String(), talk.String(), cmd.ProcessState.ExitCode()
}

// bus connects to the server of the fleet.
func (p *processes) bus() *bus.Conn {
	p.t.Helper()
	conn, err := bus.Connect(p.t.Context(), bus.Options{URL: p.url, Name: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(conn.Close)
	return conn
}

// tools writes a tools file and returns its path and the path of the ledger. The tools sleep
// and echo are reads. hold is a read that waits until the file LEDGER.go exists, where LEDGER
// is the path of the ledger. note is a write that appends a line to the ledger.
func (p *processes) tools() (file, ledger string) {
	p.t.Helper()
	dir := p.t.TempDir()
	ledger = filepath.Join(dir, "ledger")
	file = filepath.Join(dir, "tools.yaml")
	body := `tools:
  - {name: sleep, kind: read, timeout: 60s, input_schema: {type: object}, builtin: sleep}
  - {name: echo, kind: read, input_schema: {type: object}, builtin: noop}
  - name: hold
    kind: read
    timeout: 60s
    input_schema: {type: object}
    env: [LEDGER]
    exec: {command: [sh, -c, 'while [ ! -e "$LEDGER.go" ]; do sleep 0.05; done']}
  - name: note
    kind: write
    input_schema: {type: object}
    env: [LEDGER, NAP]
    exec: {command: [sh, -c, 'echo "$TOOLFLEET_CALL_ID $TOOLFLEET_FENCE" >>"$LEDGER"; sleep "${NAP:-0}"; echo noted']}
    sandbox: {state: [.]}
`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.env = append(p.env, "LEDGER="+ledger)
	return file, ledger
}

func TestTwoWorkersShareABatch(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	file, dir := p.effectTools()
	p.ready("coordinator")
	p.worker(file, "w1", "--slots", "4")
	p.worker(file, "w2", "--slots", "4")
	c := p.client()
	calls := make([]call, 8)
	for i := range calls {
		calls[i].Name = "look"
	}
	b := canonical("s", "shared", calls...)
	if err := c.Submit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	p.started(dir, 8) // no call ends before all have started
	p.goOn(dir)
	reply := p.reply(c, b)
	by := map[string]int{}
	for _, r := range reply.Results {
		by[r.Worker]++
		if r.Status != messages.StatusOK || !r.WasConcurrent {
			t.Errorf("result %+v", r)
		}
	}
	if by["w1"] != 4 || by["w2"] != 4 {
		t.Errorf("8 reads on two workers with 4 slots each were run by %v", by)
	}
}

func TestAWorkerIsKilledDuringARead(t *testing.T) {
	t.Parallel()
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s")
	file, dir := p.effectTools()
	p.ready("coordinator")
	victim := p.worker(file, "victim")
	c := p.client()
	b := canonical("s", "read", call{"look", ""}, call{"look", ""})
	if err := c.Submit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	p.started(dir, 2)
	p.worker(file, "heir")
	victim.kill()
	p.goOn(dir)
	reply := p.reply(c, b)
	for _, r := range reply.Results {
		if r.Status != messages.StatusOK {
			t.Errorf("result %+v", r)
		}
		if r.Worker != "heir" || r.Attempt < 2 {
			t.Errorf("the read was ended by %s in attempt %d, want the heir in a later one", r.Worker, r.Attempt)
		}
	}
}

func TestAWorkerIsKilledDuringAWrite(t *testing.T) {
	t.Parallel()
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=2s", "TOOLFLEET_GRACE=500ms")
	file, ledger := p.tools()
	p.ready("coordinator")
	p.env = append(p.env, "NAP=60")
	victim := p.ready("worker", "--tools", file, "--name", "victim")
	c := p.client()
	done := make(chan messages.Reply, 1)
	go func() {
		reply, err := c.Run(t.Context(), canonical("s", "write", call{"note", ""}, call{"note", ""}, call{"echo", `{"n":2}`}))
		if err != nil {
			t.Errorf("%v", err)
		}
		done <- reply
	}()
	p.until("the write has begun", func() bool { b, _ := os.ReadFile(ledger); return len(b) > 0 })
	victim.kill()
	p.ready("worker", "--tools", file, "--name", "heir")
	reply := <-done
	var got []string
	for _, r := range reply.Results {
		got = append(got, string(r.Status))
	}
	if want := "outcome_unknown skipped ok"; strings.Join(got, " ") != want {
		t.Errorf("statuses %v, want %s", got, want)
	}
	if b, _ := os.ReadFile(ledger); strings.Count(string(b), "\n") != 1 {
		t.Errorf("the effect was had %d times:\n%s", strings.Count(string(b), "\n"), b)
	}
}

func TestACoordinatorIsKilledDuringABatch(t *testing.T) {
	t.Parallel()
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s")
	file, ledger := p.tools()
	victim := p.ready("coordinator")
	p.ready("worker", "--tools", file)
	c := p.client()
	b := canonical("s", "survivor", call{"echo", `{"n":0}`}, call{"note", ""}, call{"hold", ""}, call{"note", ""}, call{"echo", `{"n":4}`})
	if err := c.Submit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	p.until("the first write is done", func() bool { b, _ := os.ReadFile(ledger); return len(b) > 0 })
	p.ready("coordinator")
	victim.kill()
	if err := os.WriteFile(ledger+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reply := p.reply(c, b)
	for _, r := range reply.Results {
		if r.Status != messages.StatusOK {
			t.Errorf("result %+v", r)
		}
	}
	if lines, _ := os.ReadFile(ledger); strings.Count(string(lines), "\n") != 2 {
		t.Errorf("two writes left the ledger\n%s", lines)
	}
}
