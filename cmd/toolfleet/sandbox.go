package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/sandbox"
)

type sandboxCmd struct {
	Explain sandboxExplainCmd `cmd:"" help:"Show what the commands of a tool, or the program of a server, may touch on this machine, and what the machine lacks."`
	Run     sandboxRunCmd     `cmd:"" help:"Run a command in the sandbox of Bash, or of another tool or server."`
}

type sandboxExplainCmd struct {
	daemon.General
	command.ToolFlags
	command.OutputFlags
	Tool string `arg:"" help:"Name of the tool or server, for example Bash."`
}

func (s sandboxExplainCmd) Run(a *command.App) error {
	policy, err := confinementOf(a, s.Tool)
	if err != nil {
		return err
	}
	plan := sandbox.Resolve(policy, sandbox.Local())
	if s.JSON() {
		return a.Print(map[string]any{"tool": s.Tool, "policy": policy, "layers": plan.Layers, "missing": plan.Missing})
	}
	rows := [][]string{
		{"changes", strings.Join(append(policy.Write, policy.Temp), " ")},
		{"reads", strings.Join(policy.Read, " ")},
		{"protected", strings.Join(policy.Protect, " ")},
		{"hidden", strings.Join(policy.Hide, " ")},
		{"network", string(policy.Network)},
		{"limits", policy.Limit.String()},
	}
	for _, l := range plan.Layers {
		rows = append(rows, []string{"ok", string(l.Property) + ": " + l.What})
	}
	for _, m := range plan.Missing {
		rows = append(rows, []string{"missing", m.String()})
	}
	return a.Table(rows)
}

type sandboxRunCmd struct {
	daemon.General
	command.ToolFlags
	Tool    string   `default:"Bash" placeholder:"NAME" help:"Tool or server whose sandbox it is. Default: Bash."`
	Command []string `arg:"" passthrough:"" help:"The command and its arguments."`
}

// Help is shown below the command's usage.
func (sandboxRunCmd) Help() string {
	return `The exit status is the command's. The limits of memory and processes, which a worker watches, do not hold here.`
}

func (s sandboxRunCmd) Run(a *command.App) error {
	policy, err := confinementOf(a, s.Tool)
	if err != nil {
		return err
	}
	box, err := sandbox.New(policy)
	if err != nil {
		return err
	}
	for _, m := range box.Plan.Missing {
		a.Say("missing: %s", m)
	}
	words := s.Command
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return command.Usagef("the command is missing: toolfleet sandbox run -- ls -l")
	}
	cmd := exec.CommandContext(a.Ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	cmd.Env = append(os.Environ(), box.Environ()...)
	return exitAs(runIn(box, cmd))
}

// runIn runs a command in a sandbox and returns its exit status.
func runIn(box *sandbox.Box, cmd *exec.Cmd) (status int, err error) {
	entry, err := box.Wrap(cmd)
	if err != nil {
		return 0, err
	}
	err = cmd.Start()
	entry.Started()
	if err != nil {
		entry.Abandon()
		return 0, err
	}
	left := cmd.Wait()
	ws, inside, err := entry.Ended()
	var exited *exec.ExitError
	switch {
	case err != nil:
		return 0, err
	case inside && ws.Signaled():
		return 128 + int(ws.Signal()), nil
	case inside:
		return ws.ExitStatus(), nil
	case errors.As(left, &exited):
		return exited.ExitCode(), nil
	}
	return 0, left
}

// exitAs ends this program with the exit status of a command.
func exitAs(status int, err error) error {
	if err == nil && status != 0 {
		os.Exit(status)
	}
	return err
}

func confinementOf(a *command.App, tool string) (sandbox.Policy, error) {
	cfg, err := a.Settings()
	if err != nil {
		return sandbox.Policy{}, err
	}
	policy, ok, err := localtools.Confinement(cfg, localtools.Here, tool)
	if err == nil && !ok {
		err = command.Usagef("%s has no sandbox: it runs no commands, or its sandbox is off", tool)
	}
	return policy, err
}
