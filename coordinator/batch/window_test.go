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

// A call waits only for room in the window: the machine sets no time to wake, because the end
// of another call lets this one go on.
func TestWaitingForTheWindowDoesNotSpin(t *testing.T) {
	for _, state := range []wire.CallState{wire.Released, wire.Claimed} {
		safe := true
		catalog, err := schemas.NewCatalog(schemas.Tool{Name: "par", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, ConcurrencySafe: &safe})
		if err != nil {
			t.Fatal(err)
		}
		var calls []messages.ToolCall
		for i := range window + 1 {
			calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint(i)), Name: "par", Input: []byte("{}")})
		}
		m := batch.New(plan.New(calls, catalog), config("mine"))
		m.Step(epoch, batch.Planned{Record: wire.PlanRecord{Nonce: "mine"}, Seq: 1})
		m.Step(epoch, batch.Recorded{Index: window, Seq: 7, Record: wire.CallRecord{State: state, Attempt: 1, LeaseMS: 10_000, OnCrash: messages.OnCrashIdempotent}})
		now := epoch.Add(time.Minute) // the claim has lapsed
		m.Step(now, batch.Begin{Resumed: true, Late: true})
		if wake, ok := m.Wake(); !ok || !wake.After(now) {
			t.Errorf("%s: asked to be woken %v after now", state, wake.Sub(now))
		}
		dispatched := false
		for i := range window {
			ended := wire.CallRecord{State: wire.Ended, Result: &messages.Result{Index: i, Status: messages.StatusOK}}
			for _, want := range m.Step(now, batch.Recorded{Index: i, Seq: uint64(10 + i), Record: ended}) {
				d, ok := want.(batch.Dispatch)
				dispatched = dispatched || ok && d.Index == window && d.TakeOver == 7
			}
		}
		if !dispatched {
			t.Errorf("%s: room in the window, and the call that waited for it was not dispatched", state)
		}
	}
}
