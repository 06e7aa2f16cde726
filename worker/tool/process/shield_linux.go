package process

import (
	"fmt"
	"syscall"
)

// Shield keeps other processes of the same user, the commands that [Run] starts among them, from reading
// this process's environment and memory and from tracing it. It also means no core dump. Commands are not
// shielded themselves, so that Run can look at them. It does not hold against root.
func Shield() error {
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return fmt.Errorf("shield the process: %w", errno)
	}
	return nil
}
