package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// resumesWithin is a little longer than the time between two checks of a batch that waits for
// approval.
const resumesWithin = 5*time.Minute + 10*time.Second

// addSecretTool registers a read that needs approval. Its runs are not recorded.
func (f *fleet) addSecretTool() {
	f.tool(schemas.Tool{Name: "secret", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
}

// storeApproval stores an approval and wakes no batch, as a coordinator does that is killed
// right after it stored the approval.
func (f *fleet) storeApproval(p people, name string, q messages.Approval) {
	f.t.Helper()
	ctx, j, key := context.Background(), journal.New(f.conn), wire.KeyOf(messages.OneTenant, q.Session, q.Batch).Call(q.Index)
	entry, err := j.Question(ctx, key)
	if err != nil {
		f.t.Fatal(err)
	}
	d := approval.Answer(q, messages.VerdictApprove, name)
	d.At = time.Now().UTC()
	if d, err = p.keys[name].Sign(d); err != nil {
		f.t.Fatal(err)
	}
	granted, state, refused := p.approvers.Take(*entry.Record.Approval, d, time.Now())
	if refused != nil || state != messages.DecisionGranted {
		f.t.Fatalf("%s, %v", state, refused)
	}
	record := entry.Record
	record.State, record.Nonce, record.Approval = wire.Granted, "granted", &granted
	if _, err := j.Write(ctx, key, record, entry.Seq); err != nil {
		f.t.Fatal(err)
	}
}

// All processes stop while a batch waits for approval. The coordinator that stores the
// decision is killed right after. The batch resumes within resumesWithin and runs the approved
// call once.
func TestADecisionOutlivesEveryProcess(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		f.addSecretTool()
		w, c := f.worker(p.worker(t, refunds)), f.coordinator(p.coordinator())
		b := canonical("s", "b", call{"lookup", `{"n":1}`}, call{"secret", `{"of":"ada"}`}, refund("149.99"), call{"lookup", `{"n":2}`})
		behind := canonical("s", "behind", call{"lookup", ""})
		f.submit(b)
		f.submit(behind)
		for index := range 2 {
			q := f.question(b, 1+index)
			w.stop()
			c.stop()
			srv.Stop()
			time.Sleep(2 * time.Minute)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			f.until("the agent is connected again", f.conn.Connected)
			f.storeApproval(p, "alice", q)
			w, c = f.worker(p.worker(t, refunds)), f.coordinator(p.coordinator())
			time.Sleep(resumesWithin)
		}
		reply := f.reply(b, time.Second)
		f.wantStatuses(reply, "ok ok ok ok")
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
		f.wantStatuses(f.reply(behind, time.Minute), "ok")
	})
}

// Each question extends the life of a batch by the time that approvers have. The workers of
// the batch use the longer life too.
func TestQuestionsExtendTheLifeOfABatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		f.coordinator(coordinator.Config{Approvers: p.approvers, BatchTTL: 20 * time.Minute})
		b := canonical("s", "b", refund("51"), refund("52"), refund("53"), refund("54"))
		f.submit(b)
		for index := range 2 {
			q := f.question(b, index)
			time.Sleep(14 * time.Minute)
			f.approve(p, "alice", q)
		}
		f.question(b, 2) // after 28 minutes; twice 20 minutes are the maximum
		began := time.Now()
		reply := f.reply(b, 13*time.Minute)
		f.wantStatuses(reply, "ok ok expired expired")
		if took := time.Since(began); took < 11*time.Minute || len(ledger.all()) != 2 {
			t.Errorf("over after %v, refunded %d times", took, len(ledger.all()))
		}
	})
}

// A read waits for approval, and other reads of its batch have run. After an abort the read
// never runs, and the session goes on.
func TestAParkedReadIsAborted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		f.addBankTools()
		f.addSecretTool()
		f.worker(p.worker(t, refunds))
		for range 2 {
			f.coordinator(p.coordinator())
		}
		for round := range 5 {
			b := canonical("s", fmt.Sprint("b", round), call{"lookup", `{"n":1}`}, call{"secret", `{"of":"ada"}`}, call{"lookup", `{"n":2}`}, refund("10"))
			f.submit(b)
			q := f.question(b, 1)
			time.Sleep(time.Duration(round) * time.Minute)
			f.abort("s", string(b.ID))
			f.wantStatuses(f.reply(b, 5*time.Second), "ok aborted ok aborted")
			_, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil)
			wantRefused(t, "an approval of what was aborted", err, messages.ClassNotPending)
		}
	})
}
