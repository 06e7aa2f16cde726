package batch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// A plan record holds the active time in whole milliseconds. The rest of a millisecond leads
// to no further record, however small the timeout is.
func TestTinyTimeouts(t *testing.T) {
	catalog, err := schemas.NewCatalog(
		schemas.Tool{Name: "read", Kind: messages.KindRead}, schemas.Tool{Name: "write", Kind: messages.KindWrite})
	if err != nil {
		t.Fatal(err)
	}
	var calls []messages.ToolCall
	for i, name := range []string{"read", "write"} {
		calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint(i)), Name: name, Input: []byte("{}")})
	}
	for _, timeout := range []time.Duration{time.Millisecond, 4 * time.Millisecond, 7 * time.Millisecond, 100 * time.Millisecond} {
		cfg := config("n")
		cfg.Timeout = timeout
		m := batch.New(plan.New(calls, catalog), cfg)
		m.Step(epoch, batch.Turn{May: batch.SafeCalls, Room: 8})
		m.Step(epoch, batch.Begin{})
		now := epoch.Add(timeout - 50*time.Microsecond)
		wants := m.Step(now, batch.Ended{Index: 0, Result: messages.Result{Index: 0, CallID: "0", Tool: "read", Status: messages.StatusOK}})
		records := 0
		for seq := uint64(1); len(wants) > 0 && records < 100; seq++ {
			if s, is := wants[0].(batch.StorePlan); is {
				records++
				wants = append(wants, m.Step(now, batch.Planned{Record: s.Record, Seq: seq})...)
			}
			wants = wants[1:]
		}
		if records > 2 {
			t.Errorf("timeout %v: %d plan records in a row, want 2 at most", timeout, records)
		}
	}
}

// Other batches of the session hold all places of the window: the time of this batch does not
// run. It begins when the batch gets a place.
func TestTheTimeOfABatchWithoutPlaces(t *testing.T) {
	catalog, err := schemas.NewCatalog(schemas.Tool{Name: "read", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	cfg := config("n")
	cfg.Timeout = 10 * time.Second
	m := batch.New(plan.New([]messages.ToolCall{
		{Index: 0, ID: "0", Name: "read", Input: []byte("{}")}, {Index: 1, ID: "1", Name: "read", Input: []byte("{}")},
	}, catalog), cfg)
	dispatched := func(wants []batch.Effect) (left []time.Duration) {
		for _, want := range wants {
			if d, is := want.(batch.Dispatch); is {
				left = append(left, d.Deadline)
			}
		}
		return left
	}
	m.Step(epoch, batch.Turn{Room: 0})
	m.Step(epoch, batch.Begin{})
	now := epoch.Add(time.Minute)
	if got := dispatched(m.Step(now, batch.Turn{Room: 1})); len(got) != 1 || got[0] != cfg.Timeout {
		t.Errorf("after a minute without a place, jobs with %v are published; want one with the whole %v", got, cfg.Timeout)
	}
	now = now.Add(4 * time.Second) // the first call runs, so the batch's time runs too
	if got := dispatched(m.Step(now, batch.Turn{Room: 2})); len(got) != 1 || got[0] != 6*time.Second {
		t.Errorf("after 4 s with a place, jobs with %v are published; want one with 6 s", got)
	}
}
