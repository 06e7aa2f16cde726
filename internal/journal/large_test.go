package journal_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// payload sets the size of the largest message that the server takes.
func payload(bytes int32) func(*devserver.Options) {
	return func(o *devserver.Options) { o.MaxPayload = bytes }
}

// ofSize returns an output of so many bytes of JSON.
func ofSize(bytes int) json.RawMessage {
	return rawjson.Quote(strings.Repeat("x", bytes-2))
}

// An outcome that is too large for a record goes to the object store. It is read back whole.
func TestOffload(t *testing.T) {
	const beside = len(`{"output":}`)
	for _, server := range []struct {
		payload int32
		limit   int // largest outcome that is stored in a record
	}{
		{1 << 20, journal.MaxInline},
		{128 << 10, 64 << 10},
	} {
		withFixture(t, func(x *fixture) {
			for what, test := range map[string]struct {
				outcome messages.Outcome
				moved   bool
			}{
				"the largest in a record": {messages.Outcome{Output: ofSize(server.limit - beside)}, false},
				"one byte more":           {messages.Outcome{Output: ofSize(server.limit - beside + 1)}, true},
				"content": {messages.Outcome{
					Content: []messages.Block{{Type: "text", Text: strings.Repeat("x", server.limit)}}, IsError: true,
				}, true},
				"an error": {messages.Failed(messages.CodeTimeout, "late"), false},
			} {
				result := messages.Result{V: 1, Index: 1, Outcome: test.outcome}
				x.must(x.journal.Offload(x.t.Context(), &result))
				if !test.moved {
					x.same(what, messages.Result{V: 1, Index: 1, Outcome: test.outcome}, result)
					continue
				}
				whole := rawjson.MustMarshal(test.outcome)
				x.same(what+": what stays", messages.Result{V: 1, Index: 1, Ref: &messages.Ref{Digest: messages.Digest(whole), Size: int64(len(whole))}}, result)
				result.Outcome = messages.Failed(messages.CodeResultLost, "a stand-in")
				x.must(x.journal.Resolve(x.t.Context(), &result))
				x.same(what+": what comes back", test.outcome, result.Outcome)
				if result.Ref == nil {
					t.Errorf("%s: the result has lost its ref", what)
				}
			}
		}, payload(server.payload))
	}
}

// An outcome cannot be loaded: the error says why, and the result is never an empty outcome.
func TestResolveFails(t *testing.T) {
	withFixture(t, func(x *fixture) {
		gone := messages.Result{Ref: &messages.Ref{Digest: messages.Digest(nil), Size: 1}}
		if err := x.journal.Resolve(x.t.Context(), &gone); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("of an object that is gone: %v, want bus.ErrNotFound", err)
		}
		ref, err := objects.In(x.conn).Put(x.t.Context(), []byte("no outcome"))
		x.must(err)
		if err := x.journal.Resolve(x.t.Context(), &messages.Result{Ref: &ref}); err == nil || !strings.Contains(err.Error(), ref.Digest) {
			t.Errorf("of an object that is no outcome: %v, want its digest", err)
		}
		short := ref
		short.Size--
		if err := x.journal.Resolve(x.t.Context(), &messages.Result{Ref: &short}); !errors.Is(err, bus.ErrCorrupt) {
			t.Errorf("of an object with another size: %v, want bus.ErrCorrupt", err)
		}
	})
}

// A plan record fits into a message, however many calls and results it has. It is read back
// whole.
func TestALargePlan(t *testing.T) {
	withFixture(t, func(x *fixture) {
		const inline = 128 << 10
		calls := []wire.PlannedCall{{Index: 0, Tool: strings.Repeat("x", inline/2)}, {Index: 1, Tool: "y"}}
		outcome := func(bytes int) messages.Result {
			return messages.Result{V: 1, Outcome: messages.Outcome{Output: ofSize(bytes)}}
		}
		plans, err := x.journal.WritePlan(x.t.Context(), key, wire.PlanRecord{V: 1, Calls: calls[1:], Results: []messages.Result{outcome(10)}}, 0)
		x.must(err)
		small := x.stored(bus.Calls, x.names.Of(wire.VerbPlan, key))[0]
		if strings.Contains(string(small.Data), "ref") {
			t.Errorf("parts of a small plan are elsewhere: %s", small.Data)
		}
		results := []messages.Result{outcome(30 << 10), outcome(90 << 10), outcome(40 << 10), outcome(50 << 10)}
		_, err = x.journal.WritePlan(x.t.Context(), key, wire.PlanRecord{V: 1, Calls: calls, Results: results}, plans[0].Seq)
		x.must(err)
		large := x.stored(bus.Calls, x.names.Of(wire.VerbPlan, key))[1]
		if len(large.Data) > inline {
			t.Errorf("the record has %d bytes, want at most %d", len(large.Data), inline)
		}
		all, err := x.journal.Plans(x.t.Context(), key)
		x.must(err)
		x.same("the calls of the small plan", calls[1:], all[0].Record.Calls)
		x.same("the calls of the large plan", calls, all[1].Record.Calls)
		var moved []bool
		for i, r := range all[1].Record.Results {
			moved = append(moved, r.Ref != nil)
			x.must(x.journal.Resolve(x.t.Context(), &r))
			if want := []int{30 << 10, 90 << 10, 40 << 10, 50 << 10}[i]; len(r.Output) != want {
				t.Errorf("result %d has %d bytes, want %d", i, len(r.Output), want)
			}
		}
		x.same("the largest outcomes are elsewhere", []bool{false, true, false, false}, moved)
	}, payload(192<<10))
}

