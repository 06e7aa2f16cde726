//go:build unix

package soak

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// fleet holds the processes of a run: the server, coordinators and workers.
type fleet struct {
	dir, url     string
	release      func() // frees the server's address
	server       *member
	coordinators []*member
	workers      []*member
	log          *faultLog
	people       map[string]approval.Key // approvers by name
}

// member is one place in the fleet, such as worker 2. Its processes run one after another. A
// fault locks mu, so that a member has one fault at a time.
type member struct {
	name string // in faults and log files
	args func(process string) []string
	env  []string
	dir  string
	// old is the path of an older toolfleet, which every second process runs. It is "" if
	// there is none.
	old      string
	oldFirst bool // the first process runs the older toolfleet
	log      *faultLog

	mu      sync.Mutex
	started int      // number of processes so far; guarded by mu
	process *process // guarded by mu
}

// process is one process of a member.
type process struct {
	name      string
	startTime time.Time
	cmd       *exec.Cmd
	exited    chan struct{}

	mu       sync.Mutex
	expected bool // the run itself ended the process; guarded by mu
}

// Quick holds settings with short leases and waits, so that the longer faults outlast some of
// them.
var Quick = []string{
	"TOOLFLEET_CONFIG=none", "TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=" + lease.String(), "TOOLFLEET_GRACE=" + grace.String(),
	"TOOLFLEET_QUEUE_TIMEOUT=60s", "TOOLFLEET_DRAIN=5s", "TOOLFLEET_COORDINATOR_DRAIN=2s", "TOOLFLEET_ANNOUNCE=2s", "TOOLFLEET_WORKER_TTL=6s",
}

// Defaults runs toolfleet with its own defaults: no settings file is read.
var Defaults = []string{"TOOLFLEET_CONFIG=none"}

// newFleet builds the programs into dir and describes the fleet. It starts nothing.
func newFleet(dir string, cfg Config, log *faultLog) (*fleet, error) {
	if err := programs(dir, cfg.Programs); err != nil {
		return nil, err
	}
	tools, oldTools := filepath.Join(dir, "tools.yaml"), filepath.Join(dir, "oldtools.yaml")
	body := toolsFile(filepath.Join(dir, "effect"))
	for file, text := range map[string]string{tools: body, oldTools: strings.ReplaceAll(body, sandboxed, "")} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	people, policy, err := policyFile()
	if err != nil {
		return nil, err
	}
	rules := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		return nil, err
	}
	addr, release, err := natstest.HoldAddr()
	if err != nil {
		return nil, err
	}
	f := &fleet{dir: dir, url: "nats://" + addr, release: release, log: log, people: people}
	env := append(os.Environ(), cfg.Settings...)
	env = append(env, "NATS_URL="+f.url, "SOAK_LEDGER="+f.ledger(), "TOOLFLEET_POLICY="+rules,
		"TOOLFLEET_APPROVAL_TTL="+askFor.String())
	place := func(name string, args func(process string) []string) *member {
		m := &member{name: name, args: args, env: env, dir: dir, log: log}
		if cfg.OldPrograms != "" {
			m.old = filepath.Join(cfg.OldPrograms, "toolfleet")
			m.env = append(m.env[:len(m.env):len(m.env)], "TOOLFLEET_ERASABLE=true") // as the old build requires
		}
		return m
	}
	f.server = place(server, func(string) []string {
		return []string{"nats", "--listen", addr, "--data", filepath.Join(dir, "data")}
	})
	for i := range cfg.Coordinators {
		m := place(fmt.Sprint("coordinator-", i+1), func(string) []string { return []string{"coordinator"} })
		m.oldFirst = i%2 == 0
		f.coordinators = append(f.coordinators, m)
	}
	for i := range cfg.Workers {
		m := place(fmt.Sprint("worker-", i+1), nil)
		m.oldFirst = i%2 == 0
		m.args = func(process string) []string {
			if m.program() == m.old {
				return []string{"worker", "--tools", oldTools, "--name", process}
			}
			return []string{"worker", "--tools", tools, "--name", process}
		}
		f.workers = append(f.workers, m)
	}
	return f, nil
}

