// Package process runs a command for a tool and leaves nothing of it running.
//
//	Run --start--> command --fork--> children, grandchildren, daemons
//	     |  the command ended, or ctx did
//	     +--kill the tree--> SIGKILL to its process group, and to every other member that is found
//
// When [Run] returns, the command and everything that it has started are dead, no matter
// whether it ended by itself, ran into its deadline or was cancelled. A call that has a
// result must not change the world any more. There is no SIGTERM first. It would need a
// grace period, which is only a later deadline, and a worker that has lost its claim has no
// time for one.
//
// How the tree is found depends on the system. On Linux, the members of the tree are the
// process group, the session, living descendants, and every younger process that has the run's
// marker in its environment or holds one of its streams. This also finds daemons (setsid,
// double fork). Two kinds of process escape. A process of the first kind has done four things:
// it has left the session, lost its parent, emptied its environment and redirected its
// streams. A process of the second kind runs as another user: another user's daemon has
// started it for the command, or it is a setuid program. If a sandbox has a PID namespace,
// neither kind escapes, because the kernel kills the whole namespace. Container runtimes
// mostly do not allow PID namespaces. On other Unix systems only the process group dies, on
// Windows only the command itself.
//
// If a worker is the first process of its container, it also collects dead orphans.
//
// A command does not get this process's environment. On Linux a command of the same user
// could still read it in /proc, unless [Shield] prevents that. Root and processes with
// CAP_SYS_PTRACE can always read it.
//
// Run keeps the head and the tail of a long output. A command that does not read its input
// blocks nothing.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// Command says what to run. Only Args is required.
type Command struct {
	// Args is the program, absolute or looked up in PATH, and its arguments. No shell is
	// used.
	Args  []string
	Dir   string   // working directory; "": this process's own
	Env   []string // the whole environment, as NAME=value
	Stdin []byte
	// StdinFile is used as standard input instead of Stdin, for a command that gets input
	// while it runs. Run closes it.
	StdinFile *os.File
	// Merge writes stderr into stdout, in the order of the writes.
	Merge bool
	// Limit is how many bytes of stdout are kept: half of it for the head, half for the tail.
	// LimitStderr is the limit of stderr. Default 1 MiB, at most 64 MiB.
	Limit, LimitStderr int
	// TailOnly keeps only the newest bytes, up to the limit, and no head.
	TailOnly bool
	// OnStdout and OnStderr get each chunk as it arrives. Each is called from one
	// goroutine, and never after Run has returned. They must not keep the slice, and must
	// be quick, because the command waits for them.
	OnStdout, OnStderr func(chunk []byte)
	// OnProgress, if set, gets what the command writes to its file descriptor 3, in the
	// same way. [ProgressName] tells the command about the descriptor. The command need not
	// write to it, and what it writes is not kept. Not available on Windows.
	OnProgress func(chunk []byte)
	// Sandbox confines the command. Nil: it may do what this process may.
	Sandbox *sandbox.Box
	// Stays says that the command serves many calls. Its memory and number of processes
	// are then checked less often.
	Stays bool
}

// ProgressName is the environment variable that tells a command where to report progress. Its value
// is [ProgressFD].
const (
	ProgressName = "TOOLFLEET_PROGRESS_FD"
	ProgressFD   = 3
)

// Times between two checks of the limits. Most commands end before the first check. A check
// reads data about every process of the machine.
const (
	watchEvery   = 100 * time.Millisecond
	watchStaying = time.Second
)

const (
	defaultLimit = 1 << 20
	maxLimit     = 64 << 20
	// drain limits the wait for the last output after the whole tree was killed. The wait
	// takes that long only if a process escapes the kill.
	drain = time.Second
)

// Result says how a command ended.
type Result struct {
	Stdout, Stderr Output
	// ExitCode is the exit status, or -1 when a signal ended the command.
	ExitCode int
	Signal   string // the signal that ended the command, in the system's words; "" if it exited
	// Over says, in words, for which limit of the sandbox the command was killed. "": for
	// none.
	Over string
	// Refused lists what the proxy of the sandbox refused, in words.
	Refused  []string
	Duration time.Duration
}

// Status returns in words how the command ended: "exit status 3", "signal: killed".
func (r Result) Status() string {
	if r.Over != "" {
		return "killed, because " + r.Over
	}
	if r.Signal != "" {
		return "signal: " + r.Signal
	}
	return fmt.Sprintf("exit status %d", r.ExitCode)
}

// Run runs the command until it ends or ctx ends. Then it kills the rest of its process tree.
// If the command ran, there is a Result. If ctx ended first, the error is the cause of ctx,
// and the Result has the output up to then. There is no error if the command still ended with
// exit status 0. Any other error means that the command never ran.
func Run(ctx context.Context, c Command) (Result, error) {
	if err := ctx.Err(); err != nil {
		closeAll([]*os.File{c.StdinFile})
		return Result{}, context.Cause(ctx)
	}
	if len(c.Args) == 0 {
		closeAll([]*os.File{c.StdinFile})
		return Result{}, errors.New("no command to run")
	}
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	pipes, err := connect(cmd, c)
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	env := append(c.Env[:len(c.Env):len(c.Env)], c.Sandbox.Environ()...)
	if pipes.progress != nil {
		env = append(env, fmt.Sprintf("%s=%d", ProgressName, ProgressFD))
	}
	tree := newTree(cmd, env)
	defer tree.release()
	entry, err := c.Sandbox.Wrap(cmd)
	if err != nil {
		pipes.abandon()
		return Result{}, fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	tree.contained = c.Sandbox.Contains()
	started := time.Now()
	if err := tree.start(cmd); err != nil {
		pipes.abandon()
		entry.Abandon()
		return Result{}, fmt.Errorf("run %s: %w", c.Args[0], startError(err))
	}
	entry.Started()
	killed := make(chan struct{})
	undo := context.AfterFunc(ctx, func() { tree.kill(); close(killed) })
	pipes.begin(c)
	watching := c.watch(tree)
	// The worker waits here for the command and not for its pipes. If a background child holds
	// the pipes, it is killed before they are read to their end. The command keeps its process
	// id until Wait collects it, so the kill cannot hit another process with the same id.
	tree.await(cmd)
	stopped := !undo()
	if stopped {
		<-killed
	}
	result := Result{Duration: time.Since(started)}
	result.Over = watching()
	tree.kill()
	_ = cmd.Wait() // the error only repeats the exit status
	result.Stdout, result.Stderr = pipes.finish(drain / 2)
	result.ExitCode, result.Signal = ended(cmd.ProcessState)
	status, inside, err := entry.Ended()
	result.Refused = entry.Refused()
	if err != nil && !stopped {
		return Result{}, fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	if inside {
		result.ExitCode, result.Signal = endedWith(status)
	}
	if stopped && result.ExitCode != 0 {
		return result, context.Cause(ctx)
	}
	return result, nil
}

// watch enforces the limits of the sandbox until the returned function is called. The returned
// function tells for which limit the tree was killed, or "".
func (c Command) watch(t *tree) func() string {
	if c.Sandbox == nil {
		return func() string { return "" }
	}
	every := watchEvery
	if c.Stays {
		every = watchStaying
	}
	done, over := make(chan struct{}), make(chan string, 1)
	go func() { over <- t.watch(c.Sandbox.Policy, every, done) }()
	return func() string {
		close(done)
		return <-over
	}
}

// startError returns why a program could not be started. It leaves out the operation and
// the path, because the caller names them.
func startError(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		return lookup.Err
	}
	return err
}
