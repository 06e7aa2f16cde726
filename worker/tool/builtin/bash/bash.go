// Package bash is the builtin that runs shell commands.
package bash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// Limits of one Bash call.
const (
	// maxBashOutput is how many bytes of output are kept, from its end. The model reads as
	// much of them as the tool's MaxOutput allows. If the command printed more than
	// maxBashOutput, the output is only its last maxBashFlood bytes. These bytes and the
	// marker before them fit into [base.MaxOutput], so the marker is not cut off.
	maxBashOutput  = 1 << 20
	maxBashFlood   = base.MaxOutput - 100
	maxBashMessage = 8000      // bytes of output that an error quotes, from its end
	maxBashCommand = 128 << 10 // bytes of a command; Linux takes one less as an argument
	maxBashTimeout = 10 * time.Minute
)

const bashSchema = `{
	"type": "object",
	"properties": {
		"command": {"type": "string", "minLength": 1, "description": "The shell command, as bash -c takes it."},
		"timeout_ms": {"type": "integer", "minimum": 1, "maximum": 600000, "description": "Stop the command after this many milliseconds. It can only shorten the time the tool has anyway (30 seconds unless configured otherwise)."},
		"description": {"type": "string", "description": "What the command does, in a few words, for whoever watches."}
	},
	"required": ["command"],
	"additionalProperties": false
}`

const bashDescription = `Runs a shell command with bash and returns what it printed, stdout and stderr together. It starts in the working folder, and may change only that folder and $TMPDIR; it has no network unless the operator allows it. A command that exits with another status than 0 is an error that names the status and ends with the output. Nothing outlives the call: processes left in the background are killed when the command ends. There is no terminal and no input. Commands that only read run beside other calls; all others run alone.`

// Promise returns the definition of Bash. If the worker only has sh, every command runs
// alone, because the classifier in schemas/safety reads commands as bash does. Permission
// rules read the command in both cases.
func Promise() schemas.Tool {
	promise := schemas.Tool{
		Name: "Bash", Description: bashDescription, Kind: messages.KindWrite, InputSchema: json.RawMessage(bashSchema),
		OnCrash: messages.OnCrashOnce, TimeoutMS: 30_000, MaxOutput: base.MaxOutput, Truncate: schemas.TruncateTail,
		ShellCommand: "command",
	}
	if shell, err := findShell(); err != nil || shell.name != "bash" {
		promise.ConcurrencySafe = new(bool)
	}
	return promise
}

// New returns the runner of Bash. Commands start in the root's folder, in the sandbox box.
// If box is nil, they may do what the worker may.
func New(root *rootdir.Root, box *sandbox.Box) tool.Runner { return bash{root.Dir(), box} }

// bash runs commands in a folder.
type bash struct {
	dir string
	box *sandbox.Box
}

type shell struct{ name, path string }

// findShell returns bash, or sh if there is no bash.
func findShell() (shell, error) {
	for _, name := range []string{"bash", "sh"} {
		if path, err := exec.LookPath(name); err == nil {
			return shell{name, path}, nil
		}
	}
	return shell{}, errors.New("this worker has neither bash nor sh in its PATH")
}

// bashEnv is set for every command. It keeps git from writing its index, and from starting its
// file system monitor, when git is only asked for a status. A command that only asks for a
// status may run beside others, so it must not write.
var bashEnv = []string{
	"GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0",
	"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.fsmonitor", "GIT_CONFIG_VALUE_0=false",
}

type bashArgs struct {
	Command     string      `json:"command"`
	TimeoutMS   *base.Whole `json:"timeout_ms"`
	Description string      `json:"description"`
}

func (b bash) args(call tool.Call) (bashArgs, error) {
	args, err := base.Arguments[bashArgs](call)
	switch {
	case err != nil:
		return args, err
	case strings.TrimSpace(args.Command) == "":
		return args, base.Refuse(messages.CodeInvalidArguments, "command is empty")
	case strings.IndexByte(args.Command, 0) >= 0:
		return args, base.Refuse(messages.CodeInvalidArguments, "command holds a NUL byte, which no shell can take")
	case len(args.Command) >= maxBashCommand:
		return args, base.Refuse(messages.CodeInvalidArguments, "command has %d bytes, of which a shell takes less than %d: write a script first", len(args.Command), maxBashCommand)
	case args.TimeoutMS != nil && *args.TimeoutMS < 1:
		return args, base.Refuse(messages.CodeInvalidArguments, "timeout_ms must be at least 1")
	}
	return args, nil
}

