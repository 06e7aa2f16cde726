package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// brokenForGood is a link that stays broken once it has broken. Its client looks dead to the
// fleet.
type brokenForGood struct{ *link }

func (s brokenForGood) InProcessConn() (net.Conn, error) {
	if s.isBroken() {
		return nil, errors.New("the link is cut")
	}
	return s.link.InProcessConn()
}

func (l *link) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

func (l *link) breakWhen(text string, part float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breakText, l.breakPart = text, part
}

// runOver runs a daemon whose connection is the link. If forGood is set, the link stays broken
// once it breaks. Otherwise the daemon can connect again.
func (f *fleet) runOver(l *link, forGood bool, daemon func(*bus.Conn) func(context.Context) error) part {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options := bus.Options{InProcess: l, Name: "over a link", Logger: f.log, Timeout: time.Minute}
	if forGood {
		options.InProcess = brokenForGood{l}
	}
	conn, err := bus.Connect(ctx, options)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.start(conn, daemon(conn))
}

func (f *fleet) workerRun(cfg worker.Config) func(*bus.Conn) func(context.Context) error {
	return func(conn *bus.Conn) func(context.Context) error {
		cfg.Logger, cfg.Drain = f.log, time.Millisecond
		w, err := worker.New(conn, f.tools, cfg)
		if err != nil {
			f.t.Fatal(err)
		}
		return w.Run
	}
}

func (f *fleet) coordinatorRun(cfg coordinator.Config) func(*bus.Conn) func(context.Context) error {
	return func(conn *bus.Conn) func(context.Context) error {
		cfg.Logger, cfg.Drain = f.log, time.Millisecond
		c, err := coordinator.New(conn, cfg)
		if err != nil {
			f.t.Fatal(err)
		}
		return c.Run
	}
}

// signed returns a decision with the signature of the named person.
func (p people) signed(t testing.TB, name string, q messages.Approval, v messages.Verdict) messages.Decision {
	t.Helper()
	d := approval.Answer(q, v, name)
	d.At = time.Now().UTC()
	d, err := p.keys[name].Sign(d)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// decideUntilAnswered sends a decision again and again until the fleet answers it.
func (f *fleet) decideUntilAnswered(c *client.Client, d messages.Decision) (state messages.DecisionState, refused *messages.Refusal) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		answer, err := c.Decide(ctx, d)
		switch {
		case err == nil:
			return answer.State, nil
		case errors.As(err, &refused) && refused.Class != messages.ClassBusy:
			return "", refused
		case ctx.Err() != nil:
			f.t.Errorf("nobody answers a decision: %v", err)
			return "", nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// The link of a coordinator breaks, or the coordinator is lost, at each step of handling a
// decision. The decision counts once, its sender gets the true answer when it sends it again,
// and the batch goes on.
func TestALinkBreaksWhileAPersonDecides(t *testing.T) {
	for name, row := range map[string]struct {
		breakText string
		breakPart float64
	}{
		"the decision does not arrive":                  {"toolfleet.approval.decide.", 0},
		"the record does not arrive":                    {`"state":"granted"`, 0},
		"half of the record arrives":                    {`"state":"granted"`, 0.5},
		"the record is stored, its ack is lost":         {`"stream":"TOOLFLEET_CALLS"`, 0},
		"the question stays in the list":                {"$KV.TOOLFLEET_approvals.", 0},
		"the audit line is not stored":                  {"toolfleet.audit.", 0},
		"the decision is not answered":                  {`"ok":true,"state":"granted"`, 0},
		"half of the answer arrives":                    {`"ok":true,"state":"granted"`, 0.5},
		"the decision is answered, no batch is woken":   {"toolfleet.notify.coordinators", 0},
		"the decision is answered, no job is published": {"toolfleet.write.", 0},
	} {
		for _, forGood := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, for good: %t", name, forGood), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					p, l := newPeople(t, "alice"), newLink(t, srv)
					ledger := f.addBankTools()
					f.worker(p.worker(t, refunds))
					f.runOver(l, forGood, f.coordinatorRun(p.coordinator()))
					f.until("the coordinator answers", func() bool { _, err := f.client.Approvals(context.Background()); return err == nil })
					b := canonical("s", "b", refund("149.99"), call{"lookup", ""})
					f.submit(b)
					q := f.question(b, 0)
					time.Sleep(10 * time.Second) // the batch is suspended
					l.breakWhen(row.breakText, row.breakPart)
					d := p.signed(t, "alice", q, messages.VerdictApprove)
					var deciding sync.WaitGroup
					deciding.Go(func() {
						if state, refused := f.decideUntilAnswered(f.client, d); state != messages.DecisionGranted && (refused == nil || refused.Class != messages.ClassNotPending) {
							t.Errorf("the decision is %q, %v", state, refused)
						}
					})
					f.until("the link breaks", l.isBroken)
					f.coordinator(p.coordinator())
					deciding.Wait()
					f.wantStatuses(f.reply(b, resumesWithin+time.Minute), "ok ok")
					if n := len(ledger.all()); n != 1 {
						t.Errorf("refunded %d times", n)
					}
					if list, err := f.client.Approvals(context.Background()); err != nil || len(list) > 0 {
						t.Errorf("still listed: %+v, %v", list, err)
					}
				})
			})
		}
	}
}

