package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A batch looks something up, makes a refund that needs approval, and looks something up
// again. The first call runs at once, the refund runs once a person approves it, and the last
// call runs when the refund has ended.
func TestARefundWaitsForAPerson(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		b := batchIn(messages.Anthropic, "s", "b", call{"lookup", `{"n":1}`}, refund("149.99"), call{"lookup", `{"n":2}`})
		f.submit(b)
		q := f.question(b, 1)
		if q.CallID != "c1" || q.Tool != "refund" || q.Tier != messages.TierHigh || q.Rule != "refunds-over-50" || q.Requester != messages.OneTenant || !strings.Contains(q.Line, "149.99") {
			t.Errorf("the question is %+v", q)
		}
		if got := q.Expires.Sub(q.Asked); got != 15*time.Minute {
			t.Errorf("the question stays open for %v", got)
		}
		time.Sleep(10 * time.Minute) // simulated: far longer than a call may wait in the queue
		if n := len(ledger.all()); n != 0 {
			t.Fatalf("refunded %d times before anybody approved it", n)
		}
		f.approve(p, "alice", q)
		reply := f.reply(b, 30*time.Second)
		f.wantStatuses(reply, "ok ok ok")
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
		if !strings.Contains(string(reply.Reinjection), `"tool_use_id":"c1"`) {
			t.Errorf("the reinjection is %s", reply.Reinjection)
		}
		if got := reply.Results[1].Permission; got == nil || len(got.By) != 1 || got.By[0] != "alice" || got.Approval != q.ID {
			t.Errorf("the permission is %+v", got)
		}
		if reply.Results[2].Started.Before(reply.Results[1].Started) {
			t.Error("the call behind the refund started before it")
		}
		_, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil)
		wantRefused(t, "a second approval", err, messages.ClassNotPending)
	})
}

// The journal holds a grant that no approver has signed. The call does not run, no matter who
// wrote the grant.
func TestAForgedGrantRunsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		b := canonical("s", "b", refund("149.99"))
		f.submit(b)
		q := f.question(b, 0)
		mallory := newPeople(t, "alice")
		forged, _ := mallory.keys["alice"].Sign(approval.Answer(q, messages.VerdictApprove, "alice"))
		forged.Key = p.keys["alice"].Public()
		j, key := journal.New(f.conn), wire.KeyOf(messages.OneTenant, "s", "b").Call(0)
		newest, _, err := j.Newest(context.Background(), key)
		if err != nil {
			t.Fatal(err)
		}
		record := newest.Record
		own := *record.Approval
		own.Decisions = []messages.Decision{forged}
		record.State, record.Nonce, record.Approval = wire.Granted, "forged", &own
		if _, err := j.Write(context.Background(), key, record, newest.Seq); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Minute)
		if n := len(ledger.all()); n != 0 {
			t.Fatalf("a forged grant refunded %d times", n)
		}
		if lines := f.auditCounts(); lines["approval_void bad_signature"] != 1 {
			t.Errorf("the audit log has %v", lines)
		}
		f.approve(p, "alice", f.question(b, 0))
		f.wantStatuses(f.reply(b, time.Minute), "ok")
	})
}

// A worker checks an approved call against the policy again before it runs the call: a new
// deny rule denies it, and another policy asks again.
func TestAnApprovalIsCheckedAgainBeforeTheRun(t *testing.T) {
	for _, row := range []struct {
		name, policy, status string
		asks                 bool
	}{
		{"denied meanwhile", refunds + "deny: [refund]\n", "denied", false},
		{"another policy", refunds + "deny: [something_else]\n", "ok", true},
		{"the same policy", refunds, "ok", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				p := newPeople(t, "alice")
				ledger := f.addBankTools()
				first := f.worker(p.worker(t, refunds))
				f.coordinator(p.coordinator())
				b := canonical("s", "b", refund("149.99"))
				f.submit(b)
				q := f.question(b, 0)
				first.stop()
				f.approve(p, "alice", q)
				f.worker(p.worker(t, row.policy))
				if row.asks {
					again := f.question(b, 0)
					if again.ID == q.ID || len(ledger.all()) > 0 {
						t.Fatalf("asked again as %s (was %s), %d runs", again.ID, q.ID, len(ledger.all()))
					}
					f.approve(p, "alice", again)
				}
				reply := f.reply(b, time.Minute)
				f.wantStatuses(reply, row.status)
				if row.status == "denied" && reply.Results[0].Err.Code != messages.CodePolicyDenied {
					t.Errorf("it ended with %+v", reply.Results[0].Err)
				}
			})
		})
	}
}

