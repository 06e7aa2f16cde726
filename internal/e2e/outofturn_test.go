package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// An id is used again with another body while another batch of the session runs. It is refused at once and on record before
// that batch, which comes first in the log and has its lines all the same.
func TestAConflictDoesNotWaitForItsTurn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "put", Kind: messages.Write}, func(context.Context, tool.Call) (tool.Output, error) {
			time.Sleep(20 * time.Second) // simulated
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		one, two := canonical("s", "one", call{"put", ""}), canonical("s", "two", call{"put", ""}, call{"nothing_like_that", ""})
		other := canonical("s", "one", call{"put", `{"n":2}`})
		f.wantOnRecord(one, f.run(one))
		f.submit(two)
		time.Sleep(5 * time.Second) // it runs
		f.submit(other)
		f.until("the conflict is on record", func() bool { return len(f.onRecord(audit.Filter{Session: "s", Batch: "one"})) == 2 })
		if got := f.onRecord(audit.Filter{Session: "s", Batch: "two"}); len(got) != 0 {
			t.Fatalf("the batch that runs is on record: %+v", got)
		}
		f.wantOnRecord(two, f.reply(two, time.Minute))
		lines := f.onRecord(audit.Filter{Session: "s"})
		if len(lines) != 4 || lines[1].Type != messages.AuditBatchRefused || lines[1].Refusal.Class != messages.BatchConflict {
			t.Errorf("on record: %+v", lines)
		}
	})
}
