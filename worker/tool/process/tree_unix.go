//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// tree is a command with the processes that have stayed in its process group.
type tree struct {
	pid       int
	contained bool
}

func newTree(cmd *exec.Cmd, env []string) *tree {
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &tree{}
}

func (t *tree) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	t.pid = cmd.Process.Pid
	return nil
}

func (t *tree) release() {}

// await returns when the command has ended.
func (t *tree) await(cmd *exec.Cmd) { _ = cmd.Wait() }

func (t *tree) kill() {
	_ = syscall.Kill(-t.pid, syscall.SIGKILL)
}
