package batch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// A coordinator takes over a batch. The stored plan has an exclusive call of a tool that this
// coordinator does not know: the tool was removed, or only newer coordinators can read its
// definition. The stored plan counts, so no later write starts while that call has a live
// claim.
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

// The plan of this coordinator refuses a call that a worker has ended under another
// coordinator's plan. The worker's record counts, even if it is read before the other plan.
func TestARecordOverridesOurOwnRefusal(t *testing.T) {
	pay := schemas.Tool{Name: "pay", Kind: messages.KindWrite}
	calls := []messages.ToolCall{{Index: 0, ID: "c0", Name: "pay", Input: []byte("{}")}}
	full, _ := schemas.NewCatalog(pay)
	less, _ := schemas.NewCatalog()
	paid := messages.Result{Index: 0, CallID: "c0", Tool: "pay", Status: messages.StatusOK, Outcome: messages.Text("paid")}
	theirs := batch.Planned{Record: wire.PlanRecord{V: 1, Nonce: "theirs", Calls: plan.New(calls, full).Record()}, Seq: 1}
	record := batch.Recorded{Index: 0, Seq: 2, Record: wire.CallRecord{State: wire.Ended, Nonce: "w", Attempt: 1, Result: &paid}}
	for _, events := range [][]batch.Event{{theirs, record}, {record, theirs}} {
		m := batch.New(plan.New(calls, less), config("mine"))
		m.Step(epoch, batch.Begin{})
		var wants []batch.Effect
		for _, event := range events {
			wants = append(wants, m.Step(epoch, event)...)
		}
		finish, is := wants[len(wants)-1].(batch.Finish)
		if !is || finish.Results[0].Status != messages.StatusOK {
			t.Errorf("after %T and %T: %+v, want the end of the record", events[0], events[1], wants)
		}
	}
}

// A call is refused: the refusal is stored in a plan before the reply. Otherwise another
// driver, which knows the tool or has a worker with its version, would run the call.
func TestARefusalIsStoredBeforeTheReply(t *testing.T) {
	pay := schemas.Tool{Name: "pay", Kind: messages.KindWrite}
	known, err := schemas.NewCatalog(pay)
	if err != nil {
		t.Fatal(err)
	}
	pay.Description, pay.InputSchema = "new", []byte(`{"type":"object","required":["to"]}`)
	newer, err := schemas.NewCatalog(pay)
	if err != nil {
		t.Fatal(err)
	}
	calls := []messages.ToolCall{{ID: "a", Name: "pay", Input: []byte(`{}`)}}
	theirs := wire.PlanRecord{Nonce: "theirs", Calls: plan.New(calls, known).Record()}
	for name, tools := range map[string]plan.Tools{
		"unknown tool": {}, "version gone": {Current: newer, Named: &known, Served: func(schemas.Tool) bool { return false }},
	} {
		for _, first := range []bool{true, false} { // whose plan is stored first: ours or the other driver's
			m := batch.New(plan.With(calls, tools), config("ours"))
			wants := m.Step(epoch, batch.Begin{})
			var record wire.PlanRecord
			finished := false
			for _, want := range wants {
				switch want := want.(type) {
				case batch.StorePlan:
					record = want.Record
				case batch.Finish:
					finished = true
				}
			}
			if finished || len(record.Calls) != 1 || record.Calls[0].Refused == nil {
				t.Fatalf("%s: the batch finishes before its plan is stored: %+v", name, wants)
			}
			if !first {
				record = theirs
			}
			finished, dispatched := false, false
			for _, want := range m.Step(epoch, batch.Planned{Record: record, Seq: 1}) {
				switch want.(type) {
				case batch.Finish:
					finished = true
				case batch.Dispatch:
					dispatched = true
				}
			}
			if finished != first || dispatched == first {
				t.Errorf("%s, our plan is the first: %v; finished %v, dispatched %v", name, first, finished, dispatched)
			}
		}
	}
}

// A read ran twice, and two drivers saw different results. The result in the plan record
// counts, because the next write builds on it.
func TestTheRecordedResultCounts(t *testing.T) {
	m := batch.New(readsThatOverlap(t), config("mine"))
	m.Step(epoch, batch.Begin{})
	m.Step(epoch, batch.Ended{Index: 0, Result: messages.Result{Index: 0, Outcome: messages.Text("ours")}})
	m.Step(epoch, batch.Planned{Seq: 1, Record: wire.PlanRecord{
		Nonce: "theirs", Results: []messages.Result{{Index: 0, Outcome: messages.Text("theirs")}},
	}})
	wants := m.Step(epoch, batch.Ended{Index: 1, Result: messages.Result{Index: 1, Outcome: messages.Text("other")}})
	want := messages.Text("theirs")
	if got := results(t, wants)[0].Outcome; !cmp.Equal(got, want) {
		t.Errorf("the reply has %+v, want %+v", got, want)
	}
}

// Each result in the reply says whether its run overlapped another one.
func TestResultsShowOverlap(t *testing.T) {
	for second, want := range map[time.Duration]bool{time.Second: true, 2 * time.Second: false, 3 * time.Second: false} {
		m := batch.New(readsThatOverlap(t), config("mine"))
		m.Step(epoch, batch.Begin{})
		first := messages.Result{Index: 0, Started: epoch, DurationMS: 2000}
		m.Step(epoch, batch.Ended{Index: 0, Result: first})
		wants := m.Step(epoch, batch.Ended{Index: 1, Result: messages.Result{Index: 1, Started: epoch.Add(second), DurationMS: 2000}})
		for _, r := range results(t, wants) {
			if r.WasConcurrent != want {
				t.Errorf("a run of 2 s, another %v later: result %d overlapped: %v, want %v", second, r.Index, r.WasConcurrent, want)
			}
		}
	}
}

// readsThatOverlap is a plan of two reads in one stage.
func readsThatOverlap(t *testing.T) plan.Plan {
	t.Helper()
	catalog, err := schemas.NewCatalog(schemas.Tool{Name: "read", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	return plan.New([]messages.ToolCall{
		{Index: 0, ID: "c0", Name: "read", Input: []byte("{}")}, {Index: 1, ID: "c1", Name: "read", Input: []byte("{}")},
	}, catalog)
}

// results returns the results of the effect Finish, which has to be the last effect.
func results(t *testing.T, wants []batch.Effect) []messages.Result {
	t.Helper()
	if len(wants) > 0 {
		if finish, ok := wants[len(wants)-1].(batch.Finish); ok {
			return finish.Results
		}
	}
	t.Fatalf("the batch has not finished: %+v", wants)
	return nil
}
