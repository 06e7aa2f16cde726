package batch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// A coordinator takes over a batch whose stored plan has an exclusive call of a tool that it does
// not know: the tool was removed, or only newer coordinators can read its definition.
func TestAnAdoptedPlanOverridesOurOwnRefusals(t *testing.T) {
	write := schemas.Tool{Name: "write", Kind: messages.KindWrite}
	pay := schemas.Tool{Name: "pay", Kind: messages.KindWrite}
	calls := []messages.ToolCall{{Index: 0, ID: "c0", Name: "pay", Input: []byte("{}")}, {Index: 1, ID: "c1", Name: "write", Input: []byte("{}")}}
	full, _ := schemas.NewCatalog(write, pay)
	less, _ := schemas.NewCatalog(write)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cfg := batch.Config{Digest: "d", Nonce: "b", Window: 8, FirstPoll: time.Second, Poll: 3 * time.Second, QueueTimeout: time.Minute, Grace: time.Second, NotAfter: now.Add(time.Hour)}
	m := batch.New(plan.New(calls, less), cfg)
	stored := wire.PlanRecord{V: 1, Nonce: "a", Digest: "d", Calls: plan.New(calls, full).Record()}
	m.Step(now, batch.Planned{Record: stored, Seq: 1})
	m.Step(now, batch.Recorded{Index: 0, Seq: 2, Record: wire.CallRecord{State: wire.Claimed, Nonce: "w", Attempt: 1, LeaseMS: 10_000, OnCrash: messages.OnCrashOnce}})
	wants := m.Step(now, batch.Begin{Resumed: true})
	for seq := uint64(3); len(wants) > 0; seq++ {
		want := wants[0]
		wants = wants[1:]
		switch want := want.(type) {
		case batch.StorePlan:
			t.Logf("stores a plan record that ends call 0 with %s", want.Record.Results[0].Status)
			wants = append(wants, m.Step(now, batch.Planned{Record: want.Record, Seq: seq})...)
		case batch.Dispatch:
			if want.Index == 1 {
				t.Errorf("write 1 is dispatched while write 0 holds a live claim: %s", fmt.Sprintf("%+v", want))
			}
		}
	}
}
