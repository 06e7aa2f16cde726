package process

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// markerName is an environment variable that every process of a command inherits.
// docs/adr/0007-a-mark-in-the-environment.md says why.
const markerName = "TOOLFLEET_PROCESS_TREE"

// tree is a command and all processes that it started.
type tree struct {
	marker []byte          // NAME=value, unique to this run
	pipes  map[string]bool // the command's streams, as they appear in /proc/<pid>/fd
	locked bool            // the goroutine that called start is locked to its thread
	pid    int
	// contained says that the command runs in a PID namespace, and the started process is
	// the first process there. When it is dead, the kernel has killed the whole tree.
	contained bool
	// startTime is when the command started, in clock ticks since boot. Older processes do
	// not belong to the tree.
	startTime uint64
	mu        sync.Mutex     // held while processes are listed
	killed    map[int]uint64 // start times of killed processes, by process id; guarded by mu
}

func newTree(cmd *exec.Cmd, env []string) *tree {
	marker := markerName + "=" + rand.Text()
	cmd.Env = append(env[:len(env):len(env)], marker)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		// When the worker dies, the kernel kills the command, but not processes that the
		// command has started.
		Pdeathsig: syscall.SIGKILL,
	}
	t := &tree{marker: []byte(marker), pipes: map[string]bool{}, killed: map[int]uint64{}}
	streams := []any{cmd.Stdin, cmd.Stdout, cmd.Stderr}
	for _, f := range cmd.ExtraFiles {
		streams = append(streams, f)
	}
	for _, stream := range streams {
		if f, ok := stream.(*os.File); ok {
			if info, err := f.Stat(); err == nil {
				t.pipes[fmt.Sprintf("pipe:[%d]", info.Sys().(*syscall.Stat_t).Ino)] = true
			}
		}
	}
	return t
}

// start starts the command. The kernel kills the command when the thread that started it ends
// (Pdeathsig). Therefore start locks the goroutine to its thread until release.
func (t *tree) start(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	t.locked = true
	if err := startKnown(cmd, t); err != nil {
		return err
	}
	t.pid = cmd.Process.Pid
	if st, err := readStat(t.pid); err == nil {
		t.startTime = st.startTime
	}
	return nil
}

// release undoes newTree and start. The goroutine that called start must call it, after
// Wait.
func (t *tree) release() {
	running.CompareAndDelete(t.pid, t)
	if t.locked {
		runtime.UnlockOSThread()
	}
}

// await returns when the command has ended. Wait can still collect the command then.
func (t *tree) await(*exec.Cmd) {
	for unix.Waitid(unix.P_PID, t.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// kill kills the tree. New processes may be forked meanwhile, so kill looks again. It stops
// when only processes of other users are left, which it cannot kill, or when drain has passed.
func (t *tree) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = syscall.Kill(-t.pid, syscall.SIGKILL)
	if t.contained {
		return
	}
	for deadline := time.Now().Add(drain); time.Now().Before(deadline); {
		found, survivors := t.members(), 0
		for _, st := range found {
			if err := syscall.Kill(st.pid, syscall.SIGKILL); err == syscall.EPERM {
				survivors++
			} else {
				t.killed[st.pid] = st.startTime
			}
		}
		if len(found) == survivors {
			break
		}
		time.Sleep(time.Millisecond) // killed processes need a moment to end
	}
	reap()
}

// maxListings limits how many times members lists all processes, in case new ones keep
// starting.
const maxListings = 20

// members returns the living processes of the tree. If the command itself has ended, it is not
// among them.
func (t *tree) members() []stat {
	var young []stat
	ours, seen := map[int]bool{t.pid: true}, map[int]bool{os.Getpid(): true}
	// A process may fork and end before members looks at it. So list again until nothing
	// new appears.
	for range maxListings {
		fresh := unseen(seen)
		if len(fresh) == 0 {
			break
		}
		for _, pid := range fresh {
			st, err := readStat(pid)
			if err != nil || st.startTime < t.startTime || st.dead() {
				continue
			}
			// While a killed process ends, it has neither environment nor streams. So it is
			// recognized by its start time.
			born, dying := t.killed[pid]
			if dying && born == st.startTime || st.group == t.pid || st.session == t.pid || t.marked(pid) || t.holds(pid) {
				ours[pid] = true
			}
			young = append(young, st)
		}
	}
	// Add the descendants of these processes, even those that have left the session.
	for grew := true; grew; {
		grew = false
		for _, st := range young {
			if !ours[st.pid] && ours[st.parent] {
				ours[st.pid], grew = true, true
			}
		}
	}
	var found []stat
	for _, st := range young {
		if ours[st.pid] {
			found = append(found, st)
		}
	}
	return found
}

// unseen returns the processes that are not in seen, and adds them to it.
func unseen(seen map[int]bool) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var fresh []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && !seen[pid] {
			seen[pid] = true
			fresh = append(fresh, pid)
		}
	}
	return fresh
}

// marked reports whether the process was started with this run's marker. For another user's
// process it returns false, because that environment cannot be read.
func (t *tree) marked(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(env, t.marker)
}

// holds reports whether the process holds a stream of the command. A process that this worker
// is just starting has copies of all streams until its exec. Therefore holds waits for the
// fork lock. A command in a user namespace execs after the fork lock is released, so holds
// also waits for the end of each Start.
func (t *tree) holds(pid int) bool {
	starting.Lock()
	defer starting.Unlock()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(dir + fd.Name()); err == nil && t.pipes[to] {
			return true
		}
	}
	return false
}

// stat holds the fields of /proc/<pid>/stat that show to which tree a process belongs.
type stat struct {
	pid, parent, group, session int
	state                       string
	startTime                   uint64 // clock ticks since boot
}

func (s stat) dead() bool { return s.state == "Z" || s.state == "X" }

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, string(raw))
}

// parseStat reads the fields after the command's name. That name is in parentheses and may
// contain anything.
func parseStat(pid int, raw string) (stat, error) {
	fields := strings.Fields(raw[strings.LastIndexByte(raw, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("stat of process %d: %d fields", pid, len(fields))
	}
	st := stat{pid: pid, state: fields[0]}
	var errs [4]error
	st.parent, errs[0] = strconv.Atoi(fields[1])
	st.group, errs[1] = strconv.Atoi(fields[2])
	st.session, errs[2] = strconv.Atoi(fields[3])
	st.startTime, errs[3] = strconv.ParseUint(fields[19], 10, 64)
	for _, err := range errs {
		if err != nil {
			return stat{}, err
		}
	}
	return st, nil
}
