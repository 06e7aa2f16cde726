package coordinator

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// A question whose arguments a person edited and approved ends as granted.
func TestTheTimelineOfAnEdit(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		if answer := o.decide(key, o.decision(q, messages.VerdictEdit, "alice", edit(`{"amount":10}`))); answer.State != messages.DecisionGranted {
			t.Fatalf("answered %+v, %+v", answer, answer.Error)
		}
		o.reply(key.BatchKey, soon)
		answer, err := o.conn.Request(t.Context(), o.names.Of(wire.VerbGet, key.BatchKey), nil, rawjson.MustMarshal(messages.Get{Timeline: true}))
		o.must(err)
		var told messages.Timeline
		o.must(json.Unmarshal(answer.Data, &told))
		for _, e := range told.Events {
			if e.Type != messages.EventAwaiting {
				continue
			}
			if a := e.Approval; a.State != "granted" || !slices.Equal(a.Agreed, []string{"alice"}) || e.Attempt != 0 || strings.Contains(a.Line, "10") {
				t.Errorf("told %+v", a)
			}
			return
		}
		t.Error("the question is not told")
	})
}
