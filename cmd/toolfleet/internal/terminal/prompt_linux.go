package terminal

import (
	"os"
	"syscall"
)

// dropTyped discards what was typed at a terminal but not read yet.
func dropTyped(terminal *os.File) {
	const tcflsh, input = 0x540B, 0
	// On failure the typed input stays and is read as an answer.
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), tcflsh, input)
}
