//go:build unix

package process

import (
	"os"
	"syscall"
)

// ended returns the exit status of the command, and the signal if a signal ended it.
func ended(state *os.ProcessState) (code int, signal string) {
	if state == nil {
		return -1, ""
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok {
		return endedWith(ws)
	}
	return state.ExitCode(), ""
}

func endedWith(ws syscall.WaitStatus) (code int, signal string) {
	if ws.Signaled() {
		return -1, ws.Signal().String()
	}
	return ws.ExitStatus(), ""
}