// Two reads of a stage need approval. The other reads of the stage run meanwhile, and the next
// stage waits for the approvals.
func TestAReadMayAsk(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		secret := f.recordedTool(schemas.Tool{Name: "secret", Kind: messages.KindRead}, func(context.Context, int) (tool.Output, error) { return tool.Text("42"), nil })
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		kill := f.killableCoordinator(p.coordinator())
		b := canonical("s", "b", call{"secret", `{"n":1}`}, call{"lookup", ""}, call{"secret", `{"n":2}`}, refund("10"))
		f.submit(b)
		q0, q2 := f.question(b, 0), f.question(b, 2)
		time.Sleep(time.Minute)
		if n := len(secret.all()) + len(ledger.all()); n != 0 {
			t.Fatalf("%d runs before anybody approved the call", n)
		}
		kill()
		f.coordinator(p.coordinator())
		f.approve(p, "alice", q2)
		f.hasRun(secret, 1)
		time.Sleep(time.Minute)
		if n := len(ledger.all()); n != 0 {
			t.Fatal("the write started before a read of the stage before it had ended")
		}
		if _, err := f.sendDecision(p, "alice", q0, messages.VerdictDeny, nil); err != nil {
			t.Fatal(err)
		}
		f.wantStatuses(f.reply(b, time.Minute), "denied ok ok ok")
		if n := len(secret.all()); n != 1 {
			t.Errorf("the secret was read %d times", n)
		}
	})
}

// A thousand calls (or as many as -many says) wait for approval and keep no slot busy. After
// every process is restarted, one of the calls is approved and runs once, under its own call
// id.
func TestManyApprovals(t *testing.T) {
	parked := repeats(*many, *many)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		long := p.worker(t, refunds)
		long.ApprovalTTL = 50 * time.Minute
		w := f.worker(long)
		c1, c2 := f.coordinator(p.coordinator()), f.coordinator(p.coordinator())
		batch := func(n int) messages.Batch {
			return canonical(fmt.Sprint("s", n), "b", refund("149.99"), call{"lookup", ""})
		}
		for n := range parked {
			f.submit(batch(n))
		}
		pending := func() int {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			list, err := f.client.Approvals(ctx)
			if err != nil {
				t.Log(err)
			}
			return len(list)
		}
		waitFor := func(n int) {
			t.Helper()
			deadline := time.Now().Add(20 * time.Minute)
			for pending() != n {
				if time.Now().After(deadline) {
					t.Fatalf("%d questions are open, want %d", pending(), n)
				}
				time.Sleep(time.Second)
			}
		}
		waitFor(parked)
		free := func(session string) { // waiting calls take no slot: the next calls can run
			t.Helper()
			time.Sleep(11 * time.Second) // simulated: workers have announced their free slots
			for _, w := range f.presentWorkers() {
				if w.Busy != 0 {
					t.Errorf("%s is busy with %d calls", w.Worker, w.Busy)
				}
			}
			b := canonical(session, "free", call{"lookup", ""}, refund("1"))
			f.submit(b)
			f.wantStatuses(f.reply(b, 10*time.Second), "ok ok")
		}
		free("before")
		w.stop()
		c1.stop()
		c2.stop()
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		f.worker(long)
		f.coordinator(p.coordinator())
		f.coordinator(p.coordinator())
		waitFor(parked)
		free("after")
		if n := len(ledger.all()); n != 2 {
			t.Fatalf("%d refunds, want the two small ones", n)
		}
		b := batch(parked / 2)
		f.approve(p, "alice", f.question(b, 0))
		reply := f.reply(b, 30*time.Second)
		f.wantStatuses(reply, "ok ok")
		if n := len(ledger.all()); n != 3 || reply.Results[0].CallID != "c0" || !strings.Contains(string(reply.Reinjection), `"c0"`) {
			t.Errorf("%d refunds; the reply: %+v", n, reply)
		}
		waitFor(parked - 1)
	})
}
