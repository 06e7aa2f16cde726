package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// laneBook records a fleet's writes as seen from outside: which were applied, and from when to
// when.
type laneBook struct {
	mu     sync.Mutex
	writes []laneRun // guarded by mu; in the order in which they began
}

// laneRun is one run of a write.
type laneRun struct {
	session messages.SessionID
	batch   messages.BatchID
	index   int
	from    time.Time
	to      time.Time // zero while it runs
}

type pauseArgs struct {
	MS int64 `json:"ms"`
}

func (n pauseArgs) wait(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(n.MS) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tools registers put, a write that takes ms milliseconds, and count, a read that takes ms and
// returns how many writes of its session have ended.
func (l *laneBook) tools(f *fleet) {
	f.tool(schemas.Tool{Name: "put", TimeoutMS: 600_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		var n pauseArgs
		if err := json.Unmarshal(c.Input, &n); err != nil {
			return tool.Output{}, err
		}
		l.mu.Lock()
		at := len(l.writes)
		l.writes = append(l.writes, laneRun{session: c.Session, batch: c.Batch, index: c.Index, from: time.Now()})
		l.mu.Unlock()
		err := n.wait(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.writes[at].to = time.Now()
		return tool.Text("put"), err
	})
	f.tool(schemas.Tool{Name: "count", Kind: messages.KindRead, TimeoutMS: 600_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		var n pauseArgs
		if err := json.Unmarshal(c.Input, &n); err != nil {
			return tool.Output{}, err
		}
		seen := 0
		l.mu.Lock()
		for _, w := range l.writes {
			if w.session == c.Session && !w.to.IsZero() {
				seen++
			}
		}
		l.mu.Unlock()
		return tool.Text(fmt.Sprint(seen)), n.wait(ctx)
	})
}

// inOrder checks that every session's writes ran once each, one at a time, in the order of the log.
func (l *laneBook) inOrder(t *testing.T, log map[messages.SessionID][]messages.BatchID, writes ...int) {
	t.Helper()
	var want laneOrder
	for session, batches := range log {
		for _, b := range batches {
			for _, i := range writes {
				want.add(session, b, i)
			}
		}
	}
	l.inOrderOf(t, want)
}

// laneOrder is the writes of each session, in the order in which they have to run.
type laneOrder map[messages.SessionID][]string

func (o *laneOrder) add(session messages.SessionID, b messages.BatchID, index int) {
	if *o == nil {
		*o = laneOrder{}
	}
	(*o)[session] = append((*o)[session], fmt.Sprint(b, ".", index))
}

// inOrderOf checks that exactly these writes ran, once each, one at a time.
func (l *laneBook) inOrderOf(t *testing.T, order laneOrder) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	of := map[messages.SessionID][]laneRun{}
	for _, w := range l.writes {
		of[w.session] = append(of[w.session], w)
	}
	for session, want := range order {
		var got []string
		for n, w := range of[session] {
			got = append(got, fmt.Sprint(w.batch, ".", w.index))
			if n > 0 && w.from.Before(of[session][n-1].to) {
				t.Errorf("session %s: %s began %v before the end of %s", session, got[n], of[session][n-1].to.Sub(w.from), got[n-1])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("session %s: writes ran as\n%v\nthe log says\n%v", session, got, want)
		}
	}
}

// published records the order of the log from the acknowledgements of the publishes.
type published struct {
	mu   sync.Mutex
	seqs map[messages.SessionID]map[messages.BatchID]uint64 // guarded by mu
}

func (p *published) publish(f *fleet, conn *bus.Conn, b messages.Batch) {
	f.t.Helper()
	b.V = messages.Version
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seq, err := conn.Append(ctx, conn.Names().Of(wire.VerbBatch, wire.KeyOf(messages.OneTenant, b.Session, b.ID)), nil, rawjson.MustMarshal(b))
	if err != nil {
		f.t.Errorf("publish batch %s of %s: %v", b.ID, b.Session, err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seqs == nil {
		p.seqs = map[messages.SessionID]map[messages.BatchID]uint64{}
	}
	if p.seqs[b.Session] == nil {
		p.seqs[b.Session] = map[messages.BatchID]uint64{}
	}
	p.seqs[b.Session][b.ID] = seq
}

// log returns the batches of each session in the order of the log.
func (p *published) log() map[messages.SessionID][]messages.BatchID {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := map[messages.SessionID][]messages.BatchID{}
	for session, seqs := range p.seqs {
		for b := range seqs {
			log[session] = append(log[session], b)
		}
		slices.SortFunc(log[session], func(a, b messages.BatchID) int { return cmp.Compare(seqs[a], seqs[b]) })
	}
	return log
}

// coordinatorsThatComeAndGo starts three coordinators. The function that it returns stops and
// restarts one after another: some stop in order, some hand their batches back.
func (f *fleet) coordinatorsThatComeAndGo(cfg coordinator.Config) (comeAndGo func()) {
	start := func(drain time.Duration) part {
		cfg.Drain = drain
		return f.coordinator(cfg)
	}
	var alive []part
	for n := range 3 {
		alive = append(alive, start(time.Duration(n)*100*time.Millisecond))
	}
	return func() {
		for n := range 9 {
			time.Sleep(200 * time.Millisecond) // simulated
			alive[n%3].stop()
			time.Sleep(300 * time.Millisecond)
			alive[n%3] = start(time.Duration(n) * 50 * time.Millisecond)
		}
	}
}

// Three publishers publish twenty batches of each session at once. Three coordinators drive them,
// and one after another stops and restarts. The batches of a session run one at a time, in the
// order of the log.
func TestLanesStayInOrderWhileCoordinatorsComeAndGo(t *testing.T) {
	for _, sessions := range []int{1, repeats(20, 50)} {
		t.Run(fmt.Sprint(sessions), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l laneBook
				l.tools(f)
				f.worker(worker.Config{Slots: 30})
				f.worker(worker.Config{Slots: 30})
				comeAndGo := f.coordinatorsThatComeAndGo(coordinator.Config{})
				var p published
				const batches = 20
				var publishers sync.WaitGroup
				for who := range 3 {
					conn := f.connect(fmt.Sprint("publisher", who))
					publishers.Go(func() {
						defer conn.Close()
						for n := who; n < batches; n += 3 {
							for s := range sessions {
								p.publish(f, conn, canonical(fmt.Sprint("s", s), fmt.Sprint("b", n),
									call{"put", fmt.Sprintf(`{"ms":%d}`, 20*((n+s)%5))}, call{"count", `{"ms":10}`}, call{"count", `{"ms":30}`}, call{"put", `{"ms":10}`}))
							}
						}
					})
				}
				comeAndGo()
				publishers.Wait()
				for session, ids := range p.log() {
					for n, id := range ids {
						reply, err := f.await(messages.Batch{Session: session, ID: id}, 10*time.Minute)
						if err != nil {
							t.Fatalf("batch %s of %s: %v", id, session, err)
						}
						if want := fmt.Sprintf(`"%d"`, 2*n+1); strings.Count(string(reply.Reinjection), want) != 2 {
							t.Errorf("batch %s of %s is number %d: its reads do not say %s: %s", id, session, n, want, reply.Reinjection)
						}
					}
				}
				l.inOrder(t, p.log(), 0, 3)
			})
		})
	}
}

// A backlog many times as large as the coordinators' slots drains completely, and every lane in
// order.
func TestABacklogDrains(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		f.worker(worker.Config{Slots: 30})
		f.coordinator(coordinator.Config{Slots: 4}) // creates the log
		var p published
		sessions, batches := repeats(200, 200), 5
		for n := range batches {
			for s := range sessions {
				p.publish(f, f.conn, canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), call{"put", `{"ms":5}`}))
			}
		}
		f.coordinator(coordinator.Config{Slots: 4})
		began := time.Now()
		f.drained()
		t.Logf("%d batches, 8 slots, writes of 5 ms: drained after %v", sessions*batches, time.Since(began))
		l.inOrder(t, p.log(), 0)
		for session, ids := range p.log() {
			for _, id := range ids {
				if reply, err := f.await(messages.Batch{Session: session, ID: id}, time.Minute); err != nil || reply.Status != messages.ReplyCompleted {
					t.Errorf("batch %s of %s: %s, %v", id, session, reply.Status, err)
				}
			}
		}
	})
}

