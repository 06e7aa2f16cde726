package process

import (
	"fmt"
	"syscall"
)

// Shield keeps other processes of the same user, including the commands that [Run] starts, from
// reading this process's environment and memory and from tracing it. It also keeps this process
// from leaving a core dump. It does not shield the commands, so that Run can inspect them, and it
// does not stop root.
func Shield() error {
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return fmt.Errorf("shield the process: %w", errno)
	}
	return nil
}
