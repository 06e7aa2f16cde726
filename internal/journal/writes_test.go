package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// lost checks that the error is a *Lost, and returns the record of the writer that was faster.
func (x *fixture) lost(what string, err error) journal.CallEntry {
	x.t.Helper()
	var lost *journal.Lost
	if !errors.As(err, &lost) {
		x.t.Fatalf("%s: got %v, want a *Lost", what, err)
	}
	return lost.Newest
}

// A call record is stored only if the newest record is the one that its writer has seen last.
func TestACallRecordGoesBehindTheNewestOne(t *testing.T) {
	withFixture(t, func(x *fixture) {
		call := key.Call(0)
		if _, found, err := x.journal.Newest(x.t.Context(), call); found || err != nil {
			t.Fatalf("before the first record: found %t, %v", found, err)
		}
		claim, err := x.journal.Write(x.t.Context(), call, wire.CallRecord{State: wire.Claimed, Nonce: "a"}, 0)
		x.must(err)
		ended, err := x.journal.Write(x.t.Context(), call, wire.CallRecord{State: wire.Ended, Nonce: "b"}, claim)
		x.must(err)
		if ended <= claim {
			t.Errorf("the second record is at %d, the first at %d", ended, claim)
		}
		for what, late := range map[string]struct {
			nonce string
			last  uint64
		}{
			"a claim of another worker":             {"c", 0},
			"a record after the claim":              {"c", claim},
			"the first record again":                {"a", 0},
			"a record after one that is not stored": {"c", ended + 1},
		} {
			_, err := x.journal.Write(x.t.Context(), call, wire.CallRecord{State: wire.Renewed, Nonce: late.nonce}, late.last)
			if late.last > ended { // the newest record is not newer than the one that the writer has seen
				if err == nil || errors.As(err, new(*journal.Lost)) || bus.IsTerminal(err) {
					t.Errorf("%s: got %v, want an error that a retry may cure", what, err)
				}
				continue
			}
			newest := x.lost(what, err)
			if newest.Key != call || newest.Seq != ended || newest.Record.State != wire.Ended || newest.Stored.IsZero() {
				t.Errorf("%s: told of %+v, want the record at %d", what, newest, ended)
			}
		}
		newest, found, err := x.journal.Newest(x.t.Context(), call)
		x.must(err)
		x.same("newest", wire.CallRecord{V: messages.Version, State: wire.Ended, Nonce: "b"}, newest.Record)
		if !found || newest.Seq != ended || newest.Key != call {
			t.Errorf("newest: found %t at %d of %s", found, newest.Seq, newest.Key)
		}
	})
}

// Many writers write at the same moment: one wins, and the others get its record.
func TestOneOfManyWritersWins(t *testing.T) {
	withFixture(t, func(x *fixture) {
		const writers = 8
		seqs, errs := make([]uint64, writers), make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				seqs[i], errs[i] = x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: fmt.Sprint(i)}, 0)
			})
		}
		wg.Wait()
		newest, _, err := x.journal.Newest(x.t.Context(), key.Call(0))
		x.must(err)
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				if seqs[i] != newest.Seq || newest.Record.Nonce != fmt.Sprint(i) {
					t.Errorf("writer %d won at %d, the newest record is %+v", i, seqs[i], newest)
				}
				continue
			}
			if told := x.lost(fmt.Sprint("writer ", i), err); told.Seq != newest.Seq {
				t.Errorf("writer %d is told of the record at %d, want %d", i, told.Seq, newest.Seq)
			}
		}
		if stored := len(x.stored(bus.Calls, x.names.OfCall(wire.VerbCall, key.Call(0)))); won != 1 || stored != 1 {
			t.Errorf("%d writers won and %d records are stored, want one of each", won, stored)
		}
	})
}

// places returns the stream and the subject of each write of eachWrite.
func (x *fixture) places() map[string][2]string {
	return map[string][2]string{
		"call record": {bus.Calls, x.names.OfCall(wire.VerbCall, key.Call(0))},
		"result":      {bus.Results, x.names.OfCall(wire.VerbResult, key.Call(1))},
		"plan":        {bus.Calls, x.names.Of(wire.VerbPlan, key)},
		"reply":       {bus.Replies, x.names.Of(wire.VerbFinal, key)},
	}
}