// A plan record that is too large to be stored, or that cannot be decoded, gives an error that
// ends all retries.
func TestAPlanThatCannotBeStoredOrRead(t *testing.T) {
	withFixture(t, func(x *fixture) {
		const headroom = 64 << 10 // for the other parts of a message
		huge := wire.PlanRecord{V: 1, Results: []messages.Result{{Tool: strings.Repeat("x", x.conn.MaxPayload()-headroom)}}}
		if _, err := x.journal.WritePlan(x.t.Context(), key, huge, 0); !errors.Is(err, bus.ErrTooLarge) || !bus.IsTerminal(err) {
			t.Errorf("without outcomes too large: %v, want bus.ErrTooLarge", err)
		}
		wrong, err := objects.In(x.conn).Put(x.t.Context(), []byte("no calls"))
		x.must(err)
		for what, ref := range map[string]messages.Ref{"gone": {Digest: messages.Digest(nil), Size: 1}, "no calls": wrong} {
			k := wire.KeyOf("_", "s", messages.BatchID(what))
			x.append(x.names.Of(wire.VerbPlan, k), string(rawjson.MustMarshal(wire.PlanRecord{V: 1, CallsRef: &ref})))
			if _, err := x.journal.Plans(x.t.Context(), k); !errors.Is(err, bus.ErrCorrupt) {
				t.Errorf("the object is %s: %v, want bus.ErrCorrupt", what, err)
			}
		}
	})
}

// A reply that is too large for a message is stored as a reference to an object. It is read
// back whole.
func TestALargeReply(t *testing.T) {
	withFixture(t, func(x *fixture) {
		whole := messages.Reply{
			V: 1, Batch: "b", Session: "s", Status: messages.ReplyCompleted, Digest: "d",
			Reinjection: ofSize(100 << 10), Results: []messages.Result{{V: 1, Tool: "x"}}, Steering: json.RawMessage(`["now"]`),
		}
		stored, err := x.journal.WriteReply(x.t.Context(), journal.Accepted{Key: key}, whole)
		x.must(err)
		var reply messages.Reply
		x.must(json.Unmarshal(stored, &reply))
		body := rawjson.MustMarshal(whole)
		x.same("what is stored", messages.Reply{
			V: 1, Batch: "b", Session: "s", Status: messages.ReplyCompleted, Digest: "d", Reinjection: json.RawMessage(`null`), Append: []json.RawMessage{}, Results: []messages.Result{},
			Ref: &messages.Ref{Digest: messages.Digest(body), Size: int64(len(body))},
		}, reply)
		full, err := x.journal.FullReply(x.t.Context(), stored)
		x.must(err)
		x.same("the whole reply", string(body), string(full))
		if reply.Ref == nil {
			t.FailNow()
		}
		again, err := x.journal.WriteReply(x.t.Context(), journal.Accepted{Key: key}, messages.Reply{V: 1})
		x.must(err)
		x.same("the reply of a second coordinator", string(stored), string(again))

		small := rawjson.MustMarshal(messages.Reply{V: 1})
		same, err := x.journal.FullReply(x.t.Context(), small)
		x.must(err)
		x.same("a small reply", string(small), string(same))
		reply.Ref.Digest = messages.Digest(nil)
		if _, err := x.journal.FullReply(x.t.Context(), rawjson.MustMarshal(reply)); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("of an object that is gone: %v, want bus.ErrNotFound", err)
		}
		if _, err := x.journal.FullReply(x.t.Context(), []byte("damaged")); err == nil {
			t.Error("a damaged reply is whole")
		}
	}, payload(128<<10))
}