// left returns how many messages a stream holds.
func (f *fleet) left(stream string) uint64 {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := f.conn.Request(ctx, "$JS.API.STREAM.INFO."+f.conn.Names().Stream(stream), nil, nil)
	var info struct {
		State struct {
			Msgs uint64 `json:"messages"`
		} `json:"state"`
	}
	if err == nil {
		err = json.Unmarshal(m.Data, &info)
	}
	if err != nil {
		f.t.Fatalf("state of %s: %v", stream, err)
	}
	return info.State.Msgs
}

// drained waits until the log is empty.
func (f *fleet) drained() {
	f.t.Helper()
	deadline := time.NewTimer(10 * time.Minute)
	defer deadline.Stop()
	for f.left(bus.Batches) > 0 {
		select {
		case <-deadline.C:
			f.t.Fatalf("%d batches are still in the log", f.left(bus.Batches))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The heads of these lanes cannot run, each for another reason. A good batch behind each of them
// runs soon.
func TestNoHeadStrandsItsLane(t *testing.T) {
	heads := map[string]func(f *fleet, session string){
		"refused": func(f *fleet, session string) {
			b := canonical(session, "head")
			b.Message = json.RawMessage(`{"calls":"none"}`)
			f.submit(b)
		},
		"no such provider": func(f *fleet, session string) {
			b := canonical(session, "head")
			b.Provider = "nobody"
			f.submit(b)
		},
		"too many calls": func(f *fleet, session string) { f.submit(canonical(session, "head", make([]call, 600)...)) },
		"no JSON":        func(f *fleet, session string) { f.append(session+".head", []byte("\x00\xff{")) },
		"empty":          func(f *fleet, session string) { f.append(session+".head", nil) },
		"of another session": func(f *fleet, session string) {
			b := canonical("elsewhere", "head", call{"put", `{"ms":1}`})
			b.V = messages.Version
			f.append(session+".head", rawjson.MustMarshal(b))
		},
		"hostile subject": func(f *fleet, session string) { f.append(session+".a*b", []byte("{}")) },
		"unknown tool":    func(f *fleet, session string) { f.submit(canonical(session, "head", call{"nope", ""})) },
		"nothing to do":   func(f *fleet, session string) { f.submit(canonical(session, "head")) },
		"deep": func(f *fleet, session string) {
			b := canonical(session, "head")
			b.Message = json.RawMessage(strings.Repeat("[", 5000) + strings.Repeat("]", 5000))
			f.submit(b)
		},
		"its plan cannot be read": func(f *fleet, session string) {
			f.record("plan._."+session+".head", []byte("junk"))
			f.submit(canonical(session, "head", call{"put", `{"ms":1}`}))
		},
		"its reply cannot be read": func(f *fleet, session string) {
			f.record("final._."+session+".head", []byte("junk"))
			f.submit(canonical(session, "head", call{"put", `{"ms":1}`}))
		},
	}
	for name, publish := range heads {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l laneBook
				l.tools(f)
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				f.coordinator(coordinator.Config{})
				publish(f, "s")
				next := canonical("s", "next", call{"put", `{"ms":1}`})
				f.submit(next)
				began := time.Now()
				reply, err := f.await(next, 3*time.Hour)
				if err != nil || reply.Results[0].Status != messages.StatusOK {
					t.Fatalf("%+v, %v", reply, err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the batch behind it took %v", took)
				}
				f.drained()
			})
		})
	}
}