// The acknowledgement of a write is lost: if the record is there, the write has succeeded, and
// it is not stored twice.
func TestAWriteWithoutAnAcknowledgementIsReadBack(t *testing.T) {
	withFixture(t, func(x *fixture) {
		for _, stream := range []string{bus.Calls, bus.Results, bus.Replies} {
			x.silence(stream)
		}
		for what, write := range eachWrite {
			for range 2 {
				if err := write(x.t.Context(), x.journal, "own"); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			err := write(x.t.Context(), x.journal, "other")
			if lost := errors.As(err, new(*journal.Lost)); lost != (what == "call record") || !lost && err != nil {
				t.Errorf("%s of another writer: %v", what, err)
			}
			at := x.places()[what]
			if stored := x.stored(at[0], at[1]); len(stored) != 1 || !strings.Contains(string(stored[0].Data), `"own"`) {
				t.Errorf("%s: %d records are stored, the first is %s", what, len(stored), stored[0].Data)
			}
		}
	})
}

// A write fails before it is sent. The journal cannot tell that it was not stored, so the error
// says that the write is undecided, and the writer may try again.
func TestAWriteThatWasNotSentIsUndecided(t *testing.T) {
	withFixture(t, func(x *fixture) {
		ended, cancel := context.WithCancel(x.t.Context())
		cancel()
		for what, write := range eachWrite {
			err := write(ended, x.journal, "own")
			if err == nil || errors.As(err, new(*journal.Lost)) || bus.IsTerminal(err) || !errors.Is(err, bus.ErrUnknown) {
				t.Errorf("%s: got %v, want bus.ErrUnknown", what, err)
			}
			at := x.places()[what]
			if stored := x.stored(at[0], at[1]); len(stored) != 0 {
				t.Errorf("%s: %d records are stored", what, len(stored))
			}
		}
	})
}

// The context of a writer ends during its claim: the claim is still decided. If a worker does
// not know that it has the claim, the call waits until the lease ends.
func TestAClaimIsDecidedAfterItsTime(t *testing.T) {
	withFixture(t, func(x *fixture) {
		claim := func(ctx context.Context, nonce string) (uint64, error) {
			return x.journal.Write(ctx, key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: nonce}, 0)
		}
		seq, err := claim(x.t.Context(), "own")
		x.must(err)
		ended, cancel := context.WithCancel(x.t.Context())
		cancel()
		if again, err := claim(ended, "own"); err != nil || again != seq {
			t.Errorf("the writer of the claim is told %d, %v; want %d", again, err, seq)
		}
		_, err = claim(ended, "other")
		if newest := x.lost("another writer", err); newest.Seq != seq {
			t.Errorf("another writer is told of the record at %d, want %d", newest.Seq, seq)
		}
	})
}

// A write is too large, which no retry changes: the error says so, whatever is stored already.
func TestAWriteThatIsTooLargeIsRefused(t *testing.T) {
	withFixture(t, func(x *fixture) {
		huge := json.RawMessage(rawjson.Quote(strings.Repeat("x", x.conn.MaxPayload())))
		for what, write := range map[string]func() error{
			"call record": func() error {
				_, err := x.journal.Write(x.t.Context(), key.Call(0), wire.CallRecord{Nonce: "b", Input: huge}, 0)
				return err
			},
			"result": func() error {
				_, err := x.journal.WriteResult(x.t.Context(), key.Call(1), messages.Result{Outcome: messages.Outcome{Output: huge}})
				return err
			},
		} {
			if err := write(); !errors.Is(err, bus.ErrTooLarge) || !bus.IsTerminal(err) {
				t.Errorf("%s: got %v, want bus.ErrTooLarge", what, err)
			}
			x.must(eachWrite[what](x.t.Context(), x.journal, "first"))
			if err := write(); !errors.Is(err, bus.ErrTooLarge) || !bus.IsTerminal(err) {
				t.Errorf("%s after another: got %v, want bus.ErrTooLarge", what, err)
			}
		}
	})
}

// nonces returns the nonces of plan records.
func nonces(plans []journal.PlanEntry) (all []string) {
	for _, p := range plans {
		all = append(all, p.Record.Nonce)
	}
	return all
}

