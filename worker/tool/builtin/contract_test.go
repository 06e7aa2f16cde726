package builtin

import (
	"fmt"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/bash"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/builtintest"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// shellCommand returns a Make of the Bash tool with this command as its input. The variable
// $DIR of the command is the folder for its effects.
func shellCommand(command string) tooltest.Make {
	return func(t *testing.T, dir string) (tool.Runner, string) {
		root := builtintest.BashFolder(t)
		box, err := builtintest.Box(root.Dir(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return bash.New(root, box), string(rawjson.MustMarshal(in{"command": "DIR='" + dir + "'\n" + command}))
	}
}

func TestBuiltins(t *testing.T) {
	tooltest.Run(t, tooltest.Runner{
		Echo: func(t *testing.T, _ string) (tool.Runner, string) {
			noop, err := New("noop", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			return noop, `{"n":1}`
		},
		Fail:   shellCommand(`echo '` + tooltest.Failure + `' >&2; exit 1`),
		Wait:   shellCommand(`echo running; sleep 1000 & wait`),
		Report: shellCommand(`for text in one two; do echo $text; done`),
		Describe: shellCommand(`printf '%s\n' "$TOOLFLEET_SESSION" "$TOOLFLEET_BATCH" "$TOOLFLEET_CALL_ID" "$TOOLFLEET_INDEX" "$TOOLFLEET_ATTEMPT" \
			"$TOOLFLEET_IDEMPOTENCY_KEY" "$TOOLFLEET_FENCE"`),
		Apply:   shellCommand(`: > "$DIR/$TOOLFLEET_IDEMPOTENCY_KEY"`),
		Flood:   shellCommand(fmt.Sprintf(`head -c %d /dev/zero | tr '\000' x; printf %s`, tooltest.FloodSize, tooltest.FloodTail)),
		BadText: shellCommand(`printf 'a\377b'`),
		Crash:   shellCommand(`kill -KILL $$`),
		Limit:   base.MaxOutput + 100, Cut: "[truncated - ",
		Cannot: map[string]string{
			"FailForNow": "no exit status of a command says that another run may succeed",
			"Checkable":  "a command of the model has no probe",
		},
	})
}