// append publishes a body under the log's subjects, as any agent could.
func (f *fleet) append(address string, body []byte) { f.record("batch._."+address, body) }

func (f *fleet) record(address string, body []byte) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := f.conn.Append(ctx, wire.DefaultPrefix+"."+address, nil, body); err != nil {
		f.t.Fatal(err)
	}
}

// A session with a hundred batches in the log takes one slot. The other slot stays free for other
// sessions.
func TestWhatWaitsTakesNoSlot(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Slots: 2})
		for n := range 100 {
			f.submit(canonical("long", fmt.Sprint("b", n), call{"put", `{"ms":60000}`}))
		}
		// Simulated: the first batch runs, and the others are delivered and given back, many times.
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

// A coordinator dies with the heads that it drives. Another one takes the lanes up where they are
// once the broker redelivers, and batches behind a head took no slot meanwhile.
func TestAllSlotsHeldBySuccessorsOfADeadHead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		f.worker(worker.Config{})
		var p published
		dead := f.connect("dead coordinator")
		c, err := coordinator.New(dead, coordinator.Config{Slots: 2, Drain: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		f.start(dead, c.Run)
		f.until("it is ready", c.Ready)
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
		f.drained()
		if took := time.Since(began); took > 15*time.Second { // AckWait plus the remaining work
			t.Errorf("the lane of a dead head went on after %v", took)
		}
		l.inOrder(t, p.log(), 0)
	})
}