// A coordinator writes a plan record after other coordinators have: it gets every plan record
// that it has not seen, in order.
func TestPlanRecordsFollowEachOther(t *testing.T) {
	withFixture(t, func(x *fixture) {
		plan := func(nonce string, last uint64) []journal.PlanEntry {
			t.Helper()
			plans, err := x.journal.WritePlan(x.t.Context(), key, wire.PlanRecord{V: 1, Nonce: nonce}, last)
			x.must(err)
			return plans
		}
		first := plan("first", 0)
		second := plan("second", first[0].Seq)
		x.same("own record", []string{"second"}, nonces(second))
		if second[0].Seq <= first[0].Seq {
			t.Errorf("the second record is at %d, the first at %d", second[0].Seq, first[0].Seq)
		}
		x.same("a coordinator that has seen nothing", []string{"first", "second"}, nonces(plan("late", 0)))
		x.same("a coordinator that has seen the first", []string{"second"}, nonces(plan("late", first[0].Seq)))
		all, err := x.journal.Plans(x.t.Context(), key)
		x.must(err)
		x.same("all", append(first, second...), all)

		other := wire.BatchKey{Tenant: "_", Session: "s", Batch: "other"}
		if plans, err := x.journal.Plans(x.t.Context(), other); err != nil || len(plans) != 0 {
			t.Errorf("another batch has the plans %+v, %v", plans, err)
		}
		x.append(x.names.Of(wire.VerbPlan, key), "no json")
		if _, err := x.journal.Plans(x.t.Context(), key); !errors.Is(err, bus.ErrCorrupt) {
			t.Errorf("with a damaged record: %v, want bus.ErrCorrupt", err)
		}
	})
}

// Two workers hand a call back: the first hand-back counts, and the second one is no error.
func TestTheFirstHandBackCounts(t *testing.T) {
	withFixture(t, func(x *fixture) {
		for _, worker := range []string{"first", "second"} {
			x.must(x.journal.WriteHandBack(x.t.Context(), key.Call(2), wire.HandBack{Worker: worker, Reason: "writes"}))
		}
		stored := x.stored(bus.Calls, x.names.OfCall(wire.VerbHand, key.Call(2)))
		if len(stored) != 1 {
			t.Fatalf("%d hand-backs are stored, want 1", len(stored))
		}
		var back wire.HandBack
		x.must(json.Unmarshal(stored[0].Data, &back))
		x.same("stored", wire.HandBack{V: messages.Version, Worker: "first", Reason: "writes"}, back)
		ended, cancel := context.WithCancel(x.t.Context())
		cancel()
		if err := x.journal.WriteHandBack(ended, key.Call(3), wire.HandBack{}); err == nil || bus.IsTerminal(err) {
			t.Errorf("not sent: %v, want an error that a retry may cure", err)
		}
	})
}

// A stored reply names the batch in the log that it answers by more than the id, because a
// batch with the same id may be submitted again.
func TestAReplyAnswersOneBatchInTheLog(t *testing.T) {
	withFixture(t, func(x *fixture) {
		a := x.submit("s", "b")
		if _, found, err := x.journal.ReplyTo(x.t.Context(), a); found || err != nil {
			t.Fatalf("before the reply: found %t, %v", found, err)
		}
		body, err := x.journal.WriteReply(x.t.Context(), a, messages.Reply{V: 1, Status: messages.ReplyCompleted})
		x.must(err)
		second, err := x.journal.WriteReply(x.t.Context(), a, messages.Reply{V: 1, Status: messages.ReplyAborted})
		x.must(err)
		x.same("the reply of a second coordinator", string(body), string(second))
		own, found, err := x.journal.ReplyTo(x.t.Context(), a)
		x.must(err)
		if !found || !own.Own || string(own.Body) != string(body) || own.Stored.IsZero() {
			t.Errorf("found %t: %+v, want the batch's own reply", found, own)
		}
		x.must(x.journal.Remove(x.t.Context(), a))
		time.Sleep(time.Second)
		again := x.submit("s", "b")
		recreated := again // as if the log was made again, so that its sequences begin anew
		recreated.Seq = a.Seq
		for _, later := range []journal.Accepted{again, recreated} {
			reply, found, err := x.journal.ReplyTo(x.t.Context(), later)
			x.must(err)
			if !found || reply.Own || string(reply.Body) != string(body) {
				t.Errorf("submitted again at %d: found %t, own %t, %s; want the reply of the earlier batch", later.Seq, found, reply.Own, reply.Body)
			}
		}
		stored, found, err := x.journal.Reply(x.t.Context(), a.Key)
		if x.must(err); !found || string(stored) != string(body) {
			t.Errorf("by its key: found %t, %s", found, stored)
		}
	})
}

// The server publishes a stored reply on the subject on which the agent waits.
func TestAReplyIsPublished(t *testing.T) {
	withFixture(t, func(x *fixture) {
		got := make(chan bus.Msg, 2)
		stop, err := x.conn.Subscribe(x.names.Of(wire.VerbReply, key), "", func(m bus.Msg) { got <- m })
		x.must(err)
		defer stop()
		x.must(x.conn.Flush(x.t.Context()))
		body, err := x.journal.WriteReply(x.t.Context(), journal.Accepted{Key: key}, messages.Reply{V: 1})
		x.must(err)
		if published := <-got; string(published.Data) != string(body) {
			t.Errorf("published %s, stored %s", published.Data, body)
		}
	})
}
