package process

import (
	"fmt"
	"syscall"
)

// Shield keeps other processes of the same user, including the commands that [Run] starts, from
// reading this process's environment and memory and from tracing it. This process then also leaves
// no core dump. Commands themselves are not shielded, so that Run can inspect them. Shield does not
// stop root.
func Shield() error {
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return fmt.Errorf("shield the process: %w", errno)
	}
	return nil
}
