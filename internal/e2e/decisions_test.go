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
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Each decision that a person can make ends the call in its own way.
func TestEachDecisionOfAPerson(t *testing.T) {
	for _, row := range []struct {
		name   string
		amount string
		say    func(f *fleet, p people, q messages.Approval, b messages.Batch)
		status string
		code   messages.Code
		words  []string
		ran    string // the amount that was refunded; "" if the tool did not run
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
				ledger := f.recordedTool(schemas.Tool{Name: "refund", InputSchema: json.RawMessage(`{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]}`)},
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

// Many approvers decide about one call at once, at several coordinators. Exactly one decision
// counts.
func TestTheFirstDecisionWins(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice", "bob", "carol", "dave")
		ledger := f.addBankTools()
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

// Invalid decisions are refused with the reason, and each refusal is in the audit log.
func TestRefusedDecisions(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice", messages.OneTenant)
		mallory := newPeople(t, "alice") // a key of another person, under alice's name
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		b, other := canonical("s", "b", refund("149.99")), canonical("s2", "b", refund("2.00"+"e2"))
		f.submit(b)
		f.submit(other)
		q, q2 := f.question(b, 0), f.question(other, 0)
		// A question can be answered as soon as it is stored, and the coordinator writes the
		// audit line a moment later.
		f.until("both questions are in the audit log", func() bool { return f.auditCounts()["approval_asked"] == 2 })
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
		lines := f.auditCounts()
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
