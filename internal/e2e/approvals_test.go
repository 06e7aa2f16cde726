package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The call before the refund runs at once, the refund runs once a person approves it, and the call
// after it runs when the refund has ended.
func TestARefundWaitsForAPerson(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.bank()
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		b := batchIn(messages.Anthropic, "s", "b", call{"lookup", `{"n":1}`}, refund("149.99"), call{"lookup", `{"n":2}`})
		f.submit(b)
		q := f.question(b, 1)
		if q.CallID != "c1" || q.Tool != "refund" || q.Tier != messages.TierHigh || q.Rule != "refunds-over-50" || q.Requester != messages.OneTenant || !strings.Contains(q.Line, "149.99") {
			t.Errorf("the question is %+v", q)
		}
		if got := q.Expires.Sub(q.Asked); got != 15*time.Minute {
			t.Errorf("it stays open for %v", got)
		}
		time.Sleep(10 * time.Minute) // simulated: far longer than a call may wait in the queue
		if n := len(ledger.all()); n != 0 {
			t.Fatalf("refunded %d times before anybody agreed", n)
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

// Each decision that a person can make, and how the call then ends.
func TestWhatAPersonMaySay(t *testing.T) {
	for _, row := range []struct {
		name   string
		amount string
		say    func(f *fleet, p people, q messages.Approval, b messages.Batch)
		status string
		code   messages.Code
		words  []string
		ran    string // the amount that was refunded; "" none
	}{
		{"deny", "149.99", func(f *fleet, p people, q messages.Approval, _ messages.Batch) {
			state, err := f.sendDecision(p, "alice", q, messages.VerdictDeny, func(d *messages.Decision) { d.Reason = "the order was already refunded" })
			if err != nil || state != messages.DecisionDenied {
				f.t.Errorf("deny: %s, %v", state, err)
			}
			_, err = f.sendDecision(p, "bob", q, messages.VerdictApprove, nil)
			wantRefused(f.t, "an approval after the denial", err, messages.ClassNotPending)
		}, "ok denied ok", messages.CodeDeniedByUser, []string{"alice", "the order was already refunded"}, ""},
		{"edit", "149.99", func(f *fleet, p people, q messages.Approval, _ messages.Batch) {
			_, err := f.sendDecision(p, "alice", q, messages.VerdictEdit, func(d *messages.Decision) { d.Input = json.RawMessage(`{"order":"A-1001","amount":"much"}`) })
			wantRefused(f.t, "an edit that breaks the schema", err, messages.ClassInvalidDecision)
			state, err := f.sendDecision(p, "alice", q, messages.VerdictEdit, func(d *messages.Decision) { d.Input = json.RawMessage(`{"order":"A-1001","amount":100}`) })
			if err != nil || state != messages.DecisionGranted {
				f.t.Errorf("edit: %s, %v", state, err)
			}
		}, "ok ok ok", "", nil, "100"},
		{"expire", "149.99", func(f *fleet, p people, q messages.Approval, b messages.Batch) {
			time.Sleep(15*time.Minute + time.Second)
			_, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil)
			var refusal *messages.Refusal
			if !errors.As(err, &refusal) || refusal.Class != messages.ClassNotPending && refusal.Class != messages.ClassApprovalExpired {
				f.t.Errorf("an approval that is late: %v", err)
			}
		}, "ok expired ok", messages.CodeApprovalExpired, nil, ""},
		{"two people", "1000.01", func(f *fleet, p people, q messages.Approval, b messages.Batch) {
			ticket := func(d *messages.Decision) { d.Ticket = "FIN-7" }
			state, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil)
			if err != nil || state != messages.DecisionWaiting {
				f.t.Errorf("the first: %s, %v", state, err)
			}
			q = f.question(b, 1)
			_, err = f.sendDecision(p, "alice", q, messages.VerdictApprove, ticket)
			wantRefused(f.t, "the same person again", err, messages.ClassSameApprover)
			time.Sleep(6 * time.Minute)
			_, err = f.sendDecision(p, "bob", q, messages.VerdictApprove, nil)
			wantRefused(f.t, "no ticket", err, messages.ClassTicketMissing)
			state, err = f.sendDecision(p, "bob", q, messages.VerdictApprove, ticket)
			if err != nil || state != messages.DecisionGranted {
				f.t.Errorf("the second: %s, %v", state, err)
			}
		}, "ok ok ok", "", nil, "1000.01"},
		{"small", "50", nil, "ok ok ok", "", nil, "50"},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				p := newPeople(t, "alice", "bob")
				f.tool(schemas.Tool{Name: "lookup", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Text("x"), nil })
				ledger := f.kept(schemas.Tool{Name: "refund", InputSchema: json.RawMessage(`{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]}`)},
					func(context.Context, int) (tool.Output, error) { return tool.Text("refunded"), nil })
				f.worker(p.worker(t, refunds))
				f.coordinator(p.coordinator())
				b := canonical("s", "b", call{"lookup", ""}, refund(row.amount), call{"lookup", ""})
				f.submit(b)
				if row.say != nil {
					row.say(f, p, f.question(b, 1), b)
				}
				reply := f.reply(b, time.Minute)
				f.wantStatuses(reply, row.status)
				if row.code != "" && (reply.Results[1].Err == nil || reply.Results[1].Err.Code != row.code) {
					t.Errorf("it ended with %+v, want %s", reply.Results[1].Err, row.code)
				}
				f.wantWords(reply.Results[1], row.words...)
				runs := ledger.all()
				switch {
				case row.ran == "" && len(runs) > 0, len(runs) > 1:
					t.Errorf("refunded %d times: %+v", len(runs), runs)
				case row.ran != "" && (len(runs) != 1 || !strings.Contains(runs[0].input, `"amount":`+row.ran+`}`)):
					t.Errorf("runs %+v, want one of %s", runs, row.ran)
				}
				if row.name == "edit" && !strings.Contains(string(reply.Reinjection), "changed the arguments") {
					t.Errorf("the model is not told of the edit: %s", reply.Reinjection)
				}
			})
		})
	}
}

