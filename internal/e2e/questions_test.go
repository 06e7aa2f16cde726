package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// serialHook returns a hook that makes another input at each run. An approval covers only one
// of these inputs.
func serialHook(t testing.TB, ran *atomic.Int32) hook.Set {
	return hooks(t, hook.Hook{Name: "serial", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
		var input map[string]any
		if err := json.Unmarshal(c.Input, &input); err != nil {
			return hook.Verdict{}, err
		}
		input["serial"] = ran.Add(1)
		return hook.Verdict{Input: rawjson.MustMarshal(input)}, nil
	}})
}

// A decision arrives at the same moment as the expiry of its call, or as an abort. The call
// has one outcome, and no client is told another one.
func TestADecisionRacesWithTheEnd(t *testing.T) {
	for _, against := range []string{"expired", "aborted"} {
		t.Run(against, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				p := newPeople(t, "alice")
				ledger := f.addBankTools()
				f.worker(p.worker(t, refunds))
				for range 2 {
					f.coordinator(p.coordinator())
				}
				outcomes, ran := map[string]int{}, 0
				rounds := repeats(24, 24)
				for round := range rounds {
					b := canonical(fmt.Sprint("s", round), "b", refund("149.99"))
					f.submit(b)
					q := f.question(b, 0)
					d := p.signed(t, "alice", q, messages.VerdictApprove)
					off := time.Duration(round-rounds/2) * 480 * time.Microsecond / time.Duration(rounds)
					var state messages.DecisionState
					var both sync.WaitGroup
					if against == "expired" {
						time.Sleep(time.Until(q.Expires) + off)
						state, _ = f.decideUntilAnswered(f.client, d)
					} else {
						both.Go(func() {
							time.Sleep(time.Millisecond + off)
							state, _ = f.decideUntilAnswered(f.client, d)
						})
						time.Sleep(time.Millisecond)
						f.abort(string(b.Session), string(b.ID))
					}
					both.Wait()
					reply := f.reply(b, time.Minute)
					status := statuses(reply)
					outcomes[status]++
					time.Sleep(20 * time.Second)
					now := len(ledger.all())
					switch {
					case status == "ok" && state != messages.DecisionGranted, status == "expired" && state != "", against == "expired" && status == "aborted":
						t.Errorf("round %d: the sender was told %q, and the call is %s", round, state, status)
					case (status == "ok") != (now == ran+1) && status != "outcome_unknown", now > ran+1:
						t.Errorf("round %d: %s, and it ran %d times", round, status, now-ran)
					}
					ran = now
				}
				t.Log(outcomes)
			})
		})
	}
}

// A question near the end of a batch's life extends that life. Ten questions do not extend it
// past the maximum.
func TestQuestionsNearTheEndOfABatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		f.tool(schemas.Tool{Name: "nap", Kind: messages.KindRead, TimeoutMS: (30 * time.Minute).Milliseconds()}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
			return tool.Text("slept"), pauseArgs{19 * 60 * 1000}.wait(ctx)
		})
		f.worker(p.worker(t, refunds))
		f.coordinator(coordinator.Config{Approvers: p.approvers, BatchTTL: 20 * time.Minute})
		late := canonical("late", "b", call{"nap", ""}, refund("149.99"))
		var ten []call
		for n := range 10 {
			ten = append(ten, refund(fmt.Sprint(60+n)))
		}
		many := canonical("many", "b", ten...)
		began := time.Now()
		f.submit(late)
		f.submit(many)
		var people sync.WaitGroup
		people.Go(func() { // each question is answered after 12 minutes
			for index := range 4 {
				q := f.question(many, index)
				time.Sleep(12 * time.Minute)
				_, _ = f.sendDecision(p, "alice", q, messages.VerdictApprove, nil)
				if index == 3 {
					break
				}
				if time.Since(began) > 35*time.Minute {
					break
				}
			}
		})
		time.Sleep(19*time.Minute + 30*time.Second)
		q := f.question(late, 1)
		time.Sleep(13 * time.Minute)
		if state, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil); err != nil || state != messages.DecisionGranted {
			t.Errorf("approve: %s, %v", state, err)
		}
		f.wantStatuses(f.reply(late, time.Minute), "ok ok")
		people.Wait()
		f.wantStatuses(f.reply(many, 10*time.Minute), "ok ok ok"+strings.Repeat(" expired", 7))
		if took := time.Since(began); took > 42*time.Minute {
			t.Errorf("a batch that may live for 20 minutes lived for %v", took)
		}
		if n := len(ledger.all()); n != 4 {
			t.Errorf("refunded %d times", n)
		}
	})
}

