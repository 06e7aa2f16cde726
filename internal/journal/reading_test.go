package journal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// batchOf stores records of a batch: call 0 is claimed and has two records, call 1 has a
// result, and call 2 is handed back. It also stores records of another batch.
func (x *fixture) batchOf() (claim, ended uint64) {
	x.t.Helper()
	claim, err := x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: "a"}, 0)
	x.must(err)
	ended, err = x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{State: wire.Ended, Nonce: "b"}, claim)
	x.must(err)
	_, err = x.journal.WriteResult(x.t.Context(), key.Call(1), messages.Result{V: 1, Index: 1, Worker: "w"})
	x.must(err)
	x.must(x.journal.WriteHandBack(x.t.Context(), key.Call(2), wire.HandBack{Worker: "w"}))
	other := wire.BatchKey{Tenant: "_", Session: "s", Batch: "other"}
	_, err = x.journal.Write(x.t.Context(), other.Call(0), wire.CallRecord{State: wire.Parked, Nonce: "c"}, 0)
	x.must(err)
	_, err = x.journal.WriteResult(x.t.Context(), other.Call(1), messages.Result{V: 1, Index: 1, Worker: "other"})
	x.must(err)
	x.must(x.journal.WriteHandBack(x.t.Context(), other.Call(0), wire.HandBack{Worker: "other"}))
	return claim, ended
}

// The calls of a batch are read back as their newest records, results and hand-backs.
func TestCallsOfABatch(t *testing.T) {
	withFixture(t, func(x *fixture) {
		_, ended := x.batchOf()
		for what, indices := range map[string][]int{"all": nil, "each by its index": {0, 1, 2}} {
			known, err := x.journal.Calls(x.t.Context(), key, indices...)
			x.must(err)
			if len(known.Records) != 1 || known.Records[0].Seq != ended || known.Records[0].Key != key.Call(0) || known.Records[0].Record.State != wire.Ended {
				t.Errorf("%s: records %+v, want the newest of call 0, at %d", what, known.Records, ended)
			}
			x.same(what+": results", []journal.ResultEntry{{Key: key.Call(1), Result: messages.Result{V: 1, Index: 1, Worker: "w"}}}, known.Results)
			x.same(what+": hand-backs", []wire.CallKey{key.Call(2)}, known.Hands)
			x.same(what+": unread", 0, len(known.Unread))
		}
		for index, want := range [][3]int{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 0, 0}} {
			known, err := x.journal.Calls(x.t.Context(), key, index)
			x.must(err)
			if got := [3]int{len(known.Records), len(known.Results), len(known.Hands)}; got != want {
				t.Errorf("call %d: records, results, hand-backs: got %v, want %v", index, got, want)
			}
		}
	})
}

// A damaged record does not hide other records. Its sequence is known, so that the record that
// ends the call can be written after it.
func TestDamagedRecords(t *testing.T) {
	withFixture(t, func(x *fixture) {
		claim, ended := x.batchOf()
		damaged := x.append(x.names.OfCall(wire.VerbCall, key.Call(0)), "{")
		x.append(x.names.OfCall(wire.VerbResult, key.Call(3)), "{")
		known, err := x.journal.Calls(x.t.Context(), key)
		x.must(err)
		if len(known.Records) != 1 || known.Records[0].Seq != damaged || known.Records[0].Record.State != journal.Unreadable || known.Records[0].Key != key.Call(0) {
			t.Errorf("records: got %+v, want the unreadable one at %d", known.Records, damaged)
		}
		if len(known.Unread) != 2 || len(known.Results) != 1 || len(known.Hands) != 1 {
			t.Errorf("got %+v, want one result, one hand-back and two errors", known)
		}
		if entry, found, err := x.journal.Newest(x.t.Context(), key.Call(0)); err == nil || found {
			t.Errorf("newest: got %+v, want an error", entry)
		}
		if result, found, err := x.journal.Result(x.t.Context(), key.Call(3)); err == nil || found {
			t.Errorf("result: got %+v, want an error", result)
		}
		entries, err := x.journal.Records(x.t.Context(), key.Call(0))
		x.must(err)
		var got []uint64
		var states []wire.CallState
		for _, e := range entries {
			got, states = append(got, e.Seq), append(states, e.Record.State)
		}
		x.same("sequences", []uint64{claim, ended, damaged}, got)
		x.same("states", []wire.CallState{wire.Claimed, wire.Ended, journal.Unreadable}, states)
		if _, err := x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{State: wire.Ended, Nonce: "end"}, damaged); err != nil {
			t.Errorf("write after the damaged record: %v", err)
		}
	})
}

