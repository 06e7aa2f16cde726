package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// A hook changes a read so that it must run alone, and the policy asks a person about the
// changed call. The call waits for the rest of its stage, then for the person. Then it runs
// alone, with the hook's arguments, and the hook does not run again.
func TestACallThatAHookChangedNeedsApproval(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		look, l := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.addShell()
		var asked atomic.Int32
		counting := hardenHook
		counting.Before = func(ctx context.Context, c hook.Call) (hook.Verdict, error) {
			asked.Add(1)
			return hardenHook.Before(ctx, c)
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
			t.Errorf("the hook ran %d more times after the claim", asked.Load()-before)
		}
	})
}

// An approver edits the arguments of a call. The hooks check the edited arguments before the
// tool gets them.
func TestHooksCheckEditedArguments(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
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

// A hook adds a member to the arguments of a call. The tool and the approver see that member;
// the agent and its model do not.
func TestTheAgentDoesNotSeeWhatAHookAdds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
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
			t.Errorf("the question shows %s", q.Line)
		}
		// The question's event is late: a question that is answered at once may be closed
		// before the coordinator publishes its event.
		f.until("the agent gets the event of the question", func() bool { return strings.Contains(agentHeard(), "awaiting_approval") })
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
		f.until("the agent gets the event of the reply", func() bool { return strings.Contains(agentHeard(), `"type":"reply"`) })
		all := agentHeard() + "\n" + string(reply.Reinjection)
		if strings.Contains(all, "CANARY") || !strings.Contains(all, "changed the arguments") {
			t.Errorf("the agent received:\n%s", all)
		}
	})
}
