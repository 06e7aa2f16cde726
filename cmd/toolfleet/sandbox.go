package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/localtools"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
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
	Verbose bool   `short:"v" help:"Show every path, and what enforces each property."`
	Tool    string `arg:"" optional:"" help:"Name of the tool or server, for example Bash. Default: list them."`
}

func (s sandboxExplainCmd) Run(a *command.App) error {
	if s.Tool == "" {
		return s.list(a)
	}
	policy, err := confinementOf(a, s.Tool)
	if err != nil {
		return err
	}
	plan := sandbox.Resolve(policy, sandbox.Local())
	if s.JSON() {
		return a.Print(map[string]any{"tool": s.Tool, "policy": policy, "layers": plan.Layers, "missing": plan.Missing})
	}
	if s.Verbose {
		return a.Table(everyPath(policy, plan))
	}
	if err := a.Table(summary(policy, plan, sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")))); err != nil {
		return err
	}
	a.Say("-v shows every path, and what enforces each property.")
	return nil
}

// list prints the tools and servers whose sandbox can be explained.
func (s sandboxExplainCmd) list(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	names, err := localtools.Confined(cfg)
	if err != nil {
		return err
	}
	type listed struct {
		Name    string   `json:"name"`
		Off     bool     `json:"off,omitempty"`
		Network string   `json:"network,omitempty"`
		Changes []string `json:"changes,omitempty"`
		Missing int      `json:"missing"`
	}
	all := []listed{}
	rows := [][]string{{"NAME", "NETWORK", "CHANGES", "MISSING"}}
	for _, name := range names {
		policy, ok, err := localtools.Confinement(cfg, localtools.Here, name)
		switch {
		case err != nil:
			return err
		case !ok:
			all = append(all, listed{Name: name, Off: true})
			rows = append(rows, []string{terminal.Clean(name, 64), "host", "everything: its sandbox is off", "-"})
			continue
		}
		missing := len(sandbox.Resolve(policy, sandbox.Local()).Missing)
		all = append(all, listed{name, false, string(policy.Network), policy.Write, missing})
		rows = append(rows, []string{terminal.Clean(name, 64), string(policy.Network), few(policy.Write, 2), fmt.Sprint(missing)})
	}
	if s.JSON() {
		return a.Print(map[string]any{"tools": all})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	a.Say("`toolfleet sandbox explain NAME` says more about one.")
	return nil
}

// everyPath returns every detail of a sandbox, one row each.
func everyPath(policy sandbox.Policy, plan sandbox.Plan) [][]string {
	rows := [][]string{
		{"changes", strings.Join(append(slices.Clone(policy.Write), policy.Temp), " ")},
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
	return rows
}

// summary returns the main facts of a sandbox, for one screen. system lists the paths that every
// command may read.
func summary(policy sandbox.Policy, plan sandbox.Plan, system []string) [][]string {
	own := slices.DeleteFunc(slices.Clone(policy.Read), func(name string) bool { return slices.Contains(system, name) })
	reads := "the system, PATH, and languages in the home folder"
	if len(own) > 0 {
		reads += "; " + few(own, 4)
	}
	hidden := "nothing"
	if len(policy.Hide) > 0 {
		hidden = few(policy.Hide, 4)
	}
	rows := [][]string{
		{"changes", few(append(slices.Clone(policy.Write), policy.Temp), 4)},
		{"reads", reads},
		{"protected", few(policy.Protect, 3)},
		{"hidden", hidden},
		{"network", string(policy.Network)},
		{"limits", policy.Limit.String()},
	}
	lacks := func(p sandbox.Property) bool {
		return slices.ContainsFunc(plan.Missing, func(m sandbox.Missing) bool { return m.Property == p })
	}
	var whole []string
	for _, l := range plan.Layers {
		if p := string(l.Property); !lacks(l.Property) && !slices.Contains(whole, p) {
			whole = append(whole, p)
		}
	}
	if len(whole) > 0 {
		rows = append(rows, []string{"ok", strings.Join(whole, ", ")})
	}
	for _, m := range plan.Missing {
		rows = append(rows, []string{"missing", m.String()})
	}
	return rows
}

// few joins the first paths of a list, and adds the number of the remaining paths.
func few(paths []string, most int) string {
	switch more := len(paths) - most; {
	case len(paths) == 0:
		return "nothing"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(paths[:most], " "), more)
	}
	return strings.Join(paths, " ")
}

type sandboxRunCmd struct {
	daemon.General
	command.ToolFlags
	Tool    string   `default:"Bash" placeholder:"NAME" help:"Tool or server whose sandbox it is. Default: Bash."`
	Command []string `arg:"" passthrough:"" help:"The command and its arguments."`
}

// Help returns the text that --help shows below the command's usage.
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
