// Package safety answers one question for the coordinator and the worker: may this call run beside
// others?
//
// For most tools the answer is declared, for all calls or by a condition on each call. For a shell
// it depends on the command, which is parsed: "ls | grep x" may overlap others, "rm x" may not. The
// classifier is a list of what is allowed in the syntax tree; it never searches the text. Every
// node, command and flag must be known to change nothing. A command with anything else, or with
// anything that another shell would read differently, runs alone. A wrong "alone" costs time; a
// wrong "safe" lets a write overlap the calls planned around it.
//
// Safe means that the command changes no file, and no process outside its own process tree. It does
// not mean that the command is allowed (a safe command may read a secret; permissions decide about
// that), nor that it ends.
//
// The classifier assumes this of the worker that runs the command: the shell is bash, not
// interactive, with a scrubbed environment (no BASH_ENV, no exported functions, no GIT_* or PAGER
// that run programs), a UTF-8 or C locale, and a PATH whose programs are what their names say. Git
// runs programs that the configuration of the repository names (text conversion, filters): the
// repository's owner is responsible for that, as for PATH. The builtin Bash switches off the file
// system monitor and the optional index writes.
package safety

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Classify decides about a call from the tool and its parsed input, and gives the reason in words
// for `toolfleet plan`. A tool that is declared to runs alone, and so does a call if the tool's
// condition is false or cannot be evaluated. Otherwise the parsed command of a shell decides, else
// the tool's declaration, else its kind. So for a shell with a condition both have to agree. The
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

// DependsOnInput reports whether [Classify] looks at the input of the tool's calls. If not, its
// answer holds for whatever input a hook or an approver makes of it.
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