// A full log refuses batches, both at the publish and at the run handler, and loses none. A client
// that retries succeeds, and every accepted batch runs once and in order.
func TestBackPressureLosesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
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
					if s%2 == 0 { // published to the log until accepted
						for err := f.client.Submit(ctx, b); err != nil; err = f.client.Submit(ctx, b) {
							if !errors.Is(err, bus.ErrFull) {
								t.Errorf("a full log said: %v", err)
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
						reply, err := f.knock(ctx, b)
						if err == nil && reply.Status == messages.ReplyRefused && reply.Error.Class == messages.ClassBusy && reply.Error.RetryAfterMS > 0 {
							busy.Add(1)
							time.Sleep(time.Duration(reply.Error.RetryAfterMS) * time.Millisecond)
							continue
						}
						if err != nil || reply.Status != messages.ReplyCompleted || reply.Results[0].Status != messages.StatusOK {
							t.Errorf("%s of %s at the door: %+v, %v", b.ID, session, reply, err)
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
		l.inOrder(t, want, 0)
		f.drained()
	})
}

// knock sends one request to the run handler, as a program without our client would.
func (f *fleet) knock(ctx context.Context, b messages.Batch) (reply messages.Reply, err error) {
	b.V = messages.Version
	subject := f.conn.Names().Of(wire.VerbRun, wire.KeyOf(messages.OneTenant, b.Session, b.ID))
	m, err := f.conn.Request(ctx, subject, nil, rawjson.MustMarshal(b))
	if err == nil {
		err = json.Unmarshal(m.Data, &reply)
	}
	return reply, err
}

// crawl is a tool that takes five seconds.
func crawl(ctx context.Context, _ tool.Call) (tool.Output, error) {
	return tool.Text("done"), pauseArgs{5000}.wait(ctx)
}

// conversations runs agents that each publish a batch, await its reply, pause, and repeat. The slow
// sessions use the tool crawl. It returns how long each batch of the others took.
func conversations(f *fleet, sessions, slow, batches int) []time.Duration {
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
			// Simulated: so that they start at different times.
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

// One session in a hundred uses tools that take five seconds. The other sessions are not delayed.
func TestASlowSessionDelaysNobody(t *testing.T) {
	p99, sessions := map[int]time.Duration{}, repeats(100, 200)
	for _, slow := range []int{0, 2} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			var l laneBook
			l.tools(f)
			f.tool(schemas.Tool{Name: "crawl", TimeoutMS: 600_000}, crawl)
			f.worker(worker.Config{Slots: 25})
			f.worker(worker.Config{Slots: 25})
			f.coordinator(coordinator.Config{})
			f.coordinator(coordinator.Config{})
			took := conversations(f, sessions, slow, 4)
			p99[slow] = percentile(took, 99)
			t.Logf("%d sessions, %d slow: p50 %v, p99 %v, most %v of simulated time", sessions, slow, percentile(took, 50), p99[slow], percentile(took, 100))
		})
	}
	if p99[2] > p99[0]*3/2 {
		t.Errorf("p99 of the others: %v without slow sessions, %v with them", p99[0], p99[2])
	}
}

// Slow calls that fill every slot of the workers delay all calls behind them in the queue: a lane
// separates sessions but not the workers' slots. A separate pool for slow tools does.
func TestSlowToolsThatFillTheSlots(t *testing.T) {
	p99 := map[string]time.Duration{}
	for _, pool := range []string{"", "slow"} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			var l laneBook
			l.tools(f)
			f.tool(schemas.Tool{Name: "crawl", Pool: pool, TimeoutMS: 600_000}, crawl)
			f.worker(worker.Config{Slots: 4})
			f.coordinator(coordinator.Config{})
			took := conversations(f, 28, 8, 5)
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

// A full log refuses every batch, also a batch that it already holds or that already has a reply.
// A client that sends such a batch to the run handler still gets the reply of the batch.
func TestAFullLogKnowsItsBatches(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		provision := provision.Config{MaxBatches: 1}
		f.worker(worker.Config{Provision: provision})
		f.coordinator(coordinator.Config{Provision: provision})
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		done, runs := canonical("s", "done", call{"put", `{"ms":1}`}), canonical("s", "runs", call{"put", `{"ms":60000}`})
		f.run(done)
		f.settled()
		f.submit(runs)
		f.until("it runs", func() bool { return l.ran("s") == 2 })
		for _, b := range []messages.Batch{done, runs} {
			if reply, err := f.knock(ctx, b); err != nil || reply.Status != messages.ReplyCompleted || reply.Batch != b.ID {
				t.Errorf("batch %s while the log is full: %+v, %v", b.ID, reply, err)
			}
		}
		if l.ran("s") != 2 {
			t.Errorf("two writes ran %d times", l.ran("s"))
		}
	})
}