// A steering message comes while a call waits for approval. With between_groups that call can
// still be approved and runs, and the calls behind it are skipped. With immediate the waiting
// call is skipped too. With after_batch all calls run.
func TestSteeringWhileACallWaitsForAPerson(t *testing.T) {
	for when, want := range map[messages.SteerWhen]string{messages.SteerBetweenGroups: "ok ok skipped", messages.SteerImmediate: "ok skipped skipped", messages.SteerAfterBatch: "ok ok ok"} {
		t.Run(string(when), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				p := newPeople(t, "alice")
				ledger := f.addBankTools()
				f.worker(p.worker(t, refunds))
				f.coordinator(p.coordinator())
				b := canonical("s", "b", call{"lookup", ""}, refund("149.99"), call{"lookup", ""})
				f.submit(b)
				q := f.question(b, 1)
				time.Sleep(time.Minute)
				f.steer("s", `"wait"`, when)
				if when != messages.SteerImmediate {
					time.Sleep(time.Minute)
					if state, err := f.sendDecision(p, "alice", q, messages.VerdictApprove, nil); err != nil || state != messages.DecisionGranted {
						t.Errorf("approve: %s, %v", state, err)
					}
				}
				reply := f.reply(b, 5*time.Second)
				f.wantStatuses(reply, want)
				f.wantSteering(reply, `["wait"]`)
				if n := len(ledger.all()); n != strings.Count(want, "ok ok") {
					t.Errorf("refunded %d times", n)
				}
			})
		})
	}
}

// A batch waits for approval. The batches behind that batch keep their places, and other
// sessions do not wait.
func TestASessionBehindAQuestion(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		f.worker(p.worker(t, refunds))
		for range 2 {
			f.coordinator(p.coordinator())
		}
		first := canonical("s", "b0", refund("149.99"))
		f.submit(first)
		q := f.question(first, 0)
		var behind []messages.Batch
		for n := range 5 {
			b := canonical("s", fmt.Sprint("b", n+1), refund(fmt.Sprint(n+1)))
			f.submit(b)
			behind = append(behind, b)
		}
		time.Sleep(9 * time.Minute)
		other := canonical("other", "b", refund("49"))
		f.submit(other)
		f.wantStatuses(f.reply(other, 5*time.Second), "ok")
		f.submit(first) // sent again, as by an agent that lost its state
		time.Sleep(time.Minute)
		if n := len(ledger.all()); n != 1 {
			t.Fatalf("%d runs while the first batch of the session waits, want that of the other session", n)
		}
		f.approve(p, "alice", q)
		for _, b := range append([]messages.Batch{first}, behind...) {
			f.wantStatuses(f.reply(b, 20*time.Second), "ok")
		}
		var order []string
		for _, r := range ledger.all() {
			order = append(order, r.input[strings.LastIndex(r.input, ":")+1:len(r.input)-1])
		}
		if got := strings.Join(order, " "); got != "49 149.99 1 2 3 4 5" {
			t.Errorf("refunded %s", got)
		}
		f.submit(first)
		time.Sleep(time.Minute)
		if n := len(ledger.all()); n != 7 {
			t.Errorf("submitted again after its reply, the batch ran: %d runs", n)
		}
	})
}

// A batch waits for approval, and another coordinator may take it over meanwhile. Its time
// limit does not run during the wait.
func TestWaitingForPeopleCostsNoTime(t *testing.T) {
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken over: %t", taken), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				p := newPeople(t, "alice")
				f.addBankTools()
				f.tool(schemas.Tool{Name: "nap", Kind: messages.KindRead, TimeoutMS: 20_000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
					return tool.Text("slept"), pauseArgs{12_000}.wait(ctx)
				})
				f.worker(p.worker(t, refunds))
				kill := f.killableCoordinator(p.coordinator())
				// The time limit is 30 s: two naps of 12 s end, and the third is cut. The two
				// waits of 10 minutes do not count.
				b := canonical("s", "b", call{"nap", ""}, refund("51"), refund("52"), call{"nap", ""}, refund("1"), call{"nap", ""})
				b.TimeoutMS = 30_000
				f.submit(b)
				for index := 1; index <= 2; index++ {
					q := f.question(b, index)
					time.Sleep(5 * time.Minute)
					if taken {
						kill()
						kill = f.killableCoordinator(p.coordinator())
					}
					time.Sleep(5 * time.Minute)
					f.approve(p, "alice", q)
				}
				f.wantStatuses(f.reply(b, 2*time.Minute), "ok ok ok ok ok timeout")
			})
		})
	}
}

