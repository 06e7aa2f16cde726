package journal_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func (x *fixture) history() journal.History {
	x.t.Helper()
	s, err := x.journal.History(x.t.Context(), key, journal.SmallOutputs)
	x.must(err)
	return s
}

// audit stores lines about the calls of a batch.
func (x *fixture) audit(subject string, a journal.Accepted, last bool, ids ...messages.CallID) {
	x.t.Helper()
	lines := wire.AuditLines{V: 1, Token: a.Key.Batch, Seq: a.Seq, About: messages.AuditRecord{Accepted: a.Stored}, Last: last}
	for _, id := range ids {
		lines.Lines = append(lines.Lines, messages.AuditRecord{CallID: id})
	}
	x.append(subject, string(rawjson.MustMarshal(lines)))
}

// The history of an open batch has the state of each call, without arguments and large
// outputs.
func TestTheHistoryOfAnOpenBatch(t *testing.T) {
	withFixture(t, func(x *fixture) {
		if _, err := x.journal.History(x.t.Context(), key, journal.SmallOutputs); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("of an unknown batch: %v, want bus.ErrNotFound", err)
		}
		a := x.submit("s", "b")
		large := messages.Outcome{Output: rawjson.Quote(strings.Repeat("x", messages.MaxEventOutput)), Content: []messages.Block{{Type: "text"}}}
		body := rawjson.MustMarshal(large)
		ref := messages.Ref{Digest: messages.Digest(body), Size: int64(len(body))}
		_, err := x.journal.WritePlan(x.t.Context(), key, wire.PlanRecord{V: 1, Nonce: "p", Results: []messages.Result{{V: 1, Outcome: large}}}, 0)
		x.must(err)
		claim, err := x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{
			State: wire.Parked, Nonce: "1", Input: json.RawMessage(`{"a":1}`), Approval: &messages.Approval{ID: "q", Input: json.RawMessage(`{"a":1}`)},
		}, 0)
		x.must(err)
		_, err = x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{State: wire.Ended, Nonce: "2", Result: &messages.Result{V: 1, Outcome: large}}, claim)
		x.must(err)
		x.append(x.names.OfCall(wire.VerbCall, key.Call(3)), "damaged")
		_, err = x.journal.WriteResult(x.t.Context(), key.Call(1), messages.Result{V: 1, Index: 1, Worker: "w", Outcome: large})
		x.must(err)
		x.append(x.names.OfCall(wire.VerbResult, key.Call(2)), "damaged")

		s := x.history()
		x.same("the batch", a, s.Accepted)
		if len(s.Plans) != 1 || s.Plans[0].Record.Nonce != "p" || s.Plans[0].Record.Results[0].Output != nil {
			t.Errorf("plans: %+v", s.Plans)
		}
		if len(s.Records) != 2 || s.Records[0].Record.State != wire.Parked || s.Records[1].Record.State != wire.Ended {
			t.Fatalf("records: %+v", s.Records)
		}
		if r := s.Records[0].Record; r.Input != nil || r.Approval.ID != "q" || r.Approval.Input != nil {
			t.Errorf("a record with arguments: %+v", r)
		}
		if r := s.Records[1].Record.Result; r.Output != nil || r.Content != nil || *r.Ref != ref {
			t.Errorf("a record with its output: %+v", r)
		}
		if len(s.Results) != 1 || s.Results[0].Key != key.Call(1) || s.Results[0].Stored.IsZero() {
			t.Fatalf("results: %+v", s.Results)
		}
		x.same("the result", messages.Result{V: 1, Index: 1, Worker: "w", Ref: &ref}, s.Results[0].Result)
		whole, err := x.journal.History(x.t.Context(), key, journal.AllOutputs)
		x.must(err)
		x.same("the whole result", large, whole.Results[0].Result.Outcome)
		x.same("the whole result of a record", large, whole.Records[1].Record.Result.Outcome)
		if s.Reply != nil || len(s.Lines.Lines) != 0 {
			t.Errorf("an open batch has the reply %+v and the lines %+v", s.Reply, s.Lines)
		}
	})
}

// The history of an ended batch is made from its reply and its audit lines. Lines of another
// batch with the same id are left out.
func TestTheHistoryOfABatchThatHasEnded(t *testing.T) {
	withFixture(t, func(x *fixture) {
		earlier := x.submit("s", "b")
		x.must(x.journal.Remove(x.t.Context(), earlier))
		a := x.submit("s", "b")
		_, err := x.journal.WriteResult(x.t.Context(), key.Call(1), messages.Result{V: 1, Index: 1})
		x.must(err)
		reply := messages.Reply{V: 1, Batch: "b", Status: messages.ReplyCompleted, Reinjection: json.RawMessage(`"large"`), Results: []messages.Result{{V: 1, Tool: "x"}}}
		_, err = x.journal.WriteReply(x.t.Context(), a, reply)
		x.must(err)
		x.must(x.journal.Remove(x.t.Context(), a))
		lines := x.names.Ended("_", "s", a.Stored)
		x.audit(lines, earlier, true, "of the earlier batch")
		x.append(lines, "damaged")
		x.audit(lines, a, false, "one", "two")
		recreated := a
		recreated.Stored = a.Stored.Add(time.Second)
		x.audit(lines, recreated, true, "of a log that was made again")
		x.audit(x.names.Aside(key), a, true, "three")

		s := x.history()
		x.same("the batch", journal.Accepted{Key: key}, s.Accepted)
		if s.Reply == nil || s.Reply.Status != messages.ReplyCompleted || s.Reply.Reinjection != nil || len(s.Reply.Results) != 1 || s.Replied.IsZero() {
			t.Errorf("reply: %+v", s.Reply)
		}
		x.same("results beside those of the reply", 0, len(s.Results))
		var ids []messages.CallID
		for _, l := range s.Lines.Lines {
			ids = append(ids, l.CallID)
			if !l.Accepted.Equal(a.Stored) {
				t.Errorf("line %s has lost what the lines have in common", l.CallID)
			}
		}
		x.same("lines", []messages.CallID{"one", "two", "three"}, ids)

		x.audit(lines, a, true, "last")
		if s := x.history(); len(s.Lines.Lines) != 3 || s.Lines.Lines[2].CallID != "last" {
			t.Errorf("after the last part in its place: %+v, want no line from the aside subject", s.Lines.Lines)
		}
	})
}

// The object with a large reply is lost: there still is a history.
func TestTheHistoryWithoutTheObjectOfItsReply(t *testing.T) {
	withFixture(t, func(x *fixture) {
		reply := messages.Reply{V: 1, Status: messages.ReplyCompleted, Results: []messages.Result{}, Ref: &messages.Ref{Digest: messages.Digest(nil), Size: 1}}
		x.append(x.names.Of(wire.VerbFinal, key), string(rawjson.MustMarshal(reply)))
		_, err := x.journal.WriteResult(x.t.Context(), key.Call(1), messages.Result{V: 1, Index: 1})
		x.must(err)
		s := x.history()
		if s.Reply == nil || s.Reply.Status != messages.ReplyCompleted || len(s.Results) != 1 {
			t.Errorf("reply %+v, results %+v; want the reply without its results, and the stored result", s.Reply, s.Results)
		}
		x.append(x.names.Of(wire.VerbFinal, key), "damaged")
		if _, err := x.journal.History(x.t.Context(), key, journal.SmallOutputs); err == nil {
			t.Error("a damaged reply is no error")
		}
	})
}
