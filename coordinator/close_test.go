package coordinator

import (
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The journal holds the plan of another batch with the same id, and a live claim on a call
// that the new batch does not have. The new batch gets its reply only after that claim has
// ended.
func TestAnotherBodysClaimIsWaitedOut(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key := wire.KeyOf(messages.OneTenant, "s", "b")
		plan := wire.PlanRecord{V: 1, Nonce: "other", Digest: strings.Repeat("0", 64)}
		_, err := o.journal.WritePlan(t.Context(), key, plan, 0)
		o.must(err)
		_, err = o.journal.Write(t.Context(), key.Call(1), wire.CallRecord{State: wire.Claimed, Nonce: "n", Attempt: 1, Worker: "w", LeaseMS: 600_000, DeadlineMS: 600_000}, 0)
		o.must(err)
		o.submit("s", "b", 1)
		o.coordinator(Config{})
		began := time.Now()
		o.reply(key, 30*time.Minute)
		if time.Since(began) < 5*time.Minute {
			t.Error("answered beside a live claim")
		}
	})
}

// A coordinator of another version has begun a batch that this coordinator cannot decode. This
// coordinator refuses the batch only after the claim on its call has ended.
func TestARefusalWaitsOutALiveClaim(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		b := messages.Batch{V: 1, ID: "b", Session: "s", Provider: "newer", Message: []byte(`{"calls":[]}`)}
		key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
		_, err := o.journal.WritePlan(t.Context(), key, wire.PlanRecord{V: 1, Nonce: "x", Digest: messages.Digest(rawjson.MustMarshal(b))}, 0)
		o.must(err)
		_, err = o.journal.Write(t.Context(), key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: "n", Attempt: 1, Worker: "w", LeaseMS: 600_000, DeadlineMS: 600_000}, 0)
		o.must(err)
		_, err = o.conn.Append(o.t.Context(), o.names.Of(wire.VerbBatch, key), nil, rawjson.MustMarshal(b))
		o.must(err)
		time.Sleep(time.Second) // simulated: then the batch is older than the coordinator's connection
		o.coordinator(Config{})
		began := time.Now()
		o.reply(key, 30*time.Minute)
		if time.Since(began) < time.Minute {
			t.Error("refused beside a live claim")
		}
	})
}

// A driver closed a batch and stored the result of a write that nobody had claimed. It stopped
// before it stored the call's record. The next driver stores the record, because without it a
// worker could still claim the call.
func TestAClosedCallIsEndedInItsJournal(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key := o.submit("s", "b", 1)
		_, err := o.journal.WriteResult(t.Context(), key.Call(0), messages.Result{
			V: 1, CallID: "c0", Tool: "act", Status: messages.StatusError, Outcome: messages.Failed(messages.CodeInternal, "closed"),
		})
		o.must(err)
		_, err = o.conn.Append(t.Context(), o.names.Of(wire.VerbPlan, key), nil, []byte("damaged"))
		o.must(err)
		o.coordinator(Config{})
		o.reply(key, 20*time.Minute)
		newest, found, err := o.journal.Newest(t.Context(), key.Call(0))
		o.must(err)
		if !found || newest.Record.State != wire.Ended {
			t.Errorf("the newest record is %q, want %q", newest.Record.State, wire.Ended)
		}
	})
}

// A call is closed while a person is asked about it: the question is closed too.
func TestAClosedCallAsksNobody(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		o.worker()
		c, stop := o.coordinator(Config{})
		key := o.submit("s", "b", 1)
		o.rests(key.Call(0), c)
		stop()
		_, err := o.conn.Append(t.Context(), o.names.Of(wire.VerbPlan, key), nil, []byte("damaged"))
		o.must(err)
		o.coordinator(Config{})
		o.reply(key, 20*time.Minute)
		time.Sleep(5 * time.Second)
		if len(o.pending()) > 0 {
			t.Error("the question of a call that has ended is still listed")
		}
	})
}

// The fleet was away for longer than records are kept: no call of the batch runs, and the
// results say so.
func TestABatchThatNobodyDroveExpires(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key := o.submit("s", "b", 1)
		time.Sleep(4 * time.Hour)
		o.coordinator(Config{})
		r := o.reply(key, 5*time.Minute)
		if r.Results[0].Status != messages.StatusExpired {
			t.Errorf("its call is %s, want expired", r.Results[0].Status)
		}
	})
}

// A batch waits long for a coordinator: after that, its calls wait for a worker as long as the
// calls of any batch.
func TestABatchThatWaitedForItsCoordinatorHasOneQueueTimeout(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key := o.submit("s", "b", 1)
		time.Sleep(time.Second)
		o.coordinator(Config{})
		began := time.Now()
		o.reply(key, 5*time.Minute)
		if time.Since(began) > 65*time.Second {
			t.Errorf("it is answered after %v; queue_timeout is 60 s", time.Since(began))
		}
	})
}
