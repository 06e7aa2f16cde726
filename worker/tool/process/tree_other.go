//go:build !unix

package process

import (
	"os"
	"os/exec"
	"syscall"
)

// tree is the command only: on this system its children cannot be found.
type tree struct {
	process   *os.Process
	contained bool
}

func newTree(cmd *exec.Cmd, env []string) *tree {
	cmd.Env = env
	return &tree{}
}

func (t *tree) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	t.process = cmd.Process
	return nil
}

func (t *tree) release() {}

// await returns when the command has ended.
func (t *tree) await(cmd *exec.Cmd) { _ = cmd.Wait() }

func (t *tree) kill() {
	_ = t.process.Kill()
}

// ended returns the exit status. This system has no signals.
func ended(state *os.ProcessState) (code int, signal string) { return state.ExitCode(), "" }

func endedWith(syscall.WaitStatus) (code int, signal string) { return -1, "" }
