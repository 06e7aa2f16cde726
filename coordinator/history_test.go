package coordinator

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// A person edits and approves the arguments: the question ends as granted.
func TestTheTimelineOfAnEdit(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		if answer := o.decide(key, o.decision(q, messages.VerdictEdit, "alice", edit(`{"amount":10}`))); answer.State != messages.DecisionGranted {
			t.Fatalf("answered %+v, %+v", answer, answer.Error)
		}
		o.reply(key.BatchKey, soon)
		for _, e := range o.timeline(key.BatchKey).Events {
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

// A record of a grant that no coordinator wrote has signatures that do not hold, or that are
// for another call. The timeline does not name those people.
func TestTheTimelineNamesWhoHasSigned(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		other := q
		other.Index = 7
		var unsigned, elsewhere messages.Decision
		o.must(json.Unmarshal(o.decision(q, messages.VerdictApprove, "alice"), &unsigned))
		o.must(json.Unmarshal(o.decision(other, messages.VerdictApprove, "alice"), &elsewhere))
		unsigned.Sig = "AAAA"
		for _, forged := range []messages.Decision{unsigned, elsewhere} {
			j := journal.New(o.conn)
			newest, _, err := j.Newest(t.Context(), key)
			o.must(err)
			record, own := newest.Record, q
			own.Decisions = []messages.Decision{forged}
			record.State, record.Nonce, record.Approval = wire.Parked, forged.Nonce, &own
			_, err = j.Write(t.Context(), key, record, newest.Seq)
			o.must(err)
			for _, e := range o.timeline(key.BatchKey).Events {
				if e.Type == messages.EventAwaiting && len(e.Approval.Agreed) > 0 {
					t.Errorf("a forged decision counts: %+v", e.Approval)
				}
			}
		}
	})
}

func (o *office) timeline(key wire.BatchKey) (told messages.Timeline) {
	o.t.Helper()
	answer, err := o.conn.Request(o.t.Context(), o.names.Of(wire.VerbGet, key), nil, rawjson.MustMarshal(messages.Get{Timeline: true}))
	o.must(err)
	o.must(json.Unmarshal(answer.Data, &told))
	return told
}
