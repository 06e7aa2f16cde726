package process

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// maxVariable limits NAME=value, in bytes. Linux allows 128 KiB including the final NUL.
const maxVariable = 128<<10 - 1

// inherited names the variables of the worker's environment that every tool may see.
var inherited = []string{"PATH", "HOME", "LANG"}

// Environ returns the environment of a tool's command. It has PATH, HOME, LANG and the
// named variables of this process, if they are set; the call as TOOLFLEET_* variables; and
// the trace of ctx as TRACEPARENT and TRACESTATE. Nothing else is passed on, so a worker's
// credentials stay hidden; [Shield] keeps the command from reading them in /proc. A name
// that begins with TOOLFLEET_ cannot be passed on, because these variables describe the
// call.
//
// An id may be long and contain any bytes. An environment variable cannot contain NUL and
// has at most 128 KiB. A call whose ids do not fit is refused with a *messages.Error,
// because a changed id would name another call.
//
// The variable of a label is TOOLFLEET_LABEL_ and the label's name in capitals, with _ for
// the characters . - and /. If two labels have the same variable, the one that sorts last
// counts.
//
// [Run] adds two variables: TOOLFLEET_PROCESS_TREE on Linux, and [ProgressName] if the
// command may report progress.
func Environ(ctx context.Context, call tool.Call, names []string) ([]string, error) {
	env := Inherited(names)
	for _, v := range [][2]string{
		{"SESSION", string(call.Session)},
		{"BATCH", string(call.Batch)},
		{"CALL_ID", string(call.ID)},
		{"INDEX", strconv.Itoa(call.Index)},
		{"ATTEMPT", strconv.Itoa(call.Attempt)},
		{"IDEMPOTENCY_KEY", call.IdempotencyKey},
		{"FENCE", strconv.FormatUint(call.Fence, 10)},
	} {
		name := "TOOLFLEET_" + v[0]
		entry := name + "=" + v[1]
		switch {
		case strings.IndexByte(entry, 0) >= 0:
			return nil, unfit(name, "holds a NUL byte, which no environment variable can carry")
		case len(entry) > maxVariable:
			return nil, unfit(name, fmt.Sprintf("is too long: %d bytes, and an environment variable has at most %d with its name", len(v[1]), maxVariable))
		}
		env = append(env, entry)
	}
	if call.User != "" {
		env = append(env, "TOOLFLEET_PRINCIPAL_USER="+call.User)
	}
	for _, name := range slices.Sorted(maps.Keys(call.Labels)) {
		env = append(env, "TOOLFLEET_LABEL_"+strings.Map(inVariable, strings.ToUpper(name))+"="+call.Labels[name])
	}
	// The trace comes last: if two variables have the same name, the last one counts.
	return append(env, tracing.Environ(ctx)...), nil
}

// inVariable replaces characters that the name of a label may have and the name of a variable
// may not.
func inVariable(r rune) rune {
	if strings.ContainsRune(".-/", r) {
		return '_'
	}
	return r
}

// Inherited returns PATH, HOME, LANG and the named variables of this process, if they are
// set. This is the environment of programs that serve more than one call.
func Inherited(names []string) (env []string) {
	for _, name := range slices.Concat(inherited, names) {
		if value, ok := os.LookupEnv(name); ok && !strings.HasPrefix(name, "TOOLFLEET_") {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func unfit(name, why string) error {
	return &messages.Error{Code: messages.CodeToolError, Message: name + " " + why + ". The command was not run."}
}
