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

// TestTinyTimeouts: a plan record holds the active time in milliseconds. What is left of a
// millisecond asks for no further record, however small the timeout is.
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
