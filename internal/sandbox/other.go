//go:build !linux

package sandbox

import (
	"os/exec"
	"runtime"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/enter"
)

// Local returns a machine without any mechanism, because the sandbox needs Linux.
func Local() Machine { return Machine{OS: runtime.GOOS} }

// MachineMemory returns 0: it is not known on this system.
func MachineMemory() int64 { return 0 }

func systemCallFilter(sockets, Namespaces) []byte { return nil }

type steps struct{}

func (*steps) seal([]enter.Step) error { return nil }

// Entry is one command on its way into a sandbox. This system has no sandboxes.
type Entry struct{}

// Wrap changes nothing.
func (b *Box) Wrap(*exec.Cmd) (*Entry, error) { return nil, nil }

// Started does nothing.
func (e *Entry) Started() {}

// Abandon does nothing.
func (e *Entry) Abandon() {}

// Refused returns nothing.
func (e *Entry) Refused() []string { return nil }

// Ended reports that the started process is the command itself.
func (e *Entry) Ended() (ws syscall.WaitStatus, ok bool, err error) { return ws, false, nil }