// Many approvers decide at once, at several coordinators: exactly one decision counts.
func TestTheFirstDecisionWins(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice", "bob", "carol", "dave")
		ledger := f.bank()
		f.worker(p.worker(t, refunds))
		for range 3 {
			f.coordinator(p.coordinator())
		}
		for round := range 20 {
			b := canonical("s", fmt.Sprint("b", round), refund("149.99"))
			f.submit(b)
			q := f.question(b, 0)
			var taken, denied atomic.Int32
			var deciding sync.WaitGroup
			for i, name := range []string{"alice", "bob", "carol", "dave"} {
				verdict := messages.VerdictApprove
				if i == round%4 {
					verdict = messages.VerdictDeny
				}
				deciding.Go(func() {
					state, err := f.sendDecision(p, name, q, verdict, nil)
					switch {
					case err != nil:
						wantRefused(t, name, err, messages.ClassNotPending)
					default:
						taken.Add(1)
						if state == messages.DecisionDenied {
							denied.Add(1)
						}
					}
				})
			}
			deciding.Wait()
			before := len(ledger.all())
			reply := f.reply(b, time.Minute)
			if taken.Load() != 1 {
				t.Errorf("round %d: %d decisions were taken", round, taken.Load())
			}
			want := messages.StatusOK
			if denied.Load() == 1 {
				want = messages.StatusDenied
			}
			if reply.Results[0].Status != want {
				t.Errorf("round %d: %s, want %s", round, reply.Results[0].Status, want)
			}
			_ = before
		}
		seen := map[string]bool{}
		for _, r := range ledger.all() {
			if seen[r.key] {
				t.Errorf("run twice under one key: %+v", r)
			}
			seen[r.key] = true
		}
	})
}

