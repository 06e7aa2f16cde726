package journal_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// question returns a question about the call at index, asked now and open for an hour.
func question(tenant messages.TenantID, index int) messages.Approval {
	now := time.Now().UTC()
	return messages.Approval{
		V: 1, ID: "q", Tenant: tenant, Session: "s", Batch: "b", Index: index, Tool: "book", Line: "book a flight", Input: json.RawMessage(`{"secret":1}`),
		Asked: now, Expires: now.Add(time.Hour),
	}
}

func (x *fixture) ask(q messages.Approval) (fresh bool) {
	x.t.Helper()
	fresh, err := x.journal.Ask(x.t.Context(), wire.KeyOf(string(q.Tenant), q.Session, q.Batch).Call(q.Index), q)
	x.must(err)
	return fresh
}

func (x *fixture) pending(tenant string) []messages.Pending {
	x.t.Helper()
	open, err := x.journal.Pending(x.t.Context(), tenant)
	x.must(err)
	return open
}

// A question is listed from the first time it is asked until it is removed. It counts as new
// only once.
func TestAQuestionIsListedOnce(t *testing.T) {
	withFixture(t, func(x *fixture) {
		x.same("before", []messages.Pending{}, x.pending("_"))
		q := question("_", 0)
		for i, want := range []bool{true, false} {
			if fresh := x.ask(q); fresh != want {
				t.Errorf("asked for the %dth time: fresh %t, want %t", i+1, fresh, want)
			}
		}
		x.same("listed", []messages.Pending{q.Pending()}, x.pending("_"))

		agreed := q
		agreed.Decisions = []messages.Decision{{By: "ann"}}
		if x.ask(agreed) {
			t.Error("a decision makes the question new")
		}
		x.same("with a decision", []messages.Pending{agreed.Pending()}, x.pending("_"))
		later := q
		later.Asked = q.Asked.Add(time.Minute)
		if !x.ask(later) {
			t.Error("a later question about the same call is not new")
		}

		was, found, err := x.journal.Forget(x.t.Context(), key.Call(0))
		x.must(err)
		if !found {
			t.Error("nothing was taken off the list")
		}
		x.same("taken off", later.Pending(), was)
		x.same("afterwards", []messages.Pending{}, x.pending("_"))
		if _, found, err := x.journal.Forget(x.t.Context(), key.Call(0)); found || err != nil {
			t.Errorf("taken off twice: found %t, %v", found, err)
		}
		if !x.ask(q) {
			t.Error("a question that was taken off and asked again is not new")
		}
	})
}

// Two coordinators ask about a call, or close its question, at the same time: only one of them
// announces it.
func TestOneCoordinatorAnnouncesAQuestion(t *testing.T) {
	withFixture(t, func(x *fixture) {
		q := question("_", 0)
		listing := "$KV." + x.names.Stream(bus.BucketApprovals) + "." + key.Call(0).String()
		slower := x.slower(listing, func() {
			if !x.ask(q) {
				t.Error("the question is not new to the coordinator that was faster")
			}
		})
		if fresh, err := slower.Ask(x.t.Context(), key.Call(0), q); fresh || err != nil {
			t.Errorf("the question is new to the slower one: %t, %v", fresh, err)
		}
		x.same("listed", []messages.Pending{q.Pending()}, x.pending("_"))

		slower = x.slower(listing, func() {
			if _, found, err := x.journal.Forget(x.t.Context(), key.Call(0)); !found || err != nil {
				t.Errorf("the faster one took it off: %t, %v", found, err)
			}
		})
		if _, found, err := slower.Forget(x.t.Context(), key.Call(0)); found || err != nil {
			t.Errorf("the slower one took it off: %t, %v", found, err)
		}
		x.same("listed", []messages.Pending{}, x.pending("_"))
	})
}

// The list of a tenant has its open questions, the oldest first.
func TestPendingQuestions(t *testing.T) {
	withFixture(t, func(x *fixture) {
		newer, older, expiring, others := question("_", 0), question("_", 1), question("_", 2), question("t", 3)
		newer.Asked = newer.Asked.Add(time.Second)
		expiring.Expires = expiring.Asked.Add(time.Minute)
		for _, q := range []messages.Approval{newer, older, expiring, others} {
			x.ask(q)
		}
		damaged := "$KV." + x.names.Stream(bus.BucketApprovals) + "." + key.Call(4).String()
		x.append(damaged, "damaged")
		x.same("all of the tenant", []messages.Pending{older.Pending(), expiring.Pending(), newer.Pending()}, x.pending("_"))
		x.same("of another tenant", []messages.Pending{others.Pending()}, x.pending("t"))
		x.same("of every tenant", 4, len(x.pending("*")))
		time.Sleep(time.Minute - time.Millisecond)
		x.same("a moment before one expires", 3, len(x.pending("_")))
		time.Sleep(time.Millisecond)
		x.same("when it expires", []messages.Pending{older.Pending(), newer.Pending()}, x.pending("_"))

		if !x.ask(question("_", 4)) {
			t.Error("a question with a damaged entry is not new")
		}
		x.same("with the entry made again", 3, len(x.pending("_")))
	})
}

// A call waits for a person if its newest record is a question.
func TestTheQuestionOfACall(t *testing.T) {
	withFixture(t, func(x *fixture) {
		q := question("_", 0)
		var newest uint64
		for _, step := range []struct {
			what   string
			record *wire.CallRecord
			open   bool
		}{
			{"no record", nil, false},
			{"a question", &wire.CallRecord{State: wire.Parked, Nonce: "1", Approval: &q}, true},
			{"an answer", &wire.CallRecord{State: wire.Granted, Nonce: "2", Approval: &q}, false},
			{"a park without a question", &wire.CallRecord{State: wire.Parked, Nonce: "3"}, false},
		} {
			if step.record != nil {
				seq, err := x.journal.Write(x.t.Context(), key.Call(0), *step.record, newest)
				x.must(err)
				newest = seq
			}
			entry, err := x.journal.Question(x.t.Context(), key.Call(0))
			if step.open {
				x.must(err)
				x.same(step.what, q.ID, entry.Record.Approval.ID)
				x.same(step.what+": its sequence", newest, entry.Seq)
				continue
			}
			var none *journal.NoQuestion
			if !errors.As(err, &none) || none.Key != key.Call(0) || none.Newest.Seq != newest {
				t.Errorf("%s: got %v, want a *NoQuestion with the record at %d", step.what, err, newest)
			}
		}
		x.append(x.names.OfCall(wire.VerbCall, key.Call(0)), "damaged")
		if _, err := x.journal.Question(x.t.Context(), key.Call(0)); err == nil || errors.As(err, new(*journal.NoQuestion)) {
			t.Errorf("of a damaged record: %v, want an error that is no *NoQuestion", err)
		}
	})
}
