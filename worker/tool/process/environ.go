package process

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// inherited is what every tool may know of the worker's own environment.
var inherited = []string{"PATH", "HOME", "LANG"}

// Environ is the environment of a tool's command: PATH, HOME, LANG and the named variables of this
// process where they are set, and the call as TOOLFLEET_* variables. Nothing else is handed on, so a
// worker's credentials are not; that a command does not look for them in /proc takes [Shield]. Names that begin with TOOLFLEET_ are the call's and cannot be passed.
//
// An id may hold any bytes, an environment variable all but NUL: a call with a NUL in its session, batch
// or call id is refused with a *messages.Error, since a changed id would name something else.
func Environ(call tool.Call, names []string) ([]string, error) {
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
		if strings.IndexByte(v[1], 0) >= 0 {
			return nil, &messages.Error{
				Code:    messages.CodeToolError,
				Message: fmt.Sprintf("%s holds a NUL byte, which no environment variable can carry. The command was not run.", name),
			}
		}
		env = append(env, name+"="+v[1])
	}
	return env, nil
}
