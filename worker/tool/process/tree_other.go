//go:build !unix

package process

import (
	"os"
	"os/exec"
)

// tree is only the command, because this system does not show what the command starts.
type tree struct{ process *os.Process }

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

func (t *tree) kill() {
	_ = t.process.Kill()
}

// ended returns the exit status. This system has no signals.
func ended(state *os.ProcessState) (code int, signal string) { return state.ExitCode(), "" }
