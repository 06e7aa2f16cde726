package pipeline

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/exechook"
)

// A hook cannot run: the model reads only the kind of failure, and the operator gets one log
// line with the cause.
func TestReportsOfAHookThatCouldNotRun(t *testing.T) {
	script := func(body string) hook.Hook { return program(t, "h", hook.Gate, "before", body) }
	slow := script(`exec sleep 60`)
	slow.Budget = 50 * time.Millisecond
	const hint = ` hint="its output is logged with --log-level debug"`
	for name, tt := range map[string]struct {
		hook  hook.Hook
		model string
		log   string
	}{
		"missing": {opened(t, exechook.Config{Name: "h", Dir: t.TempDir(), Before: []string{"./gone", "SECRET"}}),
			"it did not start", `program=./gone err="it did not start: no such file or directory"`},
		"status":  {script(`echo SECRET >&2; exit 127`), "it ended with an error", `program=./h err="it ended with exit status 127"` + hint},
		"slow":    {slow, "it took too long", `program=./h err="it took longer than its budget of 50ms"` + hint},
		"garbage": {script(`echo SECRET`), "its answer cannot be used", `program=./h err="it answered with something that is no JSON object: invalid character 'S' looking for beginning of value (byte 1)"` + hint},
		"misspelt": {script(`echo '{"decision":"deny"}'`), "its answer cannot be used",
			`program=./h err="its answer cannot be used: decision: want approve or block"` + hint},
		"Go": {hook.Hook{Name: "h", Before: func(context.Context, hook.Call) (hook.Verdict, error) { return hook.Verdict{}, errors.New("no") }}, "it failed", `err=no`},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			cfg := Config{Hooks: hooks(t, tt.hook), Logger: slog.New(slog.NewTextHandler(&log, nil))}
			r, err := run(t, t.Context(), cfg, write, &probe{}, jobFor(write, `{"n":1}`))
			if want := "The hook h could not run (" + tt.model + "), so the call was refused. It was not run."; err != nil || r.Err == nil || r.Err.Message != want {
				t.Errorf("got %v, %v, want %s", r.Err, err, want)
			}
			if got := log.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, " hook=h class=gate "+tt.log+"\n") || !strings.Contains(got, "level=ERROR") || strings.Contains(got, "SECRET") {
				t.Errorf("log\n%swant one line that ends in\n hook=h class=gate %s", got, tt.log)
			}
		})
	}
}

// A hook panics: the log line has the stack. A hook is stopped together with its call: it is
// logged as cancelled and not as an error.
func TestOtherEndsOfHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		cfg.Hooks = hooks(t, before("h", func(hook.Call) hook.Verdict { panic("SECRET") }))
		if r, err := run(t, t.Context(), cfg, write, &probe{}, jobFor(write, `{"n":1}`)); err != nil || !strings.Contains(r.Err.Message, "(it panicked)") {
			t.Errorf("got %v, %v", r.Err, err)
		}
		if got := log.String(); !strings.Contains(got, "stack=") || strings.Contains(got, "SECRET") || strings.Contains(got, "hint=") {
			t.Errorf("log %s", got)
		}
		log.Reset()
		ctx, cancel := context.WithCancelCause(t.Context())
		cfg.Hooks = hooks(t, hook.Hook{Name: "h", Before: func(ctx context.Context, _ hook.Call) (hook.Verdict, error) {
			cancel(&wire.Stop{})
			<-ctx.Done()
			return hook.Verdict{}, ctx.Err()
		}})
		_, _ = run(t, ctx, cfg, write, &probe{}, jobFor(write, `{"n":1}`))
		if got := log.String(); !strings.Contains(got, "level=INFO") || !strings.Contains(got, "cancelled") || strings.Contains(got, "level=ERROR") {
			t.Errorf("log %s", got)
		}
	})
}
