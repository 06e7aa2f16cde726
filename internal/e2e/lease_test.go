package e2e

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// What a write gave is large, and the store of large results is away for longer than a lease. The write has been done,
// and its worker is there: nobody else does it again, and nobody says that its outcome is unknown.
func TestALargeResultThatWaitsKeepsItsClaim(t *testing.T) {
	for _, onCrash := range []messages.OnCrash{messages.Once, messages.Idempotent} {
		t.Run(string(onCrash), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				runs := new(atomic.Int32)
				f.tool(schemas.Tool{Name: "export", OnCrash: onCrash}, func(context.Context, tool.Call) (tool.Output, error) {
					runs.Add(1)
					return tool.Text(strings.Repeat("x", 300<<10)), nil
				})
				f.worker(worker.Config{})
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				jetStream(t, f.conn, "STREAM.DELETE.OBJ_TOOLFLEET_OBJECTS", nil)
				back := time.AfterFunc(25*time.Second, func() {
					if err := f.conn.Provision(context.Background(), bus.Provision{}); err != nil {
						t.Error(err)
					}
				})
				defer back.Stop()
				r := f.run(canonical("s", "b", call{"export", ""})).Results[0]
				if n := runs.Load(); n != 1 || r.Status != messages.StatusOK {
					t.Errorf("the write ran %d times and ended %s; want once, ok", n, r.Status)
				}
			})
		})
	}
}
