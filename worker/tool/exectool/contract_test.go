package exectool

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// program returns a Make of a tool that runs a shell script. The variable $DIR of the script
// is the folder for its effects.
func program(body string) tooltest.Make {
	return func(t *testing.T, dir string) (tool.Runner, string) {
		return script(t, "DIR='"+dir+"'\n"+body, nil), `{"n":1}`
	}
}

func TestPrograms(t *testing.T) {
	const apply = `: > "$DIR/$TOOLFLEET_IDEMPOTENCY_KEY"`
	tooltest.Run(t, tooltest.Runner{
		Echo:       program(`cat`),
		Fail:       program(`echo out; echo '` + tooltest.Failure + `' >&2; exit 1`),
		FailForNow: program(`echo '` + tooltest.Failure + `' >&2; exit 75`),
		Wait:       program(`echo running >&2; sleep 1000 & wait`),
		Report:     program(`for text in one two; do echo $text >&2; done; echo out`),
		Describe: program(`printf '%s\n' "$TOOLFLEET_SESSION" "$TOOLFLEET_BATCH" "$TOOLFLEET_CALL_ID" "$TOOLFLEET_INDEX" "$TOOLFLEET_ATTEMPT" \
			"$TOOLFLEET_IDEMPOTENCY_KEY" "$TOOLFLEET_FENCE"`),
		Apply:   program(apply),
		Flood:   program(fmt.Sprintf(`head -c %d /dev/zero | tr '\000' x; printf %s`, maxOutput+1<<20, tooltest.FloodTail)),
		BadText: program(`printf 'a\377b'`),
		Crash:   program(`kill -KILL $$`),
		Checkable: func(t *testing.T, dir string) (tool.Runner, string) {
			run, input := program(apply)(t, dir)
			probe, _ := asks(t, `[ -e '`+dir+`'/"$TOOLFLEET_IDEMPOTENCY_KEY" ] && echo done || echo not_done`, time.Minute)
			return tool.NewProber(run.Run, probe.Probe), input
		},
		Limit: maxOutput + 100, Cut: "bytes left out",
	})
}
