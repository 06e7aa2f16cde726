package process

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// maxVariable is how many bytes NAME=value may have: Linux takes 128 KiB with the byte that ends it.
const maxVariable = 128<<10 - 1

// inherited is what every tool may know of the worker's own environment.
var inherited = []string{"PATH", "HOME", "LANG"}

// Environ is the environment of a tool's command: PATH, HOME, LANG and the named variables of this
// process where they are set, the call as TOOLFLEET_* variables, and the trace that ctx belongs to as TRACEPARENT and
// TRACESTATE. Nothing else is handed on, so a
// worker's credentials are not; that a command does not look for them in /proc takes [Shield]. Names that begin with TOOLFLEET_ are the call's and cannot be passed.
//
// An id may hold any bytes and be long, an environment variable has no NUL and at most 128 KiB: a call whose
// session, batch or call id does not fit is refused with a *messages.Error, since a changed id would name
// something else. [Run] adds one variable, TOOLFLEET_PROCESS_TREE, on Linux.
func Environ(ctx context.Context, call tool.Call, names []string) ([]string, error) {
	var env []string
	for _, name := range slices.Concat(inherited, names) {
		if value, ok := os.LookupEnv(name); ok && !strings.HasPrefix(name, "TOOLFLEET_") {
			env = append(env, name+"="+value)
		}
	}
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
	return append(env, tracing.Environ(ctx)...), nil // last, so that it counts
}

func unfit(name, why string) error {
	return &messages.Error{Code: messages.CodeToolError, Message: name + " " + why + ". The command was not run."}
}
