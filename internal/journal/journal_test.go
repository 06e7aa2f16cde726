package journal_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

var key = wire.BatchKey{Tenant: "_", Session: "s", Batch: "b"}

// eachWrite has each kind of write whose outcome package outcome decides. Each is the first
// record of its subject.
var eachWrite = map[string]func(context.Context, *journal.Journal, string) error{
	"call record": func(ctx context.Context, j *journal.Journal, nonce string) error {
		_, err := j.Write(ctx, key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: nonce}, 0)
		return err
	},
	"result": func(ctx context.Context, j *journal.Journal, nonce string) error {
		_, err := j.WriteResult(ctx, key.Call(1), messages.Result{V: 1, Index: 1, Worker: nonce})
		return err
	},
	"plan": func(ctx context.Context, j *journal.Journal, nonce string) error {
		_, err := j.WritePlan(ctx, key, wire.PlanRecord{V: 1, Nonce: nonce}, 0)
		return err
	},
	"reply": func(ctx context.Context, j *journal.Journal, nonce string) error {
		_, err := j.WriteReply(ctx, journal.Accepted{Key: key}, messages.Reply{V: 1, Batch: messages.BatchID(nonce)})
		return err
	},
}

// A write has a conflict, and the newest record cannot be read: the error has to let the
// caller try again. The newest record may be the writer's own, from a try whose
// acknowledgement was lost, so the write may have succeeded.
func TestAConflictWhoseReadFailsIsTriedAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		all, blind := connect(t, srv, "all"), connect(t, srv, "blind")
		if err := provision.Ensure(t.Context(), all, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		for what, write := range eachWrite {
			if err := write(t.Context(), journal.New(all), "own"); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			err := write(ctx, journal.New(blind), "own")
			cancel()
			var lost *journal.Lost
			switch {
			case err == nil || errors.As(err, &lost):
				t.Errorf("%s: decided without reading the newest record: %v", what, err)
			case bus.IsTerminal(err):
				t.Errorf("%s: the error ends the retries: %v", what, err)
			}
			if err := write(t.Context(), journal.New(all), "own"); err != nil {
				t.Errorf("%s: written again by its own writer: %v", what, err)
			}
		}
	}, withUsers(t))
}

// Two writers write the same record: the second one gets what the first one stored.
func TestTheFirstOfTwoWritersCounts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, ctx := connect(t, srv, "all"), t.Context()
		if err := provision.Ensure(ctx, conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		j := journal.New(conn)
		claim := func(nonce string, last uint64) (uint64, error) {
			return j.Write(ctx, key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: nonce}, last)
		}
		seq, err := claim("first", 0)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := claim("first", 0); err != nil || again != seq {
			t.Errorf("written again by the first writer: %d, %v; want %d", again, err, seq)
		}
		var lost *journal.Lost
		if _, err := claim("second", 0); !errors.As(err, &lost) || lost.Newest.Seq != seq || lost.Newest.Record.Nonce != "first" {
			t.Errorf("the second writer is told %v; want the first writer's record at %d", err, seq)
		}
		if stored, err := j.WriteResult(ctx, key.Call(1), messages.Result{V: 1, Index: 1, Worker: "first"}); err != nil || stored.Worker != "first" {
			t.Fatalf("result: %+v, %v", stored, err)
		}
		if stored, err := j.WriteResult(ctx, key.Call(1), messages.Result{V: 1, Index: 1, Worker: "second"}); err != nil || stored.Worker != "first" {
			t.Errorf("second result: %+v, %v; want the first", stored, err)
		}
		if plans, err := j.WritePlan(ctx, key, wire.PlanRecord{V: 1, Nonce: "first"}, 0); err != nil || len(plans) != 1 {
			t.Fatalf("plan: %+v, %v", plans, err)
		}
		if plans, err := j.WritePlan(ctx, key, wire.PlanRecord{V: 1, Nonce: "second"}, 0); err != nil || len(plans) != 1 || plans[0].Record.Nonce != "first" {
			t.Errorf("second plan: %+v, %v; want the first", plans, err)
		}
	}, withUsers(t))
}

// The newest record of a call cannot be decoded. It counts as a record of another writer, so
// [Journal.Write] returns [Lost].
func TestARecordThatCannotBeReadIsAnothers(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, ctx := connect(t, srv, "all"), t.Context()
		if err := provision.Ensure(ctx, conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Append(ctx, conn.Names().OfCall(wire.VerbCall, key.Call(0)), nil, []byte("no json")); err != nil {
			t.Fatal(err)
		}
		var lost *journal.Lost
		_, err := journal.New(conn).Write(ctx, key.Call(0), wire.CallRecord{State: wire.Claimed, Nonce: "own"}, 0)
		if !errors.As(err, &lost) || lost.Newest.Record.State != journal.Unreadable {
			t.Errorf("told %v; want the record that cannot be read", err)
		}
	}, withUsers(t))
}
