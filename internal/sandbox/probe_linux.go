package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/enter"
)

// Local returns what this machine can do. It finds that out at the first call.
var Local = sync.OnceValue(probe)

// candidates lists sets of namespaces, the best set first.
var candidates = []Namespaces{
	{User: true, Mount: true, PID: true, OwnPID: true},
	{User: true, Mount: true},
	{Mount: true, PID: true, OwnPID: true},
	{Mount: true},
}

func probe() Machine {
	m := Machine{OS: "linux", Root: os.Geteuid() == 0, UID: os.Geteuid(), GID: os.Getegid()}
	const versionFlag = 1
	if abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, versionFlag); errno == 0 {
		m.Landlock = int(abi)
	}
	m.Seccomp = seccompIsThere()
	m.PIDBound = kernelIsAtLeast(6, 14)
	for _, n := range candidates {
		m.Namespaces = n
		err := try(m, NoNetwork)
		if err == nil {
			m.Namespaces.Net = true
			if err := try(m, AnyHost); err != nil {
				m.Namespaces.Net, m.WhyNot = false, err.Error()
			}
			return m
		}
		if m.WhyNot == "" {
			m.WhyNot = err.Error()
		}
	}
	m.Namespaces = Namespaces{}
	return m
}

func kernelIsAtLeast(major, minor int) bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var has [2]int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &has[0], &has[1]); err != nil {
		return false
	}
	return has[0] > major || has[0] == major && has[1] >= minor
}

func seccompIsThere() bool {
	// If the kernel has seccomp, it refuses this call with EFAULT, because the filter is
	// missing.
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0)
	return errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EACCES)
}

// try runs the helper on this machine, without a command, with the namespaces of m and this
// network.
func try(m Machine, network Reach) error {
	bare := m
	bare.Landlock, bare.Seccomp = 0, false
	plan := Resolve(Policy{Write: []string{filepath.Clean(os.TempDir())}, Network: network}, bare)
	list := plan.Steps
	if m.Namespaces.PID {
		list = list[:len(list)-1] // drop the last step, Fork
	}
	b := &Box{Plan: Plan{Spaces: plan.Spaces, Way: plan.Way}}
	if err := b.sealed.seal(append(list, enter.Step{Op: enter.Probe})); err != nil {
		return err
	}
	defer b.sealed.file.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"PATH=/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	entry, err := b.Wrap(cmd)
	if err != nil {
		return err
	}
	err = cmd.Start()
	entry.Started()
	if err != nil {
		entry.Abandon()
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return errors.New("new namespace: " + strings.TrimSpace(err.Error()))
	}
	left := cmd.Wait()
	if _, _, err := entry.Ended(); err != nil {
		return err
	}
	return left
}
