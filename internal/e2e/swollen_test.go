package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A hook makes the input of a write too large for a claim. The call fails at once with that
// reason. It does not count as a call that kills its workers.
func TestAnInputThatIsTooLargeToBeClaimed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "w"}, func(context.Context, tool.Call) (tool.Output, error) {
			t.Error("it was run without a claim")
			return tool.Text("done"), nil
		})
		swollen := json.RawMessage(`{"x":"` + strings.Repeat("x", f.conn.MaxPayload()-200) + `"}`)
		swell := hook.Hook{Name: "swell", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			return hook.Verdict{Input: swollen}, nil
		}}
		f.worker(worker.Config{Hooks: hooks(t, swell)})
		f.coordinator(coordinator.Config{})
		began := time.Now()
		r := f.run(canonical("s", "b", call{"w", ""})).Results[0]
		if took := time.Since(began); r.Status != messages.StatusError || r.Err.Code != messages.CodeTooLarge || took > time.Second {
			t.Errorf("after %v it ended %s: %v; want too_large at once", took, r.Status, r.Err)
		}
	})
}
