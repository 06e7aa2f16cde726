package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var processors = runtime.NumCPU()

// fleet is the processes of one contestant, such as the server, coordinators and workers of
// toolfleet.
type fleet struct {
	setup
	dir       string // of its data and logs
	addr      string // of its server
	submit    submit
	closers   []func()
	processes []*process
	// taps count the messages of each role; nil: the roles connect to the server itself.
	taps map[string]*tap
}

// setup is the part of a fleet that does not depend on the load.
type setup struct {
	sync    string // how often the server syncs: always, or a duration
	workers int
	slots   int      // of each worker
	env     []string // of toolfleet
}

type process struct {
	role string
	// counted says that the process is part of the fleet, so its processor time is the fleet's.
	counted bool
	cmd     *exec.Cmd
	log     string
	ended   chan struct{}
}

// start starts the program of a role. Its output goes to a file. If the fleet does not get ready,
// the error names that file.
func (f *fleet) start(role string, cmd *exec.Cmd) (*process, error) {
	p := &process{role: role, counted: true, cmd: cmd, ended: make(chan struct{})}
	log, err := os.CreateTemp(f.dir, role+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.log, cmd.Stdout, cmd.Stderr = log.Name(), log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// An interrupt from the terminal must reach only this process. The children must not outlive
	// it.
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	go func() { _ = cmd.Wait(); close(p.ended) }()
	f.processes = append(f.processes, p)
	return p, nil
}

// child starts this program again in a role; see the function child.
func (f *fleet) child(role, name, arg string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := f.start(role, exec.Command(self, "child", name, arg))
	if err != nil {
		return err
	}
	return p.until("is ready", func() bool {
		out, _ := os.ReadFile(p.log)
		return bytes.Contains(out, []byte(readyLine))
	})
}

// until waits until a condition holds.
func (p *process) until(what string, holds func() bool) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.ended:
			return p.problem("ended before it " + what)
		default:
		}
		if holds() {
			return nil
		}
	}
	return p.problem("took a minute and not yet " + what)
}

func (p *process) problem(what string) error { return fmt.Errorf("%s %s:\n%s", p.role, what, p.tail()) }

// tail returns the end of the process's output.
func (p *process) tail() []byte {
	out, _ := os.ReadFile(p.log)
	return out[max(0, len(out)-2000):]
}

// logs returns the ends of all outputs.
func (f *fleet) logs() string {
	var all strings.Builder
	for _, p := range f.processes {
		fmt.Fprintf(&all, "%s: %s\n", p.role, p.tail())
	}
	return all.String()
}

func (p *process) listens(addr string) error {
	return p.until("listens at "+addr, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func (p *process) isReady(addr string) error {
	return p.until("is ready", func() bool {
		answer, err := http.Get("http://" + addr + "/readyz")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK
	})
}

// stop ends the fleet and removes its data.
func (f *fleet) stop() {
	for _, end := range slices.Backward(f.closers) {
		end()
	}
	for _, p := range slices.Backward(f.processes) {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	_ = os.RemoveAll(f.dir)
}

// url returns where the processes of a role connect to.
func (f *fleet) url(role string) string {
	if t := f.taps[role]; t != nil {
		return "nats://" + t.addr
	}
	return "nats://" + f.addr
}

// freeAddr returns an address of this machine that is not in use.
func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// cpu returns the processor seconds that each role has used. The client is this process.
func (f *fleet) cpu() map[string]float64 {
	var self syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	seconds := func(t syscall.Timeval) float64 { return time.Duration(t.Nano()).Seconds() }
	used := map[string]float64{"client": seconds(self.Utime) + seconds(self.Stime)}
	for _, p := range f.processes {
		if p.counted {
			used[p.role] += cpuOf(p.cmd.Process.Pid)
		}
	}
	return used
}

// memory returns the megabytes of each role: the proportional set size, after freed memory was
// returned.
func (f *fleet) memory() map[string]float64 {
	used := map[string]float64{}
	for _, p := range f.processes {
		out, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
		for line := range strings.Lines(string(out)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
				kilobytes, _ := strconv.ParseFloat(fields[1], 64)
				used[p.role] += kilobytes / 1024
			}
		}
	}
	return used
}

// ticks is the unit of the kernel's times in /proc: 1/100 s on every Linux that Go runs on.
const ticks = 100

// cpuOf returns the processor seconds of a process and of its descendants, ended ones included.
// PostgreSQL has a process for each connection.
func cpuOf(root int) (seconds float64) {
	type process struct{ parent, ticks int }
	all := map[int]process{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		out, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		// Fields from the state on: the name before them may hold anything.
		fields := strings.Fields(string(out[bytes.LastIndexByte(out, ')')+1:]))
		p := process{}
		p.parent, _ = strconv.Atoi(fields[1])
		for _, field := range fields[11:15] { // utime, stime, and those of children that were waited for
			n, _ := strconv.Atoi(field)
			p.ticks += n
		}
		all[pid] = p
	}
	for pid, p := range all {
		ancestor := pid
		for ancestor != root && ancestor != 0 {
			ancestor = all[ancestor].parent
		}
		if ancestor == root {
			seconds += float64(p.ticks) / ticks
		}
	}
	return seconds
}

// machineBusy returns the processor seconds that the whole machine has used.
func machineBusy() (seconds float64) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0
	}
	defer f.Close()
	line, _ := bufio.NewReader(f).ReadString('\n')
	for i, field := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq
		if n, err := strconv.ParseFloat(field, 64); err == nil && i != 4 && i != 5 && i < 8 {
			seconds += n / ticks
		}
	}
	return seconds
}

// readyLine is printed by a child that is ready.
const readyLine = "READY"

// child runs a process of a contestant other than toolfleet.
func child(role, arg string) {
	roles := map[string]func(string) error{
		"floor-coordinator": floorCoordinator,
		"floor-worker":      floorWorker,
		"asynq-coordinator": asynqCoordinator,
		"asynq-worker":      asynqWorker,
		"river-coordinator": riverCoordinator,
		"river-worker":      riverWorker,
		"collector":         collector,
	}
	err := errors.New("no such role")
	if role := roles[role]; role != nil {
		err = role(arg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, cmp.Or(role, "child")+":", err)
		os.Exit(1)
	}
	fmt.Println(readyLine)
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	<-end
}