// Build builds the programs of a fleet into dir. A run whose [Config.Programs] names dir uses
// them.
func Build(dir string) error {
	const module = "github.com/toolfleet/toolfleet/"
	for name, pkg := range built {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), module+pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// built holds the packages of a fleet's programs, by name.
var built = map[string]string{"toolfleet": "cmd/toolfleet", "effect": "internal/e2e/soak/effect"}

// programs puts the programs into dir: links to the programs in from, or new builds if from is
// empty.
func programs(dir, from string) error {
	if from == "" {
		return Build(dir)
	}
	for name := range built {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// sandboxed lets a tool write to the ledger. The old build does not know this setting.
const sandboxed = " sandbox: {state: [.]},"

// toolsFile returns a tools file for [Tools]. Its timeouts are so long that no call times out,
// even on a busy machine.
func toolsFile(effect string) string {
	body := `tools:
  - {name: echo, kind: read, timeout: 30s, input_schema: {type: object}, builtin: noop}
  - {name: nap, kind: read, timeout: 30s, input_schema: {type: object}, builtin: sleep}
  - {name: mark, kind: write, on_crash: once, timeout: 30s, input_schema: {type: object}, builtin: noop}
  - {name: set, kind: write, on_crash: idempotent, timeout: 30s, input_schema: {type: object}, builtin: noop}
`
	for _, t := range []struct{ name, kind string }{
		{"look", "kind: read"}, {"put", "kind: write, on_crash: idempotent, retry: {attempts: 3, backoff: 50ms}"}, {"book", "kind: write, on_crash: once"},
		{"refund", "kind: write, on_crash: once"}, {"transfer", "kind: write, on_crash: idempotent"},
	} {
		body += fmt.Sprintf("  - {name: %s, %s, timeout: 30s, input_schema: {type: object}, env: [SOAK_LEDGER, SOAK_WORKER],%s exec: {command: [%q, %s]}}\n",
			t.name, t.kind, sandboxed, effect, t.name)
	}
	return body
}

func (f *fleet) ledger() string { return filepath.Join(f.dir, "ledger.jsonl") }

func (f *fleet) members() []*member {
	return append(append([]*member{f.server}, f.coordinators...), f.workers...)
}

// start starts every member, the server first.
func (f *fleet) start() error {
	for _, m := range f.members() {
		m.mu.Lock()
		err := m.start()
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if m == f.server {
			if err := f.listening(30 * time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// listening waits until the server accepts connections.
func (f *fleet) listening(patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", f.url[len("nats://"):])
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server does not listen: %w", err)
		}
	}
}

// stop ends every member, the server last.
func (f *fleet) stop() {
	members := f.members()
	var all sync.WaitGroup
	for _, m := range members[1:] {
		all.Go(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.term(10 * time.Second)
		})
	}
	all.Wait()
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.term(10 * time.Second)
	f.release()
}

// start starts the next process of the member. The caller holds mu.
func (m *member) start() error {
	m.started++
	p := &process{name: fmt.Sprintf("%s.%d", m.name, m.started), startTime: time.Now(), exited: make(chan struct{})}
	logs, err := os.OpenFile(filepath.Join(m.dir, "logs", m.name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logs.Close()
	program := m.program()
	slog.New(slog.NewTextHandler(logs, nil)).Info("process starts", "process", p.name, "program", program)
	p.cmd = exec.Command(program, m.args(p.name)...)
	p.cmd.Env = append(m.env[:len(m.env):len(m.env)], "SOAK_WORKER="+p.name)
	p.cmd.Stdout, p.cmd.Stderr = logs, logs
	// The process gets a process group of its own, so that a signal from the terminal does not
	// end the fleet before its history is read.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	m.process = p
	go m.supervise(p)
	return nil
}

// program returns the path of the toolfleet that the newest process runs. The caller holds mu.
func (m *member) program() string {
	if odd := m.started%2 == 1; m.old != "" && odd == m.oldFirst {
		return m.old
	}
	return filepath.Join(m.dir, "toolfleet")
}

// supervise waits until a process ends. If the run did not end it, supervise starts the next
// process.
func (m *member) supervise(p *process) {
	_ = p.cmd.Wait()
	died := time.Now()
	close(p.exited)
	p.mu.Lock()
	meant := p.expected
	p.mu.Unlock()
	if meant {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.startOrRecord()
	m.log.add(Fault{
		Member: m.name, Process: p.name, Act: Died, At: died, Until: time.Now(), Born: p.startTime, Status: p.cmd.ProcessState.String(),
	})
}

// startOrRecord starts the next process of a member. If that fails, it records the failure as
// a fault. The caller holds mu.
func (m *member) startOrRecord() {
	if err := m.start(); err != nil {
		m.log.add(Fault{Member: m.name, Process: m.name, Act: Died, At: time.Now(), Until: time.Now(), Status: err.Error()})
	}
}

// signal sends a signal to the process.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// end sends the signal and waits. It reports whether the process ended within patience.
func (p *process) end(s syscall.Signal, patience time.Duration) (ended bool) {
	p.mu.Lock()
	p.expected = true
	p.mu.Unlock()
	p.signal(s)
	select {
	case <-p.exited:
		return true
	case <-time.After(patience):
		return false
	}
}

// kill ends the process as a crash does. The caller holds mu.
func (m *member) kill() { m.process.end(syscall.SIGKILL, time.Hour) }

// term asks the process to end, and kills it if it takes too long. It returns the act that
// ended the process. The caller holds mu.
func (m *member) term(patience time.Duration) Act {
	if m.process == nil {
		return Term
	}
	if m.process.end(syscall.SIGTERM, patience) {
		return Term
	}
	m.kill()
	return Kill
}
