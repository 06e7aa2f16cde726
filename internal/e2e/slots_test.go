package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A session has a hundred batches in the log. They take one slot of the coordinator, and the
// other slot stays free for other sessions.
func TestWaitingBatchesTakeNoSlot(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Slots: 2})
		for n := range 100 {
			f.submit(canonical("long", fmt.Sprint("b", n), call{"put", `{"ms":60000}`}))
		}
		// Simulated: the first batch runs. The others are delivered and handed back many
		// times.
		time.Sleep(10 * time.Second)
		for n := range 20 {
			b := canonical(fmt.Sprint("s", n), "b", call{"put", `{"ms":10}`})
			began := time.Now()
			if reply := f.run(b); reply.Results[0].Status != messages.StatusOK {
				t.Errorf("session %d: %+v", n, reply.Results[0])
			}
			if took := time.Since(began); took > 200*time.Millisecond {
				t.Errorf("session %d waited %v behind a hundred batches that wait for their turn", n, took)
			}
		}
	})
}

// A coordinator dies with the batches that it drives. When JetStream delivers them again,
// another coordinator goes on with their sessions. The batches behind a running batch took no
// slot of the dead coordinator.
func TestSessionsOfADeadCoordinatorGoOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{})
		var p publishLog
		dead := f.connect("dead coordinator")
		c, err := coordinator.New(dead, coordinator.Config{Slots: 2, Drain: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		f.start(dead, c.Run)
		f.until("the coordinator is ready", c.Ready)
		p.publish(f, f.conn, canonical("s", "head", call{"put", `{"ms":3000}`}))
		f.until("the head runs", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.writes) == 1 })
		go dead.Close()         // like a kill: nothing is handed back
		time.Sleep(time.Second) // simulated
		f.coordinator(coordinator.Config{Slots: 2})
		for n := range 10 {
			p.publish(f, f.conn, canonical("s", fmt.Sprint("b", n), call{"put", `{"ms":1}`}))
		}
		time.Sleep(time.Second)
		began := time.Now()
		f.run(canonical("other", "b", call{"put", `{"ms":1}`}))
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("another session waited %v for a slot", took)
		}
		f.awaitEmptyLog()
		if took := time.Since(began); took > 15*time.Second { // AckWait, and the rest of the work
			t.Errorf("the session of the dead coordinator went on after %v", took)
		}
		l.checkLogOrder(t, p.log(), 0)
	})
}

// The log is full. It refuses batches, whether a client publishes them or sends them as run
// requests. A client that tries again succeeds, and every accepted batch runs once and in
// order.
func TestBackPressureLosesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		provision := provision.Config{MaxBatches: 10}
		f.worker(worker.Config{Slots: 20, Provision: provision})
		f.coordinator(coordinator.Config{Provision: provision, Slots: 4})
		f.coordinator(coordinator.Config{Provision: provision, Slots: 4})
		var agents sync.WaitGroup
		var refusals, busy atomic.Int32
		const sessions, batches = 40, 5
		want := map[messages.SessionID][]messages.BatchID{}
		for s := range sessions {
			session := fmt.Sprint("s", s)
			for n := range batches {
				want[messages.SessionID(session)] = append(want[messages.SessionID(session)], messages.BatchID(fmt.Sprint("b", n)))
			}
			agents.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				for n := range batches {
					b := canonical(session, fmt.Sprint("b", n), call{"put", `{"ms":200}`})
					if s%2 == 0 { // published until the log accepts it
						for err := f.client.Submit(ctx, b); err != nil; err = f.client.Submit(ctx, b) {
							if !errors.Is(err, bus.ErrFull) {
								t.Errorf("the error of a full log: %v", err)
								return
							}
							refusals.Add(1)
							time.Sleep(100 * time.Millisecond) // simulated
						}
						if reply, err := f.client.Await(ctx, b.Session, b.ID); err != nil || reply.Results[0].Status != messages.StatusOK {
							t.Errorf("%s of %s: %v", b.ID, session, err)
						}
						continue
					}
					for {
						reply, err := f.requestRun(ctx, b)
						if err == nil && reply.Status == messages.ReplyRefused && reply.Error.Class == messages.ClassBusy && reply.Error.RetryAfterMS > 0 {
							busy.Add(1)
							time.Sleep(time.Duration(reply.Error.RetryAfterMS) * time.Millisecond)
							continue
						}
						if err != nil || reply.Status != messages.ReplyCompleted || reply.Results[0].Status != messages.StatusOK {
							t.Errorf("%s of %s, as a run request: %+v, %v", b.ID, session, reply, err)
						}
						break
					}
				}
			})
		}
		agents.Wait()
		if refusals.Load() == 0 || busy.Load() == 0 {
			t.Errorf("a log of 10 batches for 40 agents refused %d publishes and answered busy %d times", refusals.Load(), busy.Load())
		}
		l.checkLogOrder(t, want, 0)
		f.awaitEmptyLog()
	})
}

// requestRun sends one run request, as a program without our client does.
func (f *fleet) requestRun(ctx context.Context, b messages.Batch) (reply messages.Reply, err error) {
	b.V = messages.Version
	subject := f.conn.Names().Of(wire.VerbRun, wire.KeyOf(messages.OneTenant, b.Session, b.ID))
	m, err := f.conn.Request(ctx, subject, nil, rawjson.MustMarshal(b))
	if err == nil {
		err = json.Unmarshal(m.Data, &reply)
	}
	return reply, err
}

