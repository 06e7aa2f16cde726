package process

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// The first process of a container inherits all orphans and must collect them when they
// have died. It must not collect commands of Run, because Run waits for these itself.
var (
	// starting is read-locked from the fork of a command until the command is in running.
	starting sync.RWMutex
	running  sync.Map // tree by process id, for commands whose Wait may not have returned
)

// startKnown starts the command, and adds it to running before reap can find it dead.
func startKnown(cmd *exec.Cmd, t *tree) error {
	starting.RLock()
	defer starting.RUnlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	running.Store(cmd.Process.Pid, t)
	return nil
}

// reap collects dead orphans if this process is the first one. For threads of dead
// processes that are still ending, it waits at most drain.
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

// collect does one round of reap. left is the number of dead processes that cannot be
// collected yet. Commands of Run and their orphans have sessions of their own. A child in
// this process's own session was started by other code with os/exec, which waits for it.
func collect(session int) (left int) {
	var dead []int
	for _, pid := range unseen(map[int]bool{1: true}) {
		if st, err := readStat(pid); err == nil && st.state == "Z" && st.parent == 1 && st.session != session {
			dead = append(dead, pid)
		}
	}
	starting.Lock() // waits until every command that has died before is in running
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
