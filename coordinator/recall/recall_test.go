package recall_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func TestNoticesAsEvents(t *testing.T) {
	mine, other := messages.Result{Index: 1, CallID: "mine"}, messages.Result{Index: 1, CallID: "another"}
	claim, end := wire.CallRecord{State: wire.Claimed}, wire.CallRecord{State: wire.Ended, Result: &mine}
	b := recall.Batch{
		Calls: 2, IsOf: func(_ int, r messages.Result) bool { return r.CallID == "mine" },
		Local: func(at time.Time) time.Time { return at },
	}
	for about, c := range map[string]struct {
		said wire.Notice
		want batch.Event
	}{
		"a result":               {wire.Notice{Index: 1, Result: &mine}, batch.Ended{Index: 1, Result: mine}},
		"that of another call":   {wire.Notice{Index: 1, Result: &other}, nil},
		"a claim":                {wire.Notice{Index: 1, Record: &claim, Seq: 5}, batch.Recorded{Index: 1, Record: claim, Seq: 5}},
		"an end, which is read":  {wire.Notice{Index: 1, Record: &end, Seq: 5}, nil},
		"a hand-back":            {wire.Notice{Index: 1, Hand: &wire.HandBack{}}, batch.HandedBack{Index: 1}},
		"a job let go":           {wire.Notice{Index: 1, LetGo: &wire.LetGo{AfterMS: 20, Attempt: 2}}, batch.LetGo{Index: 1, After: 20 * time.Millisecond, Attempt: 2}},
		"a run":                  {wire.Notice{Index: 1, Running: true}, batch.Running{Index: 1}},
		"nothing":                {wire.Notice{Index: 1}, nil},
		"a call that is no more": {wire.Notice{Index: 2, Running: true}, nil},
		"a call that never was":  {wire.Notice{Index: -1, Running: true}, nil},
	} {
		if got := recall.Notice(c.said, b); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", about, got, c.want)
		}
	}
}

// A steering message that skips calls applies to every batch that was in the log when it came,
// even if the reply of another batch has taken it. It does not apply to batches that came
// later.
func TestWhichBatchesAMessageSteers(t *testing.T) {
	at := time.Unix(1000, 0)
	entries := []journal.ControlEntry{
		{Seq: 1, Stored: at, Record: wire.ControlRecord{Control: messages.Control{When: messages.SteerImmediate}, UpTo: 7}},
		{Seq: 2, Stored: at.Add(time.Second), Record: wire.ControlRecord{Taken: "another"}},
	}
	for seq, steered := range map[uint64]bool{6: true, 7: true, 8: false} {
		a := journal.Accepted{Key: wire.BatchKey{Tenant: "_", Session: "s", Batch: "b"}, Seq: seq, Stored: at.Add(-time.Minute)}
		if seq > 7 {
			a.Stored = at.Add(time.Minute)
		}
		var want []batch.Event
		if steered {
			want = []batch.Event{batch.Steered{Stop: wire.Stop{V: messages.Version}, Now: true}}
		}
		if got := recall.Controls(entries, a, time.Hour); !reflect.DeepEqual(got, want) {
			t.Errorf("batch %d hears %+v, want %+v", seq, got, want)
		}
	}
}
