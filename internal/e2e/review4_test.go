package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A hook after the tool that takes longer than anybody waits for a worker makes no unknown outcome of what is done: the
// time that it was given is part of the claim's.
func TestASlowHookAfterTheTool(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.kept(schemas.Tool{Name: "pay", TimeoutMS: 1000}, func(context.Context, int) (tool.Output, error) { return tool.Text("paid"), nil })
		f.worker(worker.Config{Hooks: hooks(t, hook.Hook{
			Name: "slow", Class: hook.Observe, Budget: 3 * time.Minute,
			After: func(ctx context.Context, _ hook.Call, _ hook.Done) (hook.Change, error) {
				<-ctx.Done()
				return hook.Change{}, ctx.Err()
			},
		})})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"amount":1}`})
		f.submit(b)
		reply := f.reply(b, 10*time.Minute)
		f.wantStatuses(reply, string(messages.StatusOK))
		if n := len(pay.all()); n != 1 {
			t.Errorf("paid %d times", n)
		}
	})
}
