package batch_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// A steering message comes while a batch waits that may have had another driver: every read is
// skipped, except one whose job a worker may have from the earlier driver.
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

// A read that runs alone has ended, and no record has its result. A steering message skips the
// first call of the next stage. The stage's other call may be at a worker, so it goes on, but
// only after the result of the read is stored.
func TestSteeringStoresTheEndOfWhatRanAlone(t *testing.T) {
	no, yes := false, true
	catalog, err := schemas.NewCatalog(
		schemas.Tool{Name: "alone", Kind: messages.KindRead, ConcurrencySafe: &no},
		schemas.Tool{Name: "put", Kind: messages.KindWrite, ConcurrencySafe: &yes}, schemas.Tool{Name: "read", Kind: messages.KindRead},
	)
	if err != nil {
		t.Fatal(err)
	}
	var calls []messages.ToolCall
	for i, name := range []string{"alone", "put", "read"} {
		calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(name), Name: name, Input: []byte("{}")})
	}
	m := batch.New(plan.New(calls, catalog), config("n"))
	m.Step(epoch, batch.Ended{Index: 0, Result: messages.Result{Index: 0, CallID: "alone", Tool: "alone", Status: messages.StatusOK}})
	m.Step(epoch, batch.Steered{Now: true})
	stored := false
	for _, want := range m.Step(epoch, batch.Begin{Resumed: true, Late: true, Again: true}) {
		switch want := want.(type) {
		case batch.StorePlan:
			stored = len(want.Record.Results) == 1
		case batch.Dispatch:
			t.Errorf("call %d is dispatched, with the result stored: %v", want.Index, stored)
		}
	}
	if !stored {
		t.Error("no record with the result of the first call is asked for")
	}
}
