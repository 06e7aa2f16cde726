package coordinator

import (
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// TestAnotherBodysClaimIsWaitedOut: the journal holds the plan of another body under the id, and a
// live claim on a call that the new body does not have. The batch is answered after that claim.
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

// TestARefusalWaitsOutALiveClaim: a coordinator of another version has begun a batch, and this one
// cannot decode it. The batch is refused only after the claim on its call has ended.
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
		time.Sleep(time.Second) // simulated: it is older than the connection of the coordinator
		o.coordinator(Config{})
		began := time.Now()
		o.reply(key, 30*time.Minute)
		if time.Since(began) < time.Minute {
			t.Error("refused beside a live claim")
		}
	})
}

// TestAClosedCallIsEndedInItsJournal: a driver that closed the batch stored the result of a write
// that nobody had claimed. It stopped before it stored the record. Without the record a worker
// could still claim the call.
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

// TestAClosedCallAsksNobody: closing a call also closes the question about it.
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

// TestABatchThatNobodyDroveExpires: the fleet was away for longer than records are kept. No call
// runs, and the results say that.
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

// TestABatchThatWaitedForItsCoordinatorHasOneQueueTimeout: a batch waits long for a coordinator.
// After that, its calls wait for a worker as long as any others.
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
