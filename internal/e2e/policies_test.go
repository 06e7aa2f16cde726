package e2e

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// withPolicyVersion returns the configuration of a worker whose rules allow everything and
// have this version.
func withPolicyVersion(t *testing.T, version string) worker.Config {
	t.Helper()
	rules, err := permission.New(permission.Config{Default: permission.Allow, Version: version})
	if err != nil {
		t.Fatal(err)
	}
	return worker.Config{Rules: rules}
}

// countLogs counts the warnings and errors of daemons that start from now on, by level and
// text.
func (f *fleet) countLogs() (count func(level, text string) int) {
	var log lockedBuffer
	f.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return func(level, text string) (n int) {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "level="+level) && strings.Contains(line, text) {
				n++
			}
		}
		return n
	}
}

// A coordinator restarts without the fleet's policy. A worker without a policy then takes its
// calls, and the log says why.
func TestACoordinatorComesBackWithoutThePolicy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		count := f.countLogs()
		f.tool(schemas.Tool{Name: "pay"}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("paid"), nil })
		f.worker(worker.Config{})
		governed := f.coordinator(coordinator.Config{Policy: "platform"})
		f.wantStatuses(f.run(canonical("s", "first", call{"pay", ""})), "expired")
		governed.stop()
		time.Sleep(time.Minute)
		bare := f.coordinator(coordinator.Config{})
		for _, id := range []string{"second", "third"} {
			f.wantStatuses(f.run(canonical("s", id, call{"pay", ""})), "ok")
		}
		if n := count("WARN", "nothing is denied"); n != 1 {
			t.Errorf("told %d times", n)
		}
		bare.stop()
		f.coordinator(coordinator.Config{Policy: "platform"})
		f.wantStatuses(f.run(canonical("s", "fourth", call{"pay", ""})), "expired")
		if n := count("ERROR", "no call is taken"); n != 2 {
			t.Errorf("the log says %d times that no call is taken, want once for each time", n)
		}
	})
}

// A coordinator has a policy. A worker without a policy runs none of its calls, and logs the
// reason once. Workers with a policy take the calls. They log it if their policy is another
// one.
func TestAWorkerWithoutThePolicyOfTheFleet(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		count := f.countLogs()
		var runs atomic.Int32
		f.tool(schemas.Tool{Name: "pay"}, func(context.Context, tool.Call) (tool.Output, error) {
			runs.Add(1)
			return tool.Text("paid"), nil
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Policy: "platform"})
		for _, id := range []string{"first", "second"} {
			f.wantStatuses(f.run(canonical("s", id, call{"pay", ""})), "expired")
		}
		if n := count("ERROR", "no call is taken"); n != 1 || runs.Load() != 0 {
			t.Errorf("%d runs, and the reason was logged %d times", runs.Load(), n)
		}

		with := f.worker(withPolicyVersion(t, "platform+tools"))
		f.wantStatuses(f.run(canonical("s", "third", call{"pay", ""})), "ok")
		if n := count("WARN", "another policy"); n != 0 {
			t.Errorf("the rules of a tools file were logged as another policy %d times", n)
		}
		with.stop()
		f.worker(withPolicyVersion(t, "other"))
		for _, id := range []string{"fourth", "fifth"} {
			f.wantStatuses(f.run(canonical("s", id, call{"pay", ""})), "ok")
		}
		if n := count("WARN", "another policy"); n != 1 || runs.Load() != 3 {
			t.Errorf("%d runs, want 3; another policy was logged %d times", runs.Load(), n)
		}
	})
}
