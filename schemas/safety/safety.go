// Package safety answers one question for the coordinator and the worker: may this call run beside
// others?
//
// For most tools the definition has the answer, for all calls or as a condition on each call.
// For a shell the answer depends on the parsed command: "ls | grep x" may overlap other calls,
// "rm x" may not. The classifier walks the syntax tree and has a list of what is allowed in
// it: every node, command and flag must be known to change nothing. A command with anything
// else, or with anything that another shell would read differently, runs alone. A wrong
// "alone" only costs time. A wrong "safe" lets a write overlap other calls.
//
// Safe means that the command changes no file, and no process outside its own process tree. It does
// not mean that the command is allowed (a safe command may read a secret; permissions decide about
// that), nor that it ends.
//
// The classifier assumes this of the worker that runs the command: the shell is bash, not
// interactive, with a cleaned environment (no BASH_ENV, no exported functions, no GIT_* or
// PAGER that run programs), a UTF-8 or C locale, and a PATH whose programs are what their
// names say. Git runs programs that the configuration of the repository names (text
// conversion, filters): the repository's owner is responsible for that, as for PATH. The
// builtin Bash switches off the file system monitor and the optional index writes.
package safety

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Classify decides about a call from the tool and its parsed input, and gives the reason in
// words for `toolfleet plan`. A call runs alone if its tool is declared to run alone, or if
// the tool's condition is false or cannot be evaluated. Otherwise the parsed command decides
// for a shell, and the tool's declaration or else its kind for any other tool. So a call of a
// shell with a condition is safe only if both the condition and the command allow it. The
// reason quotes no argument.
func Classify(t schemas.Tool, input json.RawMessage) (safe bool, reason string) {
	if t.SafeWhen != "" {
		safe, reason = condition(t, input)
		if !safe {
			return false, reason
		}
	}
	switch {
	case t.ConcurrencySafe != nil && !*t.ConcurrencySafe:
		return false, "declared not concurrency_safe"
	case t.ShellCommand != "":
		return classifyShell(t.ShellCommand, input)
	case t.SafeWhen != "":
		return true, reason
	case t.ConcurrencySafe != nil:
		return true, "declared concurrency_safe"
	case t.Kind == messages.KindRead || t.Kind == messages.KindCompute:
		return true, "kind " + string(t.Kind)
	}
	return false, "kind write runs alone"
}

// DependsOnInput reports whether [Classify] looks at the input of the tool's calls. If it does
// not, the answer stays the same when a hook or an approver changes the input.
func DependsOnInput(t schemas.Tool) bool { return t.SafeWhen != "" || t.ShellCommand != "" }

func classifyShell(property string, input json.RawMessage) (safe bool, reason string) {
	members, err := rawjson.Object(input)
	if err != nil {
		return false, "shell: the input is no object"
	}
	var command *string
	if err := json.Unmarshal(members[property], &command); err != nil || command == nil {
		return false, "shell: the input has no command"
	}
	if err := readOnly(*command); err != nil {
		return false, "shell: " + err.Error()
	}
	return true, "read-only shell command"
}