// The arguments of a call are found by their hash, in whichever record they are.
func TestInputByItsHash(t *testing.T) {
	withFixture(t, func(x *fixture) {
		hash := func(canonical string) string { return messages.Digest([]byte(canonical)) }
		x.append(x.names.OfCall(wire.VerbCall, key.Call(0)), "damaged")
		newest := x.stored(bus.Calls, x.names.OfCall(wire.VerbCall, key.Call(0)))[0].Seq
		for i, r := range []wire.CallRecord{
			{State: wire.Parked, Nonce: "0", Approval: &messages.Approval{Input: json.RawMessage(`{"b":1,"a":2}`)}},
			{State: wire.Claimed, Nonce: "1", Input: json.RawMessage(`{"frozen":true}`)},
		} {
			seq, err := x.journal.Write(x.t.Context(), key.Call(0), r, newest)
			if newest = seq; err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		for want, canonical := range map[string]string{`{"b":1,"a":2}`: `{"a":2,"b":1}`, `{"frozen":true}`: `{"frozen":true}`, "": `{"unknown":true}`} {
			got, err := x.journal.Input(x.t.Context(), key.Call(0), hash(canonical))
			if err != nil || string(got) != want {
				t.Errorf("input with the hash of %s: got %s, %v; want %s", canonical, got, err, want)
			}
		}
	})
}

// A read on which a decision depends goes to the stream's leader, because a replica may be
// behind. Other reads may go to any replica, which is cheaper.
func TestDecisionsAreReadFromTheLeader(t *testing.T) {
	withFixture(t, func(x *fixture) {
		a := x.submit("s", "b")
		x.batchOf()
		x.plan(a)
		x.reply(a)
		_, err := x.journal.WriteControl(x.t.Context(), "_", "s", messages.Control{Abort: json.RawMessage(`true`)})
		x.must(err)
		question := messages.Approval{Tenant: "_", Session: "s", Batch: "b", Index: 4, Expires: time.Now().Add(time.Hour)}
		_, err = x.journal.Ask(x.t.Context(), key.Call(4), question)
		x.must(err)
		_, err = x.journal.Write(x.t.Context(), key.Call(4), wire.CallRecord{State: wire.Parked, Approval: &question}, 0)
		x.must(err)
		strict := x.as("strict")

		for what, read := range map[string]func() (found bool, err error){
			"Newest":      func() (bool, error) { _, found, err := strict.Newest(x.t.Context(), key.Call(0)); return found, err },
			"Result":      func() (bool, error) { _, found, err := strict.Result(x.t.Context(), key.Call(1)); return found, err },
			"Reply":       func() (bool, error) { _, found, err := strict.Reply(x.t.Context(), key); return found, err },
			"ReplyTo":     func() (bool, error) { r, found, err := strict.ReplyTo(x.t.Context(), a); return found && r.Own, err },
			"Head":        func() (bool, error) { _, found, err := strict.Head(x.t.Context(), "_", "s"); return found, err },
			"Open":        func() (bool, error) { _, found, err := strict.Open(x.t.Context(), key); return found, err },
			"LastReplied": func() (bool, error) { _, found, err := strict.LastReplied(x.t.Context(), "_", "s"); return found, err },
			"Question":    func() (bool, error) { e, err := strict.Question(x.t.Context(), key.Call(4)); return e.Seq > 0, err },
			"Plans":       func() (bool, error) { all, err := strict.Plans(x.t.Context(), key); return len(all) == 1, err },
			"Records": func() (bool, error) {
				all, err := strict.Records(x.t.Context(), key.Call(0))
				return len(all) == 2, err
			},
			"Controls": func() (bool, error) { all, err := strict.Controls(x.t.Context(), "_", "s"); return len(all) == 1, err },
			"Calls": func() (bool, error) {
				known, err := strict.Calls(x.t.Context(), key)
				return len(known.Records) == 2 && len(known.Results) == 1 && len(known.Hands) == 1, err
			},
			"Ask": func() (bool, error) {
				fresh, err := strict.Ask(x.t.Context(), key.Call(4), question)
				return !fresh, err
			},
			"Forget": func() (bool, error) { _, found, err := strict.Forget(x.t.Context(), key.Call(5)); return !found, err },
			"Remove": func() (bool, error) {
				err := strict.Remove(x.t.Context(), journal.Accepted{Key: a.Key, Seq: a.Seq + 100})
				return true, err
			},
		} {
			if found, err := read(); err != nil || !found {
				t.Errorf("%s: found %t, %v; want an answer from the leader", what, found, err)
			}
		}

		for what, look := range map[string]func() error{
			"Calls by index": func() error { _, err := strict.Calls(x.t.Context(), key, 0); return err },
			"EachOpen": func() error {
				return strict.EachOpen(x.t.Context(), "_", "s", func(journal.Accepted) bool { return true })
			},
			"EachReplied": func() error {
				return strict.EachReplied(x.t.Context(), "_", "s", bus.From{}, func(journal.Replied) bool { return true })
			},
			"Pending": func() error { _, err := strict.Pending(x.t.Context(), "_"); return err },
		} {
			if err := look(); err == nil {
				t.Errorf("%s: asks the leader", what)
			}
		}
	})
}

// The oldest batch of a session is its head until it is removed.
func TestTheLog(t *testing.T) {
	withFixture(t, func(x *fixture) {
		if _, found, err := x.journal.Head(x.t.Context(), "_", "s"); found || err != nil {
			t.Fatalf("an empty log has a head: %v", err)
		}
		a, b, other := x.submit("s", "a"), x.submit("s", "b"), x.submit("other", "a")
		head := func(session string, want journal.Accepted) {
			t.Helper()
			got, found, err := x.journal.Head(x.t.Context(), "_", session)
			if x.must(err); !found {
				t.Fatalf("session %s has no head", session)
			}
			x.same("head of session "+session, want, got)
		}
		head("s", a)
		head("other", other)
		open := func(what string, want bool, k wire.BatchKey) {
			t.Helper()
			if got, found, err := x.journal.Open(x.t.Context(), k); err != nil || found != want || found && got.Key != k {
				t.Errorf("%s: open %t, %v; want %t", what, found, err, want)
			}
		}
		// After a restart of the server, another batch may be stored at the place of the
		// removed one.
		for what, wrong := range map[string]journal.Accepted{
			"another batch":          {Key: b.Key, Seq: a.Seq, Stored: a.Stored},
			"stored at another time": {Key: a.Key, Seq: a.Seq, Stored: a.Stored.Add(time.Nanosecond)},
			"at another place":       {Key: a.Key, Seq: b.Seq, Stored: a.Stored},
		} {
			x.must(x.journal.Remove(x.t.Context(), wrong))
			open(what, true, a.Key)
			open(what, true, b.Key)
		}
		here := a
		here.Stored = a.Stored.In(time.FixedZone("here", 3600)) // the same instant in another time zone
		x.must(x.journal.Remove(x.t.Context(), here))
		open("removed", false, a.Key)
		x.must(x.journal.Remove(x.t.Context(), a))
		head("s", b)
		head("other", other)
	})
}

// EachOpen lists the log by tenant and session, the oldest batch first, until it is stopped.
func TestEachOpen(t *testing.T) {
	withFixture(t, func(x *fixture) {
		x.append(x.names.Of(wire.VerbBatch, wire.BatchKey{Tenant: "_", Session: "s", Batch: "no!token"}), "{}")
		x.submit("s", "b")
		x.submit("s", "a")
		x.submit("other", "c")
		x.append(x.names.Of(wire.VerbBatch, wire.BatchKey{Tenant: "t", Session: "s", Batch: "d"}), "{}")
		for _, test := range []struct {
			tenant, session string
			most            int
			want            []string
		}{
			{"_", "s", 10, []string{"_.s.b", "_.s.a"}},
			{"_", "s", 1, []string{"_.s.b"}},
			{"_", "*", 10, []string{"_.s.b", "_.s.a", "_.other.c"}},
			{"*", "*", 10, []string{"_.s.b", "_.s.a", "_.other.c", "t.s.d"}},
			{"none", "*", 10, nil},
		} {
			var got []string
			x.must(x.journal.EachOpen(x.t.Context(), test.tenant, test.session, func(a journal.Accepted) bool {
				got = append(got, a.Key.String())
				return len(got) < test.most
			}))
			x.same(test.tenant+"."+test.session, test.want, got)
		}
		if head, found, err := x.journal.Head(x.t.Context(), "_", "s"); err != nil || !found || head.Key.Batch != "b" {
			t.Errorf("the head is %v, found %v, err %v; want b, because the message before it is no batch", head.Key, found, err)
		}
	})
}

// The replies of a session show which batches have ended, and in which order.
func TestReplied(t *testing.T) {
	withFixture(t, func(x *fixture) {
		if _, found, err := x.journal.LastReplied(x.t.Context(), "_", "s"); found || err != nil {
			t.Fatalf("before the first reply: found %t, %v", found, err)
		}
		for _, id := range []string{"b", "a"} {
			_, err := x.journal.WriteReply(x.t.Context(), x.submit("s", id), messages.Reply{V: 1, Batch: messages.BatchID(id), Status: messages.ReplyCompleted})
			x.must(err)
			time.Sleep(time.Minute)
		}
		damaged := x.append(x.names.Of(wire.VerbFinal, wire.KeyOf("_", "s", "x")), "damaged")
		x.reply(x.submit("other", "c"))
		all := func(from bus.From, most int) (replies []journal.Replied) {
			t.Helper()
			x.must(x.journal.EachReplied(x.t.Context(), "_", "s", from, func(r journal.Replied) bool {
				replies = append(replies, r)
				return len(replies) < most
			}))
			return replies
		}
		replies := all(bus.From{}, 10)
		if len(replies) != 3 {
			t.Fatalf("got %+v, want three replies", replies)
		}
		for i, batch := range []messages.BatchID{"b", "a"} {
			if r := replies[i]; r.Batch != batch || r.Status != messages.ReplyCompleted || r.Key.Batch != string(batch) || r.Size == 0 {
				t.Errorf("reply %d is %+v, want that of batch %s", i, r, batch)
			}
		}
		if r := replies[2]; r.Batch != "" || r.Status != "" || r.Key.Batch != "x" || r.Place != damaged {
			t.Errorf("the damaged reply is %+v", r)
		}
		x.same("one", replies[:1], all(bus.From{}, 1))
		x.same("from a place", replies[1:], all(bus.From{Seq: replies[1].Place}, 10))
		x.same("from a time", replies[1:], all(bus.From{Time: replies[0].Stored.Add(time.Second)}, 10))
		last, found, err := x.journal.LastReplied(x.t.Context(), "_", "s")
		if x.must(err); !found {
			t.Fatal("the session has no last reply")
		}
		x.same("last", replies[2], last)
	})
}

// A dead letter has the message and the reason. A list has the newest dead letters first,
// without their bodies.
func TestDeadLetters(t *testing.T) {
	withFixture(t, func(x *fixture) {
		if entries, err := x.journal.DeadLetters(x.t.Context(), 10); err != nil || len(entries) != 0 {
			t.Fatalf("before the first: %+v, %v", entries, err)
		}
		at := time.Now().UTC()
		huge := strings.Repeat("x", x.conn.MaxPayload())
		for _, msg := range []bus.Msg{
			{Subject: "one", Data: []byte("body"), Header: bus.Header{"A": {"b"}}, Time: at},
			{Subject: "dropped", Data: []byte("body")},
			{Subject: "huge", Data: []byte(huge), Header: bus.Header{"A": {"b"}}},
		} {
			x.must(x.journal.DeadLetter(x.t.Context(), msg, "because of "+msg.Subject))
		}
		foreign := x.append(x.names.Dead(), "not ours")
		entries, err := x.journal.DeadLetters(x.t.Context(), 10)
		x.must(err)
		if len(entries) != 4 {
			t.Fatalf("got %+v, want four dead letters", entries)
		}
		x.must(x.journal.DropDeadLetter(x.t.Context(), entries[2].Seq))
		if err := x.journal.DropDeadLetter(x.t.Context(), entries[2].Seq); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("dropped twice: %v, want bus.ErrNotFound", err)
		}
		if _, err := x.journal.DeadLetterAt(x.t.Context(), entries[2].Seq); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("read after it was dropped: %v, want bus.ErrNotFound", err)
		}
		subjects := func(entries []journal.DeadLetterEntry) (all []string) {
			for _, e := range entries {
				if all = append(all, e.Letter.Subject); e.Letter.Body != nil || e.Stored.IsZero() {
					t.Errorf("listed with its body or without its time: %+v", e)
				}
			}
			return all
		}
		rest, err := x.journal.DeadLetters(x.t.Context(), 10)
		x.must(err)
		x.same("listed", []string{x.names.Dead(), "huge", "one"}, subjects(rest))
		two, err := x.journal.DeadLetters(x.t.Context(), 2)
		x.must(err)
		x.same("the newest two", []string{x.names.Dead(), "huge"}, subjects(two))

		one, err := x.journal.DeadLetterAt(x.t.Context(), entries[3].Seq)
		x.must(err)
		x.same("one", wire.DeadLetter{
			V: messages.Version, Subject: "one", Reason: "because of one", Header: map[string][]string{"A": {"b"}}, Body: []byte("body"), Size: 4, Stored: at,
		}, one.Letter)
		cut, err := x.journal.DeadLetterAt(x.t.Context(), entries[1].Seq)
		x.must(err)
		if b := cut.Letter; b.Size != len(huge) || len(b.Body) < len(huge)/4 || !strings.HasPrefix(huge, string(b.Body)) || b.Reason != "because of huge" {
			t.Errorf("of %d bytes: %d of %d are kept, because %q", len(huge), len(b.Body), b.Size, b.Reason)
		}
		other, err := x.journal.DeadLetterAt(x.t.Context(), foreign)
		x.must(err)
		if b := other.Letter; b.Subject != x.names.Dead() || string(b.Body) != "not ours" || b.Size != 8 || !strings.HasPrefix(b.Reason, "not a dead letter of toolfleet: ") {
			t.Errorf("of another program: %+v", b)
		}
		if !slices.ContainsFunc(entries, func(e journal.DeadLetterEntry) bool { return e.Seq == foreign }) {
			t.Error("the message of another program is not listed")
		}
	})
}

// A batch counts as begun once a job, a plan, a record or a result of it is stored.
func TestBegun(t *testing.T) {
	withFixture(t, func(x *fixture) {
		for n, verb := range []wire.Verb{wire.VerbCall, wire.VerbHand, wire.VerbResult, wire.VerbPlan, wire.VerbRead, wire.VerbWrite} {
			a := x.submit("s", fmt.Sprint("b", n))
			begun := func(want bool) {
				t.Helper()
				if got, err := x.journal.Begun(x.t.Context(), a.Key); err != nil || got != want {
					t.Errorf("%s: begun %v, err %v; want %v", verb, got, err, want)
				}
			}
			begun(false)
			switch verb {
			case wire.VerbPlan:
				x.append(x.names.Of(verb, a.Key), "{}")
			case wire.VerbRead, wire.VerbWrite:
				x.append(x.names.Lane(verb == wire.VerbWrite, "pool", a.Key.Call(0)), "{}")
			default:
				x.append(x.names.OfCall(verb, a.Key.Call(0)), "{}")
			}
			begun(true)
		}
	})
}
