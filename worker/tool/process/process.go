// Package process runs a command for a tool and leaves nothing of it running.
//
//	Run --start--> command --fork--> children, grandchildren, daemons
//	     |  the command ended, or ctx did
//	     +--kill the tree--> SIGKILL to its process group, and to every other member that is found
//
// When [Run] returns, the command and everything that it started are dead, whether it ended by
// itself, ran into its deadline or was cancelled: a call that has a result must not change the
// world any more. There is no SIGTERM before that. It would need a grace, which is only a later
// deadline, and a worker that has lost its claim has no time for one.
//
// How the tree is found depends on the system. On Linux its members are the process group, the
// session, living descendants, and every younger process that has the run's marker in its
// environment or holds one of its streams. That finds daemons too (setsid, double fork). Two kinds
// of process escape. The first has left the session, lost its parent, emptied its environment and
// redirected its streams, all four. The second runs as another user: another user's daemon started
// it for the command, or it is a setuid program. A sandbox holds both kinds where it has a
// namespace for process ids: the kernel kills all of it. Container runtimes mostly refuse that. On
// other Unix systems only the process group dies, on Windows only the command itself.
//
// A worker that is the first process of its container also collects dead orphans.
//
// A command does not get this process's environment. On Linux a command of the same user may still
// read it in /proc, until [Shield] prevents that. Root can always read it, and so can a process
// with CAP_SYS_PTRACE.
//
// Output is kept within a bound, its head and its tail. Input that the command does not read blocks
// nothing.
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
	// Args is the program, absolute or looked up in PATH, and its arguments. No shell is involved.
	Args  []string
	Dir   string   // working directory; "": this process's own
	Env   []string // the whole environment, as NAME=value
	Stdin []byte
	// StdinFile is the standard input in place of Stdin, for a command that is written to while it
	// runs. Run closes it.
	StdinFile *os.File
	// Merge writes stderr into stdout, in the order in which the command wrote.
	Merge bool
	// Limit is how many bytes of stdout are kept, half of them for the head. LimitStderr is the
	// same for stderr. Default 1 MiB, at most 16 MiB.
	Limit, LimitStderr int
	// TailOnly uses the whole limit for the newest bytes, and keeps no head.
	TailOnly bool
	// OnStdout and OnStderr get each chunk as it arrives. Each is called from one goroutine, never
	// after Run has returned, and must not keep the slice. They must be quick: the command waits
	// for them.
	OnStdout, OnStderr func(chunk []byte)
	// OnProgress, if set, gets what the command writes to its file descriptor 3, in the same way.
	// [ProgressName] tells the command about the descriptor. The command need not write there, and
	// nothing of it is kept. Not available on Windows.
	OnProgress func(chunk []byte)
	// Sandbox confines the command. Nil: it may do what this process may.
	Sandbox *sandbox.Box
	// Stays says that the command serves many calls. Its use of memory and processes is then
	// checked less often.
	Stays bool
}

// ProgressName is the environment variable that tells a command where to report progress. Its value
// is [ProgressFD].
const (
	ProgressName = "TOOLFLEET_PROGRESS_FD"
	ProgressFD   = 3
)

// Times between two checks of the limits. Most commands have ended before the first check. A check
// reads about every process of the machine.
const (
	watchEvery   = 100 * time.Millisecond
	watchStaying = time.Second
)

const (
	defaultLimit = 1 << 20
	maxLimit     = 64 << 20
	// drain bounds the wait for the last output after the whole tree was killed. The wait is that
	// long only if a process has escaped the kill.
	drain = time.Second
)

// Result says how a command ended.
type Result struct {
	Stdout, Stderr Output
	// ExitCode is the exit status, or -1 when a signal ended the command.
	ExitCode int
	Signal   string // the signal that ended it, in the system's words; "" for an exit
	// Over is the limit of the sandbox for which the command was killed, in words; "": none.
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

// Run runs the command until it ends or ctx does, and then kills the rest of its process tree. A
// command that ran has a Result. If the end of ctx stopped it, the error is ctx's cause, and the
// Result holds the output until then; a command that still exits with 0 gives no error. Any other
// error means that the command never ran.
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
	// This waits only for the command, not for the pipes, because these are files. A background
	// child that holds the pipes is killed before they are read to their end. The command keeps its
	// process id until Wait collects it, so the kill cannot hit another process with that id.
	tree.await(cmd)
	stopped := !undo()
	if stopped {
		<-killed
	}
	result := Result{Duration: time.Since(started)}
	result.Over = watching()
	tree.kill()
	_ = cmd.Wait() // its error is the exit status
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

// watch holds the tree to the limits of the sandbox until the returned function is called. That
// function says which limit the tree was killed for.
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

// startError returns why a program could not be started, without the operation and the path. The
// caller names those.
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