// fiveSecondTool is a tool that takes five seconds.
func fiveSecondTool(ctx context.Context, _ tool.Call) (tool.Output, error) {
	return tool.Text("done"), pauseArgs{5000}.wait(ctx)
}

// runConversations runs agents that each submit a batch, wait for its reply, pause, and
// repeat. The slow sessions use the tool crawl. It returns how long the batches of the other
// sessions took.
func runConversations(f *fleet, sessions, slow, batches int) []time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var agents, fast sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer agents.Wait()
	defer cancel()
	for s := range sessions {
		if s < slow {
			agents.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					b := canonical(fmt.Sprint("slow", s), fmt.Sprint("b", n), call{"crawl", ""}, call{"crawl", ""})
					_, _ = f.client.Run(ctx, b)
				}
			})
			continue
		}
		fast.Go(func() {
			// Simulated: the agents start at different times.
			time.Sleep(time.Duration(s) * 7 * time.Millisecond)
			for n := range batches {
				b := canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), call{"count", `{"ms":20}`}, call{"count", `{"ms":20}`}, call{"put", `{"ms":20}`})
				began := time.Now()
				f.run(b)
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
				time.Sleep(time.Second)
			}
		})
	}
	fast.Wait()
	return took
}

func percentile(took []time.Duration, p int) time.Duration {
	slices.Sort(took)
	return took[(len(took)-1)*p/100]
}

// One session in a hundred uses tools that take five seconds. The other sessions are not
// delayed.
func TestASlowSessionDelaysNobody(t *testing.T) {
	p99, sessions := map[int]time.Duration{}, repeats(100, 200)
	for _, slow := range []int{0, 2} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			var l writeLog
			l.tools(f)
			f.tool(schemas.Tool{Name: "crawl", TimeoutMS: 600_000}, fiveSecondTool)
			f.worker(worker.Config{Slots: 25})
			f.worker(worker.Config{Slots: 25})
			f.coordinator(coordinator.Config{})
			f.coordinator(coordinator.Config{})
			took := runConversations(f, sessions, slow, 4)
			p99[slow] = percentile(took, 99)
			t.Logf("%d sessions, %d slow: p50 %v, p99 %v, most %v of simulated time", sessions, slow, percentile(took, 50), p99[slow], percentile(took, 100))
		})
	}
	if p99[2] > p99[0]*3/2 {
		t.Errorf("p99 of the others: %v without slow sessions, %v with them", p99[0], p99[2])
	}
}

// Slow calls fill every slot of the workers and delay all calls behind them, because sessions
// share the slots. If the slow tools have a pool of their own, the other calls stay fast.
func TestSlowToolsThatFillTheSlots(t *testing.T) {
	p99 := map[string]time.Duration{}
	for _, pool := range []string{"", "slow"} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			var l writeLog
			l.tools(f)
			f.tool(schemas.Tool{Name: "crawl", Pool: pool, TimeoutMS: 600_000}, fiveSecondTool)
			f.worker(worker.Config{Slots: 4})
			f.coordinator(coordinator.Config{})
			took := runConversations(f, 28, 8, 5)
			p99[pool] = percentile(took, 99)
			t.Logf("4 slots, 8 sessions of 5 s tools in pool %q, 20 others: p50 %v, p99 %v of simulated time", pool, percentile(took, 50), p99[pool])
			if len(took) != 20*5 {
				t.Errorf("%d of %d batches ended", len(took), 20*5)
			}
		})
	}
	if p99["slow"] > time.Second {
		t.Errorf("p99 of the others is %v although the slow tools have a pool of their own", p99["slow"])
	}
}

// A full log refuses every batch, even a batch that it already holds or that has its reply. A
// client that sends such a batch as a run request still gets its reply.
func TestAFullLogStillAnswersItsBatches(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		provision := provision.Config{MaxBatches: 1}
		f.worker(worker.Config{Provision: provision})
		f.coordinator(coordinator.Config{Provision: provision})
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		done, runs := canonical("s", "done", call{"put", `{"ms":1}`}), canonical("s", "runs", call{"put", `{"ms":60000}`})
		f.run(done)
		f.awaitIdle()
		f.submit(runs)
		f.until("the batch runs", func() bool { return l.ran("s") == 2 })
		for _, b := range []messages.Batch{done, runs} {
			if reply, err := f.requestRun(ctx, b); err != nil || reply.Status != messages.ReplyCompleted || reply.Batch != b.ID {
				t.Errorf("batch %s while the log is full: %+v, %v", b.ID, reply, err)
			}
		}
		if l.ran("s") != 2 {
			t.Errorf("two writes ran %d times", l.ran("s"))
		}
	})
}

// A session has two thousand writes in the log. They run one at a time, and the other slots of
// the workers stay free.
func TestAHotSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{Slots: 2})
		f.coordinator(coordinator.Config{Slots: 2})
		calls := make([]call, 500)
		for i := range calls {
			calls[i] = call{"put", `{"ms":50}`}
		}
		for n := range 4 {
			f.submit(canonical("hot", fmt.Sprint("b", n), calls...))
		}
		time.Sleep(2 * time.Second)
		for n := range 50 {
			began := time.Now()
			f.wantStatuses(f.run(canonical(fmt.Sprint("s", n), "b", call{"put", `{"ms":50}`})), "ok")
			if took := time.Since(began); took > 75*time.Millisecond {
				t.Errorf("session %d waited %v beside a session with 2,000 writes", n, took)
			}
		}
		if n := l.ran("hot"); n == 0 || n == 2000 {
			t.Errorf("%d of the 2,000 writes had begun: the others had nothing to wait for", n)
		}
	}, natstest.Fast)
}
