package process

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// The first process of a container inherits every orphan and must collect it once it is dead. Commands of
// our own are not to be collected here: whoever started them waits for them.
var (
	// starting is held for reading from a command's fork until it is in running.
	starting sync.RWMutex
	running  sync.Map // process id -> *tree of the commands that may not have been waited for
)

// startKnown starts the command and makes it known to reap before reap can see it dead.
func startKnown(cmd *exec.Cmd, t *tree) error {
	starting.RLock()
	defer starting.RUnlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	running.Store(cmd.Process.Pid, t)
	return nil
}

// reap collects dead orphans, if this is the first process. A dead process may have threads that are
// still dying: those are waited for, for a moment.
func reap() {
	if os.Getpid() != 1 {
		return
	}
	self, err := readStat(1)
	if err != nil {
		return
	}
	for deadline := time.Now().Add(drain); collect(self.session) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// collect is one round of reap: it returns how many of the dead cannot be collected yet. Commands have
// sessions of their own, and so have the orphans they leave. A child in this process's own session is
// somebody else's who uses os/exec, and will be waited for.
func collect(session int) (left int) {
	var dead []int
	for _, pid := range unseen(map[int]bool{1: true}) {
		if st, err := readStat(pid); err == nil && st.state == "Z" && st.parent == 1 && st.session != session {
			dead = append(dead, pid)
		}
	}
	starting.Lock() // what was dead before is in running now, if it is ours
	defer starting.Unlock()
	for _, pid := range dead {
		if _, ours := running.Load(pid); ours {
			continue
		}
		if got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); got == 0 && err == nil {
			left++
		}
	}
	return left
}
