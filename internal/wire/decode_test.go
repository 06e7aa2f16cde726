package wire_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// rawjson.Unmarshal reads the fleet's messages as encoding/json does.
func FuzzUnmarshal(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC)
	result := messages.Result{
		V: 1, Index: 3, CallID: "c<\u2028>", Tool: "look", Kind: messages.KindRead, Status: messages.StatusOK, Started: at, QueueMS: 0.125,
		Outcome: messages.Outcome{Output: json.RawMessage(`{"a" : [1.50,"\ud800"]}`), Err: &messages.Error{Code: "x", Details: map[string]any{"n": 1.5}}},
		Hooks:   &messages.Hooks{Count: 1}, Permission: &messages.Permission{Effect: "allow"}, Trail: &messages.Trail{ArgsHash: "h"},
	}
	for _, v := range []any{
		result,
		wire.Job{V: 1, Session: "s\xff", Input: json.RawMessage(`{"b":1,"b":2}`), QueuedAt: at, NotAfter: at},
		wire.Notice{V: 1, Batch: "_.s.b", Result: &result, Record: &wire.CallRecord{State: wire.Ended, Result: &result}, LetGo: &wire.LetGo{AfterMS: 1}},
		wire.PlanRecord{V: 1, Calls: []wire.PlannedCall{{Index: 1, Refused: &result}}, Results: []messages.Result{result}},
		wire.AuditLines{V: 1, Lines: []messages.AuditRecord{{Index: 1, Time: at, Started: at}}},
		messages.Reply{V: 1, Results: []messages.Result{result}, Reinjection: json.RawMessage("null")},
	} {
		f.Add(rawjson.MustMarshal(v))
	}
	f.Add([]byte(`{"V":1,"INDEX":2,"index":3,"unknown":[{}]}`))
	f.Add([]byte(`{"queued_at":"2026-01-02T3:04:05Z","input":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, v := range []any{new(messages.Result), new(wire.Job), new(wire.Notice), new(wire.CallRecord), new(wire.PlanRecord), new(wire.AuditLines), new(messages.Reply)} {
			want := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			err, wantErr := rawjson.Unmarshal(in, v), json.Unmarshal(in, want)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%T from %q: %v, encoding/json says %v", v, in, err, wantErr)
			}
			if err == nil && !reflect.DeepEqual(v, want) {
				t.Errorf("%T from %q is %+v, encoding/json has %+v", v, in, v, want)
			}
		}
	})
}
