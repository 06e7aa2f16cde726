package batch_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// A worker renews its claim for ever, long after the deadline of its tool: the batch ends
// without it.
func TestAClaimThatOnlyRenewsIsEnded(t *testing.T) {
	catalog, err := schemas.NewCatalog(schemas.Tool{Name: "again", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent})
	if err != nil {
		t.Fatal(err)
	}
	m := batch.New(plan.New([]messages.ToolCall{{ID: "c", Name: "again", Input: []byte("{}")}}, catalog), config("mine"))
	record := wire.CallRecord{State: wire.Claimed, Attempt: 1, LeaseMS: 10_000, DeadlineMS: 30_000, OnCrash: messages.OnCrashIdempotent,
		Worker: "w", Started: epoch, Permission: &messages.Permission{Effect: "allow"}}
	now := epoch
	m.Step(now, batch.Begin{Resumed: true})
	m.Step(now, batch.Planned{Seq: 1, Record: wire.PlanRecord{Nonce: "mine"}})
	m.Step(now, batch.Recorded{Record: record, Seq: 5})
	for seq := uint64(6); seq < 100; seq++ {
		now = now.Add(5 * time.Second)
		record.State, record.Fence = wire.Renewed, 5
		for _, want := range m.Step(now, batch.Recorded{Record: record, Seq: seq}) {
			end, ok := want.(batch.End)
			if !ok {
				continue
			}
			if held := now.Sub(epoch); held < 92*time.Second || end.Result.Status != messages.StatusOutcomeUnknown || end.Expect != seq {
				t.Errorf("after %v the call is ended as %s, after the record at %d", held, end.Result.Status, end.Expect)
			}
			if r := end.Result; r.Worker != "w" || !r.Started.Equal(epoch) || r.Permission == nil {
				t.Errorf("the result lacks the worker, the start or the permission of the claim: %+v", r)
			}
			return
		}
	}
	t.Error("a claim that is renewed for ever was never ended")
}