// Each invalid decision is refused with its reason, and the refusal is in the audit log.
func TestRefusedDecisions(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice", messages.OneTenant)
		mallory := newPeople(t, "alice") // another key under her name
		ledger := f.bank()
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		b, other := canonical("s", "b", refund("149.99")), canonical("s2", "b", refund("2.00"+"e2"))
		f.submit(b)
		f.submit(other)
		q, q2 := f.question(b, 0), f.question(other, 0)
		// A question can be answered as soon as it is stored; its coordinator writes the audit line
		// a moment later.
		f.until("both questions are on record", func() bool { return f.audited()["approval_asked"] == 2 })
		sign := func(name string, q messages.Approval, change func(*messages.Decision)) messages.Decision {
			d := approval.Answer(q, messages.VerdictApprove, name)
			if change != nil {
				change(&d)
			}
			signed, err := p.keys[name].Sign(d)
			if err != nil {
				t.Fatal(err)
			}
			return signed
		}
		refused := func(what string, d messages.Decision, class messages.Class) {
			t.Helper()
			_, err := f.decide(d)
			wantRefused(t, what, err, class)
		}
		forged, _ := mallory.keys["alice"].Sign(approval.Answer(q, messages.VerdictApprove, "alice"))
		refused("another's key", forged, messages.ClassBadSignature)
		unsigned := approval.Answer(q, messages.VerdictApprove, "alice")
		unsigned.Key, unsigned.Nonce = p.keys["alice"].Public(), "n"
		refused("no signature", unsigned, messages.ClassBadSignature)
		changed := sign("alice", q, nil)
		changed.Ticket = "X-1"
		refused("changed after it was signed", changed, messages.ClassBadSignature)
		refused("other arguments", sign("alice", q, func(d *messages.Decision) { d.ArgsHash = q2.ArgsHash }), messages.ClassApprovalMismatch)
		refused("another policy", sign("alice", q, func(d *messages.Decision) { d.Policy = "other" }), messages.ClassApprovalMismatch)
		refused("another definition", sign("alice", q, func(d *messages.Decision) { d.ToolDigest = "other" }), messages.ClassApprovalMismatch)
		elsewhere := sign("alice", q2, nil)
		elsewhere.Session = q.Session
		refused("a decision for another call, sent as one for this", elsewhere, messages.ClassBadSignature)
		refused("the requester's own", sign(messages.OneTenant, q, nil), messages.ClassSelfApproval)
		good := sign("alice", q, nil)
		if state, err := f.decide(good); err != nil || state != messages.DecisionGranted {
			t.Fatalf("approve: %s, %v", state, err)
		}
		f.wantStatuses(f.reply(b, time.Minute), "ok")
		refused("a replay", good, messages.ClassNotPending)
		time.Sleep(16 * time.Minute)
		f.wantStatuses(f.reply(other, time.Minute), "expired")
		refused("late", sign("alice", q2, nil), messages.ClassNotPending)
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
		lines := f.audited()
		for name, want := range map[string]int{
			"decision_refused bad_signature": 4, "decision_refused approval_mismatch": 3, "decision_refused self_approval": 1, "decision_refused not_pending": 2,
			"approval_asked": 2, "approval_decided": 1, "approval_executed": 1, "approval_expired": 1,
		} {
			if lines[name] != want {
				t.Errorf("%d audit lines %q, want %d", lines[name], name, want)
			}
		}
	})
}

// A grant in the journal that no approver has signed allows nothing, no matter who wrote it.
func TestAForgedGrantRunsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.bank()
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
		if lines := f.audited(); lines["approval_void bad_signature"] != 1 {
			t.Errorf("the audit log has %v", lines)
		}
		f.approve(p, "alice", f.question(b, 0))
		f.wantStatuses(f.reply(b, time.Minute), "ok")
	})
}

// Changes between the approval and the run count: a new deny rule, or another policy.
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
				ledger := f.bank()
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