// The link of a worker breaks, or the worker is lost, at each step of asking and of running an
// approved call. A call runs only after approval, with the approved arguments and key. A write
// that may run once runs once.
func TestALinkBreaksWhileACallAsks(t *testing.T) {
	const ok, unknown = "ok", "outcome_unknown"
	for name, row := range map[string]struct {
		granted   bool // the link breaks after the grant, not while the call asks
		breakText string
		breakPart float64
		broken    string // status of the call
		lost      string // status if the worker is lost and the call may run once
	}{
		"the job does not arrive":                        {false, "toolfleet.write.", 0, ok, ok},
		"the question does not arrive":                   {false, `"state":"parked"`, 0, ok, ok},
		"half of the question arrives":                   {false, `"state":"parked"`, 0.5, ok, ok},
		"the record is stored, its ack is lost":          {false, `"stream":"TOOLFLEET_CALLS"`, 0, ok, ok},
		"the question is stored, its job is not settled": {false, "PUB $JS.ACK.TOOLFLEET_JOBS.", 0, ok, ok},
		"the question is stored, no notice arrives":      {false, `"record":{`, 0, ok, ok},
		"granted, the job does not arrive":               {true, "toolfleet.write.", 0, ok, ok},
		"granted, the grant is not seen":                 {true, `"state":"granted"`, 0, ok, ok},
		"granted, the audit line is not stored":          {true, "toolfleet.audit.", 0, ok, unknown},
		"granted, the claim does not arrive":             {true, `"state":"claimed"`, 0, ok, ok},
		"granted, half of the claim arrives":             {true, `"state":"claimed"`, 0.5, ok, ok},
		"claimed, the claim's ack is lost":               {true, `"stream":"TOOLFLEET_CALLS"`, 0, ok, unknown},
		"executed, the result does not arrive":           {true, `"state":"ended"`, 0, ok, unknown},
		"executed, half of the result arrives":           {true, `"state":"ended"`, 0.5, ok, unknown},
		"executed, the job's ack is lost":                {true, "PUB $JS.ACK.TOOLFLEET_JOBS.", 0, ok, ok},
	} {
		for _, crash := range []messages.OnCrash{messages.OnCrashOnce, messages.OnCrashIdempotent} {
			for _, forGood := range []bool{false, true} {
				if testing.Short() && crash == messages.OnCrashIdempotent {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, for good: %t", name, crash, forGood), func(t *testing.T) {
					natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
						f := newFleet(t, srv)
						defer f.close()
						var hooked atomic.Int32
						p, l := newPeople(t, "alice"), newLink(t, srv)
						ledger := f.recordedTool(schemas.Tool{Name: "refund", OnCrash: crash}, func(context.Context, int) (tool.Output, error) { return tool.Text("refunded"), nil })
						cfg := p.worker(t, refunds)
						cfg.Hooks = serialHook(t, &hooked)
						f.coordinator(p.coordinator())
						f.runOver(l, forGood, f.workerRun(cfg))
						time.Sleep(2 * time.Second) // the worker serves
						b := canonical("s", "b", refund("149.99"))
						if !row.granted {
							l.breakWhen(row.breakText, row.breakPart)
							f.submit(b)
							f.until("the link breaks", l.isBroken)
							f.worker(cfg)
							time.Sleep(time.Minute) // all redeliveries have arrived
							f.until("the agent is connected", f.conn.Connected)
						} else {
							f.submit(b)
						}
						q := f.question(b, 0)
						if row.granted {
							time.Sleep(10 * time.Second)
							l.breakWhen(row.breakText, row.breakPart)
						}
						if state, refused := f.decideUntilAnswered(f.client, p.signed(t, "alice", q, messages.VerdictApprove)); state != messages.DecisionGranted {
							t.Fatalf("approve: %s, %v", state, refused)
						}
						if row.granted {
							f.until("the link breaks", l.isBroken)
							f.worker(cfg)
						}
						reply := f.reply(b, resumesWithin+2*time.Minute)
						want := row.broken
						switch {
						case forGood && crash == messages.OnCrashOnce:
							want = row.lost
						case forGood:
							want = ok
						}
						f.wantStatuses(reply, want)
						runs := ledger.all()
						for _, r := range runs {
							if r.key != runs[0].key || r.input != string(q.Input) {
								t.Errorf("it ran with %s under %s; allowed was %s, the first had %s", r.input, r.key, q.Input, runs[0].key)
							}
						}
						if crash == messages.OnCrashOnce && len(runs) > 1 || want == ok && len(runs) == 0 {
							t.Errorf("it ran %d times", len(runs))
						}
					})
				})
			}
		}
	}
}