// A batch runs for a while before it waits for approval. That time still counts after the
// wait.
func TestTheTimeBeforeAQuestionCounts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		f.addBankTools()
		f.addSecretTool()
		f.tool(schemas.Tool{Name: "nap", Kind: messages.KindRead, TimeoutMS: 60_000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
			return tool.Text("slept"), pauseArgs{20_000}.wait(ctx)
		})
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		b := canonical("s", "b", call{"secret", ""}, call{"nap", ""}, refund("1"), call{"nap", ""})
		b.TimeoutMS = 30_000
		f.submit(b)
		q := f.question(b, 0)
		time.Sleep(5 * time.Minute)
		f.approve(p, "alice", q)
		f.wantStatuses(f.reply(b, 2*time.Minute), "ok ok ok timeout")
	})
}

// Arguments that just fit into a message can be asked about. Arguments that hooks make too
// large are refused, and so is an edit that does not fit into a record with the original. In
// each case the batch ends, and its session goes on.
func TestLargeQuestions(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		ledger := f.addBankTools()
		cfg := p.worker(t, refunds)
		cfg.Hooks = hooks(t, hook.Hook{Name: "grow", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			if !strings.Contains(string(c.Input), `"grow"`) {
				return hook.Verdict{}, nil
			}
			return hook.Verdict{Input: json.RawMessage(strings.Replace(string(c.Input), `"grow"`, `"`+strings.Repeat("y", 200_000)+`"`, 1))}, nil
		}})
		f.worker(cfg)
		f.coordinator(p.coordinator())
		input := func(size int, more string) string {
			return fmt.Sprintf(`{"note":%q%s,"amount":149.99}`, strings.Repeat("x", size), more)
		}
		for n, row := range []struct {
			size int
			more string
			want string
		}{{100_000, "", "ok"}, {100_000, `,"by":"grow"`, "ok"}, {600_000, "", "ok"}, {980_000, "", "ok"}, {900_000, `,"by":"grow"`, "validation_error"}} {
			b := canonical(fmt.Sprint("s", n), "b", call{"refund", input(row.size, row.more)})
			f.submit(b)
			if row.want == "ok" {
				q := f.question(b, 0)
				if row.size >= 600_000 {
					_, err := f.sendDecision(p, "alice", q, messages.VerdictEdit, func(d *messages.Decision) { d.Input = json.RawMessage(input(row.size-1, "")) })
					wantRefused(t, "an edit that does not fit", err, messages.ClassInvalidDecision)
				}
				if state, no := f.decideUntilAnswered(f.client, p.signed(t, "alice", q, messages.VerdictApprove)); state != messages.DecisionGranted {
					t.Errorf("%d bytes: approve: %s, %v", row.size, state, no)
				}
			}
			reply := f.reply(b, time.Minute)
			f.wantStatuses(reply, row.want)
			if r := reply.Results[0]; row.want != "ok" && (r.Err == nil || r.Err.Code != messages.CodeTooLarge) {
				t.Errorf("%d bytes: %+v", row.size, r.Err)
			}
			next := canonical(string(b.Session), "next", refund("1"))
			f.submit(next)
			f.wantStatuses(f.reply(next, time.Minute), "ok")
		}
		if n := len(ledger.all()); n != 4+5 {
			t.Errorf("refunded %d times", n)
		}
	})
}

// A batch finds an abort only in its last check before it is suspended. The batch ends at
// once.
func TestAnAbortThatIsFoundBeforeSuspending(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		f.addBankTools()
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		names := f.conn.Names()
		// A coordinator stores an abort at the moment when the call is parked, and is killed:
		// the test stores that abort.
		var said atomic.Int32
		stop, err := f.conn.Subscribe(names.All(wire.VerbCall), "", func(m bus.Msg) {
			if strings.Contains(string(m.Data), `"state":"parked"`) {
				_, key, _ := names.Call(m.Subject)
				control := wire.ControlRecord{Control: messages.Control{V: messages.Version, Abort: []byte("true"), By: "ops"}, UpTo: 1 << 40}
				if _, err := f.conn.Append(context.Background(), names.OfSession(wire.VerbCtl, key.Tenant, key.Session), nil, rawjson.MustMarshal(control)); err == nil {
					said.Add(1)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		slowest := time.Duration(0)
		for n := range 20 {
			b := canonical(fmt.Sprint("s", n), "b", refund("149.99"))
			began := time.Now()
			f.submit(b)
			f.wantStatuses(f.reply(b, resumesWithin), "aborted")
			slowest = max(slowest, time.Since(began))
		}
		t.Logf("%d aborts, the slowest took %v", said.Load(), slowest)
	})
}