// A read may need approval too. The other reads of its stage do not wait for it; the next stage
// does.
func TestAReadMayAsk(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		secret := f.kept(schemas.Tool{Name: "secret", Kind: messages.KindRead}, func(context.Context, int) (tool.Output, error) { return tool.Text("42"), nil })
		ledger := f.bank()
		f.worker(p.worker(t, refunds))
		kill := f.mortal(p.coordinator())
		b := canonical("s", "b", call{"secret", `{"n":1}`}, call{"lookup", ""}, call{"secret", `{"n":2}`}, refund("10"))
		f.submit(b)
		q0, q2 := f.question(b, 0), f.question(b, 2)
		time.Sleep(time.Minute)
		if n := len(secret.all()) + len(ledger.all()); n != 0 {
			t.Fatalf("%d runs before anybody agreed", n)
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

// A thousand calls (-many) wait for approval and keep no part of the fleet busy. After every
// process is restarted, one of them is approved and runs once, under its own call id.
func TestManyApprovals(t *testing.T) {
	parked := repeats(*many, *many)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.bank()
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
		free := func(session string) { // waiting calls take no slot, so other calls can run
			t.Helper()
			time.Sleep(11 * time.Second) // simulated: workers have said again how busy they are
			for _, w := range f.present() {
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

// A hook makes a call stricter than planned, and the policy asks about the changed call. The call
// waits for the rest of its stage, then for a person. Then it runs alone, with the hook's arguments
// and without running the hook again.
func TestWhatAHookMadeOfACallIsAskedAbout(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		look, l := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.shell()
		var asked atomic.Int32
		counting := harden
		counting.Before = func(ctx context.Context, c hook.Call) (hook.Verdict, error) {
			asked.Add(1)
			return harden.Before(ctx, c)
		}
		cfg := p.worker(t, "ask: ['sh(rm:*)']\n")
		cfg.Hooks = hooks(t, counting)
		f.worker(cfg)
		f.coordinator(p.coordinator())
		b := canonical("s", "b", call{"look", ""}, sh("ls x"), call{"look", ""})
		f.submit(b)
		f.atGate(look, 2)
		time.Sleep(time.Minute)
		if list, err := f.client.Approvals(context.Background()); err != nil || len(list) != 0 {
			t.Errorf("asked before its turn: %v, %v", list, err)
		}
		close(look.open)
		q := f.question(b, 1)
		if !strings.Contains(q.Line, "rm x") || !strings.Contains(string(q.Input), "rm x") {
			t.Errorf("the question is about %s", q.Line)
		}
		before := asked.Load()
		f.approve(p, "alice", q)
		reply := f.reply(b, time.Minute)
		f.wantStatuses(reply, "ok ok ok")
		if others := overlapping(reply, 1); len(others) > 0 {
			t.Errorf("it ran beside %v", others)
		}
		if got := commands(l); len(got) != 1 || got[0] != "rm x" {
			t.Errorf("what ran: %v", got)
		}
		if asked.Load() != before {
			t.Errorf("the hook was asked %d times more after the freeze", asked.Load()-before)
		}
	})
}

// An edit does not bypass the hooks: they run before the tool on the edited arguments too.
func TestAnEditDoesNotGoPastAGate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.bank()
		cfg := p.worker(t, refunds)
		cfg.Hooks = hooks(t, hook.Hook{Name: "fraud", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			switch {
			case strings.Contains(string(c.Input), "666"):
				return hook.Verdict{Opinion: hook.Deny, Reason: "fraud"}, nil
			case strings.Contains(string(c.Input), "777"):
				return hook.Verdict{Input: json.RawMessage(`{"order":"A-1001","amount":7}`)}, nil
			}
			return hook.Verdict{Input: c.Input}, nil
		}})
		f.worker(cfg)
		f.coordinator(p.coordinator())
		for amount, want := range map[string]string{"666": "denied", "777": "denied", "100": "ok"} {
			b := canonical("s", "b"+amount, refund("149.99"))
			f.submit(b)
			if _, err := f.sendDecision(p, "alice", f.question(b, 0), messages.VerdictEdit, func(d *messages.Decision) { d.Input = json.RawMessage(`{"order":"A-1001","amount":` + amount + `}`) }); err != nil {
				t.Fatal(err)
			}
			f.wantStatuses(f.reply(b, time.Minute), want)
		}
		if n := len(ledger.all()); n != 1 {
			t.Errorf("refunded %d times", n)
		}
	})
}

// What a hook adds to the arguments is visible to the tool and to the approver, but not to the
// agent and its model.
func TestWhatAHookAddsIsNotForTheAgent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.bank()
		cfg := p.worker(t, refunds)
		cfg.Hooks = hooks(t, hook.Hook{Name: "token", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			return hook.Verdict{Input: json.RawMessage(strings.Replace(string(c.Input), `{"order"`, `{"token":"CANARY","order"`, 1))}, nil
		}})
		f.worker(cfg)
		f.coordinator(p.coordinator())
		var mu sync.Mutex
		var heard []string // by the agent
		agentHeard := func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(heard, "\n")
		}
		for _, verb := range []wire.Verb{wire.VerbEvent, wire.VerbReply} {
			unsubscribe, err := f.conn.Subscribe(f.conn.Names().All(verb), "", func(m bus.Msg) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, string(m.Data))
			})
			if err != nil {
				t.Fatal(err)
			}
			defer unsubscribe()
		}
		b := canonical("s", "b", refund("149.99"))
		f.submit(b)
		q := f.question(b, 0)
		if !strings.Contains(q.Line, "CANARY") {
			t.Errorf("the person reads %s", q.Line)
		}
		// A question that is answered at once may be closed before its coordinator publishes it.
		f.until("the agent hears of the question", func() bool { return strings.Contains(agentHeard(), "awaiting_approval") })
		edit := func(d *messages.Decision) {
			d.Input = json.RawMessage(strings.Replace(string(q.Input), "149.99", "100", 1))
		}
		if _, err := f.sendDecision(p, "alice", q, messages.VerdictEdit, edit); err != nil {
			t.Fatal(err)
		}
		reply := f.reply(b, time.Minute)
		f.wantStatuses(reply, "ok")
		if runs := ledger.all(); len(runs) != 1 || !strings.Contains(runs[0].input, "CANARY") {
			t.Errorf("runs: %+v", runs)
		}
		f.until("the agent hears of the end", func() bool { return strings.Contains(agentHeard(), `"type":"reply"`) })
		all := agentHeard() + "\n" + string(reply.Reinjection)
		if strings.Contains(all, "CANARY") || !strings.Contains(all, "changed the arguments") {
			t.Errorf("the agent heard:\n%s", all)
		}
	})
}