// The server restarts while questions are open, and again while they are answered. Every call
// is decided and runs once.
func TestTheServerRestartsWhileQuestionsAreOpen(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice", "bob")
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		for range 2 {
			f.coordinator(p.coordinator())
		}
		const sessions = 12
		var batches []messages.Batch
		for n := range sessions {
			b := canonical(fmt.Sprint("s", n), "b", refund("149.99"))
			f.submit(b)
			batches = append(batches, b)
		}
		var questions []messages.Approval
		for _, b := range batches {
			questions = append(questions, f.question(b, 0))
		}
		restart := func() {
			if err := srv.Restart(); err != nil {
				t.Error(err)
			}
			f.until("the agent is connected", f.conn.Connected)
		}
		restart()
		time.Sleep(time.Minute)
		var deciding sync.WaitGroup
		granted := make([]bool, sessions)
		for n, q := range questions {
			deciding.Go(func() {
				time.Sleep(time.Duration(n) * 200 * time.Microsecond)
				verdict := []messages.Verdict{messages.VerdictApprove, messages.VerdictDeny}[n%2]
				state, refused := f.decideUntilAnswered(f.client, p.signed(t, "alice", q, verdict))
				if refused != nil && refused.Class != messages.ClassNotPending || refused == nil && state == "" {
					t.Errorf("question %d: %s, %v", n, state, refused)
				}
				granted[n] = verdict == messages.VerdictApprove
			})
		}
		time.Sleep(time.Millisecond)
		restart()
		deciding.Wait()
		for n, b := range batches {
			want := "denied"
			if granted[n] {
				want = "ok"
			}
			f.wantStatuses(f.reply(b, resumesWithin+time.Minute), want)
		}
		if n := len(ledger.all()); n != sessions/2 {
			t.Errorf("refunded %d times, %d were allowed", n, sessions/2)
		}
	})
}

