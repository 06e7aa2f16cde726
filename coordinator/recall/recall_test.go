package recall_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
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
