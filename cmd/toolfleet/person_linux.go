package main

import (
	"os"
	"syscall"
)

// dropTyped forgets what was typed at a terminal and not read yet.
func dropTyped(terminal *os.File) {
	const tcflsh, input = 0x540B, 0
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), tcflsh, input) // what cannot be dropped is read
}
