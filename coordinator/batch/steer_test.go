package batch_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// TestSteeringOfABatchThatMayHaveHadADriver: a message skips every read of a batch that waits. Only
// a read that a worker may have from an earlier driver goes on.
func TestSteeringOfABatchThatMayHaveHadADriver(t *testing.T) {
	catalog, err := schemas.NewCatalog(schemas.Tool{Name: "read", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	for _, jobs := range []bool{false, true} {
		m := batch.New(plan.New([]messages.ToolCall{{ID: "0", Name: "read", Input: []byte("{}")}}, catalog), config("n"))
		m.Step(epoch, batch.Turn{May: batch.Nothing})
		m.Step(epoch, batch.Begin{Late: true, Again: true, Jobs: jobs})
		skipped := false
		for _, want := range m.Step(epoch.Add(time.Second), batch.Steered{Now: true}) {
			end, is := want.(batch.End)
			skipped = skipped || is && end.Result.Status == messages.StatusSkipped
		}
		if skipped == jobs {
			t.Errorf("with jobs %v, the read is skipped: %v", jobs, skipped)
		}
	}
}