// Two people decide about one call at two coordinators of a cluster, while the journal's
// leader changes. Exactly one decision counts.
func TestDecisionsOnAClusterThroughALeaderChange(t *testing.T) {
	t.Parallel()
	f := newClusterFleet(t)
	defer f.close()
	p := newPeople(t, "alice", "bob")
	ledger := f.addBankTools()
	for i := range 2 {
		cfg := p.worker(t, refunds)
		cfg.Provision = onEveryNode
		conn := f.dial("worker", f.cl.URLOf(i))
		f.start(conn, f.workerRun(cfg)(conn))
		conn = f.dial("coordinator", f.cl.URLOf(i+1))
		c, err := coordinator.New(conn, coordinator.Config{Logger: f.log, Provision: onEveryNode, Approvers: p.approvers})
		if err != nil {
			t.Fatal(err)
		}
		f.start(conn, c.Run)
		f.until("the coordinator is ready", c.Ready)
	}
	var doors []*client.Client
	for i := range 2 {
		conn := f.dial("person", f.cl.URLOf(i+1))
		defer conn.Close()
		doors = append(doors, fleettest.AgentOver(conn, ""))
	}
	rounds := repeats(6, 12)
	if testing.Short() {
		rounds = 4
	}
	allowed := 0
	for round := range rounds {
		b := canonical("s", fmt.Sprint("b", round), refund("149.99"))
		f.submit(b)
		q := f.question(b, 0)
		verdicts := []messages.Verdict{messages.VerdictApprove, messages.VerdictDeny}
		var said [2]messages.DecisionState
		var deciding sync.WaitGroup
		for i, name := range []string{"alice", "bob"} {
			deciding.Go(func() { said[i], _ = f.decideUntilAnswered(doors[i], p.signed(t, name, q, verdicts[(i+round)%2])) })
		}
		if round%2 == 0 {
			f.cl.StepDown(f.conn.Names().Stream(bus.Calls))
		}
		deciding.Wait()
		reply := f.reply(b, time.Minute)
		want := messages.DecisionDenied
		if reply.Results[0].Status == messages.StatusOK {
			want = messages.DecisionGranted
			allowed++
		}
		if said[0] != "" && said[1] != "" || said[0] != "" && said[0] != want || said[1] != "" && said[1] != want {
			t.Errorf("round %d: the sender was told %q; the call is %s", round, said, reply.Results[0].Status)
		}
	}
	if n := len(ledger.all()); n != allowed {
		t.Errorf("refunded %d times, %d were allowed", n, allowed)
	}
}

// A worker is lost while it runs an approved call. A call that may run again does so with the
// same arguments and key, and nobody is asked again. A call that may run once does not run
// again.
func TestAWorkerIsLostInAnApprovedCall(t *testing.T) {
	for crash, want := range map[messages.OnCrash]string{messages.OnCrashIdempotent: "ok", messages.OnCrashOnce: "outcome_unknown"} {
		t.Run(string(crash), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var hooked atomic.Int32
				p := newPeople(t, "alice")
				ledger := f.recordedTool(schemas.Tool{Name: "refund", OnCrash: crash}, func(ctx context.Context, n int) (tool.Output, error) {
					if n == 1 {
						return waitForStop(ctx)
					}
					return tool.Text("refunded"), nil
				})
				cfg := p.worker(t, refunds)
				cfg.Hooks = serialHook(t, &hooked)
				f.coordinator(p.coordinator())
				kill := f.killableWorker(cfg)
				b := canonical("s", "b", refund("149.99"))
				f.submit(b)
				q := f.question(b, 0)
				// The audit line comes a moment after the question is stored.
				f.until("the question is in the audit log", func() bool { return f.auditCounts()["approval_asked"] == 1 })
				f.approve(p, "alice", q)
				f.hasRun(ledger, 1)
				f.worker(cfg)
				kill()
				f.wantStatuses(f.reply(b, 5*time.Minute), want)
				runs := ledger.all()
				for _, r := range runs {
					if r.key != runs[0].key || r.input != string(q.Input) {
						t.Errorf("it ran with %s under %s; allowed was %s", r.input, r.key, q.Input)
					}
				}
				if want == "ok" && len(runs) != 2 || want != "ok" && len(runs) != 1 {
					t.Errorf("it ran %d times", len(runs))
				}
				if n := f.auditCounts()["approval_asked"]; n != 1 {
					t.Errorf("people were asked %d times", n)
				}
			})
		})
	}
}