// Check refuses a command that no shell could run, and a bad timeout.
func (b bash) Check(_ context.Context, call tool.Call) error {
	_, err := b.args(call)
	return err
}

// Run runs the command.
func (b bash) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	args, err := b.args(call)
	if err != nil {
		return tool.Output{}, err
	}
	sh, err := findShell()
	if err != nil {
		return tool.Output{}, base.Refuse(messages.CodeToolError, "%v", err)
	}
	env, err := process.Environ(ctx, call, nil)
	if err != nil {
		return tool.Output{}, err
	}
	box, err := b.box.For(string(call.Tenant))
	if err != nil {
		return tool.Output{}, err
	}
	call.ReportSandboxGaps(box.Lacking())
	limit := min(time.Duration(args.TimeoutMS.Or(int(maxBashTimeout.Milliseconds())))*time.Millisecond, maxBashTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("timeout_ms: %w", context.DeadlineExceeded))
	defer cancel()
	lines := process.NewLines(func(text string) {
		if call.Progress != nil {
			call.Progress(messages.Progress{Text: text})
		}
	})
	result, err := process.Run(ctx, process.Command{
		Args: []string{sh.path, "-c", args.Command}, Dir: b.dir, Env: append(env, bashEnv...),
		Merge: true, Limit: maxBashOutput, TailOnly: true, OnStdout: lines.Add,
		Sandbox: box,
	})
	lines.Flush()
	printed := newPrinted(result.Stdout)
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		// For the caller this error is a timeout. For the model it is a text with the
		// output.
		message := withOutput(fmt.Sprintf("no end within %s, killed", result.Duration.Round(time.Millisecond)), printed)
		return tool.Output{}, fmt.Errorf("%w: %w", &messages.Error{Code: messages.CodeTimeout, Message: message}, err)
	case err != nil:
		return tool.Output{}, err
	case result.ExitCode != 0:
		message := withOutput(result.Status(), printed)
		if note := b.box.Note(message, result.Refused...); note != "" {
			tracing.MarkRefused(ctx)
			message += "\n" + note
		}
		return tool.Output{}, base.Refuse(messages.CodeToolError, "%s", message)
	}
	hint := b.box.Hint(printed.text, result.Refused...)
	if printed.chars > 0 {
		printed = printed.last(maxBashFlood)
	}
	text := printed.String()
	if hint != "" {
		tracing.MarkRefused(ctx)
		text = strings.TrimRight(text, "\n") + "\n" + hint
	}
	return tool.Text(text), nil
}

// withOutput returns how a command ended, followed by the end of what it printed.
func withOutput(end string, p printed) string {
	text := strings.TrimRight(p.last(maxBashMessage).String(), "\n")
	if strings.TrimSpace(text) == "" {
		return end
	}
	return end + "\n" + text
}

// printed is the end of what a command printed, with counts of what came before.
type printed struct {
	text         string
	lines, chars int
}

func newPrinted(o process.Output) printed {
	tail := o.Tail
	// Skip the rest of a character whose beginning was dropped.
	for o.Dropped > 0 && len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return printed{strings.ToValidUTF8(string(tail), "\uFFFD"), o.DroppedLines, o.DroppedChars}
}

// last keeps at most limit bytes of the text. If a line begins close by, the text begins
// there.
func (p printed) last(limit int) printed {
	cut := len(p.text) - limit
	if cut <= 0 {
		return p
	}
	for cut < len(p.text) && !utf8.RuneStart(p.text[cut]) {
		cut++
	}
	if i := strings.IndexByte(p.text[cut:], '\n') + 1; p.text[cut-1] != '\n' && i > 0 && i < limit/4 {
		cut += i
	}
	gone := p.text[:cut]
	return printed{p.text[cut:], p.lines + strings.Count(gone, "\n"), p.chars + utf8.RuneCountInString(gone)}
}

// String returns the text. If something is missing, a marker before the text says how much, in
// the words that every cut output uses.
func (p printed) String() string {
	if p.chars == 0 {
		return p.text
	}
	return fmt.Sprintf("[truncated - %d more lines, %d characters]\n%s", p.lines, p.chars, p.text)
}
