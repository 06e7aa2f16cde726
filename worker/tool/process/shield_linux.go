package process

import (
	"fmt"
	"syscall"
)

// Shield keeps other processes of the same user from reading this process's environment and
// memory, and from tracing it. That includes the commands that [Run] starts. It also keeps
// this process from dumping core. The commands themselves are not shielded, so that Run can
// inspect them. Root is not kept out.
func Shield() error {
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return fmt.Errorf("shield the process: %w", errno)
	}
	return nil
}
