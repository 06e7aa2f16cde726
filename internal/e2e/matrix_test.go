package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// silences are the ways in which a link carries nothing.
var silences = map[string]struct{ up, down weather }{
	"in both directions":     {weather{silent: true}, weather{silent: true}},
	"in what the party says": {up: weather{silent: true}},
	"in what it hears":       {down: weather{silent: true}},
}

// fiveSeconds is a run of five seconds that notes its end.
func fiveSeconds(ended *[]time.Time) func(context.Context, int) (tool.Output, error) {
	var mu sync.Mutex
	return func(ctx context.Context, _ int) (tool.Output, error) {
		err := pauseArgs{5000}.wait(ctx)
		mu.Lock()
		defer mu.Unlock()
		*ended = append(*ended, time.Now())
		return tool.Text("done"), err
	}
}

// The link of an agent or of the only coordinator is silent for a minute, without an error, while a
// write runs. When it recovers, the waiting client has the reply, and nothing has run twice.
func TestASilentLink(t *testing.T) {
	for _, who := range []string{"agent", "coordinator"} {
		for how, silence := range silences {
			t.Run(who+", "+how, func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					var ended []time.Time
					pay := f.kept(schemas.Tool{Name: "pay"}, fiveSeconds(&ended))
					l := newLink(t, srv)
					f.worker(worker.Config{})
					agent := f.client
					if who == "coordinator" {
						f.coordinatorOver(l)
					} else {
						f.coordinator(coordinator.Config{})
						conn := l.connect(f, "agent")
						defer conn.Close()
						agent = fleettest.AgentOver(conn, "")
					}
					replied := make(chan messages.Reply, 1)
					go func() {
						ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
						defer cancel()
						reply, err := agent.Run(ctx, canonical("s", "b", call{"pay", ""}, call{"pay", ""}))
						if err != nil {
							t.Error(err)
						}
						replied <- reply
					}()
					f.hasRun(pay, 1)
					l.set(silence.up, silence.down)
					time.Sleep(time.Minute) // simulated
					l.set(weather{}, weather{})
					healed := time.Now()
					f.wantStatuses(<-replied, "ok ok")
					if took := time.Since(healed); took > 30*time.Second {
						t.Errorf("the reply came %v after the link was well", took)
					}
					if len(pay.all()) != 2 {
						t.Errorf("two writes ran %d times", len(pay.all()))
					}
				})
			})
		}
	}
}

// The link of a worker that runs a write is silent: its tool is stopped before another worker may
// run the call.
func TestASilentLinkOfAWorker(t *testing.T) {
	for _, crash := range []messages.OnCrash{messages.OnCrashOnce, messages.OnCrashIdempotent} {
		for how, silence := range silences {
			t.Run(string(crash)+", "+how, func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					var ended []time.Time
					long := f.kept(schemas.Tool{Name: "long", OnCrash: crash, TimeoutMS: 600_000}, func(ctx context.Context, n int) (tool.Output, error) {
						if n == 1 {
							<-ctx.Done()
							ended = append(ended, time.Now())
							return tool.Text("late"), nil // the tool ignores its cancellation
						}
						return tool.Text("in time"), nil
					})
					l := newLink(t, srv)
					f.workerOver(l, worker.Config{Name: "silent"})
					f.coordinator(coordinator.Config{})
					b := canonical("s", "b", call{"long", ""})
					f.submit(b)
					f.hasRun(long, 1)
					f.worker(worker.Config{Name: "heir"})
					time.Sleep(5 * time.Second)
					began := time.Now()
					l.set(silence.up, silence.down)
					reply := f.reply(b, 5*time.Minute)
					// Lease, grace, and a poll. A call that runs again may first be delivered to
					// the silent worker.
					want, runs, within := "outcome_unknown", 1, 20*time.Second
					if crash == messages.OnCrashIdempotent {
						want, runs, within = "ok", 2, 45*time.Second
					}
					if took := time.Since(began); took > within {
						t.Errorf("it took %v until somebody decided", took)
					}
					f.wantStatuses(reply, want)
					l.set(weather{}, weather{})
					time.Sleep(time.Minute) // the silent worker's messages arrive now
					all := long.all()
					if len(all) != runs || len(ended) != 1 {
						t.Fatalf("%d runs, %d of them stopped; want %d and 1", len(all), len(ended), runs)
					}
					if runs == 2 && (ended[0].After(all[1].at) || all[0].key != all[1].key || all[0].fence >= all[1].fence) {
						t.Errorf("the first run ended at %v; runs %+v", ended[0], all)
					}
					again, err := f.client.Get(context.Background(), b.Session, b.ID, client.FullResults())
					if err != nil || crash == messages.OnCrashIdempotent && again.Results[0].Worker != "heir" {
						t.Errorf("later the result is %+v, %v", again.Results, err)
					}
					for n := range 4 { // both workers serve
						f.wantStatuses(f.run(canonical("s", fmt.Sprint("after", n), call{"long", ""})), "ok")
					}
				})
			})
		}
	}
}

// A link breaks in the middle of a message, and the message is lost. Its sender or receiver asks
// again, and nothing runs twice.
func TestALinkBreaksInAMessage(t *testing.T) {
	for name, row := range map[string]struct {
		who    string
		fuse   string
		passes float64
	}{
		"batch, half of it arrives":     {"agent", "toolfleet.batch.", 0.5},
		"batch, none of it arrives":     {"agent", "toolfleet.batch.", 0},
		"batch, its ack does not":       {"agent", `"stream":"TOOLFLEET_BATCHES"`, 0},
		"reply, half of it arrives":     {"agent", `"reinjection"`, 0.5},
		"delivery of a batch":           {"coordinator", "$JS.ACK.TOOLFLEET_BATCHES.", 0},
		"job, half of it arrives":       {"coordinator", "toolfleet.write.", 0.5},
		"reply is stored, its ack lost": {"coordinator", `"stream":"TOOLFLEET_REPLIES"`, 0},
		"delivery of a job":             {"worker", "toolfleet.write.", 0},
		"ack of a job":                  {"worker", "PUB $JS.ACK.TOOLFLEET_JOBS.", 0},
		"claim, none of it arrives":     {"worker", `"state":"claimed"`, 0},
		"claim, half of it arrives":     {"worker", `"state":"claimed"`, 0.5},
		"result, half of it arrives":    {"worker", `"state":"ended"`, 0.5},
		"result, its ack does not":      {"worker", `"stream":"TOOLFLEET_CALLS"`, 0},
	} {
		t.Run(row.who+": "+name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				pay := f.kept(schemas.Tool{Name: "pay"}, func(ctx context.Context, _ int) (tool.Output, error) {
					// The call ends before its first keep-alive.
					return tool.Text("paid"), pauseArgs{50}.wait(ctx)
				})
				l := newLink(t, srv)
				agent := f.client
				switch row.who {
				case "agent":
					conn := l.connect(f, "agent")
					defer conn.Close()
					agent = fleettest.AgentOver(conn, "")
					f.worker(worker.Config{})
					f.coordinator(coordinator.Config{})
				case "coordinator":
					f.worker(worker.Config{})
					f.coordinatorOver(l)
				case "worker":
					f.workerOver(l, worker.Config{})
					f.coordinator(coordinator.Config{})
				}
				l.mu.Lock()
				l.fuse, l.passes = row.fuse, row.passes
				l.mu.Unlock()
				b := canonical("s", "b", call{"pay", ""}, call{"pay", ""})
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				for err := agent.Submit(ctx, b); err != nil; err = agent.Submit(ctx, b) {
					if ctx.Err() != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				reply, err := agent.Await(ctx, b.Session, b.ID)
				if err != nil {
					t.Fatal(err)
				}
				f.wantStatuses(reply, "ok ok")
				time.Sleep(time.Minute) // redeliveries have arrived
				l.mu.Lock()
				blown := l.blown
				l.mu.Unlock()
				if len(pay.all()) != 2 || !blown {
					t.Errorf("the link broke: %t; two writes ran %d times", blown, len(pay.all()))
				}
				if again, err := f.client.Get(ctx, b.Session, b.ID); err != nil || !bytes.Equal(again.Reinjection, reply.Reinjection) {
					t.Errorf("the reply was %s and is %s, %v", reply.Reinjection, again.Reinjection, err)
				}
			})
		})
	}
}

// An agent disappears before or after its batch arrived. It leaves nothing, or the whole batch,
// whose reply can be fetched.
func TestTheAgentIsGone(t *testing.T) {
	for name, row := range map[string]struct {
		passes float64
		known  bool
	}{"in the middle of its batch": {0.5, false}, "after its batch": {1, true}} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var ended []time.Time
				pay := f.kept(schemas.Tool{Name: "pay"}, fiveSeconds(&ended))
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				l := newLink(t, srv)
				l.fuse, l.passes = "toolfleet.batch.", row.passes
				conn := l.connect(f, "agent")
				b := canonical("s", "b", call{"pay", ""}, call{"pay", ""})
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_ = fleettest.AgentOver(conn, "").Submit(ctx, b)
				}()
				f.until("the link breaks", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.blown })
				conn.Close()
				time.Sleep(time.Minute)
				reply, err := f.client.Get(context.Background(), b.Session, b.ID)
				if !row.known {
					if !errors.Is(err, client.ErrUnknown) || len(pay.all()) != 0 {
						t.Errorf("of half a batch there is %+v, %v, and %d runs", reply, err, len(pay.all()))
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				f.wantStatuses(reply, "ok ok")
			})
		})
	}
}

// Links are slow, or the server answers late as with a slow disk. Everything takes longer, but
// results arrive whole, nothing runs twice and nothing is reported as lost.
func TestSlowLinks(t *testing.T) {
	for name, row := range map[string]struct {
		slow weather
		size int
	}{
		"16 KB a second":       {weather{rate: 16 << 10}, 10_000},
		"1 KB a second":        {weather{rate: 1 << 10}, 2000},
		"answers after 500 ms": {weather{delay: 250 * time.Millisecond}, 10},
		"answers after 1 s":    {weather{delay: 500 * time.Millisecond}, 10},
		"large results":        {weather{rate: 64 << 10}, 100_000},
	} {
		for _, who := range []string{"coordinator", "worker", "both"} {
			if row.slow.rate == 1<<10 && who != "worker" {
				continue
			}
			t.Run(name+", "+who, func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					output := strings.Repeat("x", row.size)
					pay := f.kept(schemas.Tool{Name: "pay", TimeoutMS: 600_000, MaxOutput: 1 << 30}, func(ctx context.Context, _ int) (tool.Output, error) {
						return tool.Text(output), pauseArgs{20_000}.wait(ctx)
					})
					toCoordinator, toWorker := newLink(t, srv), newLink(t, srv)
					f.workerOver(toWorker, worker.Config{})
					f.coordinatorOver(toCoordinator)
					if who != "worker" {
						toCoordinator.set(row.slow, row.slow)
					}
					if who != "coordinator" {
						toWorker.set(row.slow, row.slow)
					}
					b := canonical("s", "b", call{"pay", ""}, call{"pay", ""})
					f.submit(b)
					reply := f.reply(b, 2*time.Minute)
					f.wantStatuses(reply, "ok ok")
					if n := bytes.Count(reply.Reinjection, []byte("x")); len(pay.all()) != 2 || n != 2*row.size {
						t.Errorf("two writes ran %d times; %d of %d bytes came", len(pay.all()), n, 2*row.size)
					}
					toCoordinator.set(weather{}, weather{})
					toWorker.set(weather{}, weather{})
				})
			})
		}
	}
}

// A coordinator's or worker's clock is three hours ahead of the server's or behind it, which is
// longer than a batch's life and than any lease. Nothing expires, no lease lapses, and retries come
// on time.
func TestAClockThatIsWrong(t *testing.T) {
	for _, who := range []string{"coordinator", "worker"} {
		for _, ahead := range []int{-3, 3} {
			t.Run(fmt.Sprintf("%s, %d hours", who, ahead), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					time.Sleep(5 * time.Hour) // so that three hours earlier is the same day
					f := newFleet(t, srv)
					defer f.close()
					l := newLink(t, srv)
					l.ahead = ahead
					pay := f.kept(schemas.Tool{Name: "pay"}, func(ctx context.Context, _ int) (tool.Output, error) {
						return tool.Text("paid"), pauseArgs{40_000}.wait(ctx)
					})
					flaky := f.kept(schemas.Tool{Name: "flaky", Kind: messages.KindRead, Retry: schemas.Retry{Attempts: 2, BackoffMS: 4000}}, func(_ context.Context, n int) (tool.Output, error) {
						if n == 1 {
							return busy("rate_limited")
						}
						return tool.Text("done"), nil
					})
					if who == "worker" {
						f.workerOver(l, worker.Config{})
						f.coordinator(coordinator.Config{})
					} else {
						f.worker(worker.Config{})
						f.coordinatorOver(l)
					}
					f.worker(worker.Config{Slots: 1})
					began := time.Now()
					f.wantStatuses(f.run(canonical("s", "b", call{"flaky", ""}, call{"pay", ""}, call{"pay", ""})), "ok ok ok")
					if took := time.Since(began); took > 100*time.Second || len(pay.all()) != 2 || len(flaky.all()) != 2 {
						t.Errorf("two writes of 40 s ran %d times and a read %d times in %v", len(pay.all()), len(flaky.all()), took)
					}
				})
			})
		}
	}
}

// A job that was acknowledged or deleted from the queue is not done by that: without a result its
// call is dispatched again.
func TestAJobThatIsAcknowledgedAndNotDone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := bounded(f, provision.Config{}, nil)
		f.stops[0]() // the worker goes
		rogue := f.announce(wire.Presence{Worker: "rogue", Pools: []string{"default"}, Tools: []string{"echo", "put"}})
		b := canonical("s", "b", call{"echo", ""}, call{"put", ""})
		f.submit(b)
		for n := range 2 {
			f.until("a job is in the queue", func() bool { return f.left(bus.Jobs) == 1 })
			next, err := f.conn.Request(context.Background(), "$JS.API.CONSUMER.MSG.NEXT.TOOLFLEET_JOBS.default", nil, []byte("1"))
			if err != nil || !strings.HasPrefix(next.Reply, "$JS.ACK.") {
				t.Fatalf("a rogue worker got %+v, %v", next, err)
			}
			if err := f.conn.Publish(next.Reply, nil, []byte("+ACK")); err != nil {
				t.Fatal(err)
			}
			f.until("the job has gone", func() bool { return f.left(bus.Jobs) == 0 })
			if n == 1 {
				rogue()
				f.worker(worker.Config{})
			}
		}
		f.wantStatuses(f.reply(b, time.Minute), "ok ok")
		if runs.Load() != 1 {
			t.Errorf("the write ran %d times", runs.Load())
		}
	})
}

// Sessions and tenants choose their ids freely: the same ids in another session or tenant mean
// different batches.
func TestTheSameIdsElsewhere(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		bounded(f, provision.Config{}, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, where := range []string{"_.s", "_.other", "tenant.s", "tenant.other"} {
			_, session, _ := strings.Cut(where, ".")
			b := encoded(canonical(session, "b", call{"echo", fmt.Sprintf(`{"from":%q}`, where)}, call{"put", ""}))
			reply, err := f.conn.Request(ctx, "toolfleet.run."+where+".b", nil, b)
			if err != nil || !strings.Contains(string(reply.Data), `{"from":"`+where+`"}`) {
				t.Errorf("%s: %s, %v", where, reply.Data, err)
			}
		}
	})
}

// Fields that a later version adds to a batch or a job are ignored.
func TestFieldsOfALaterVersion(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := bounded(f, provision.Config{}, nil)
		f.stops[0]() // the worker goes
		f.append("s.b", []byte(`{"v":1,"id":"b","session":"s","provider":"canonical","later":{"n":1},"message":{"calls":[{"id":"c0","name":"put","input":{}}]}}`))
		f.until("the job is in the queue", func() bool { return f.left(bus.Jobs) == 1 })
		ctx := context.Background()
		job, err := f.conn.First(ctx, f.conn.Names().Stream(bus.Jobs), ">")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.conn.Delete(ctx, f.conn.Names().Stream(bus.Jobs), job.Seq); err != nil {
			t.Fatal(err)
		}
		if _, err := f.conn.Append(ctx, job.Subject, job.Header, bytes.Replace(job.Data, []byte(`{`), []byte(`{"later":{"n":1},`), 1)); err != nil {
			t.Fatal(err)
		}
		f.worker(worker.Config{})
		f.wantStatuses(f.reply(canonical("s", "b"), time.Minute), "ok")
		if runs.Load() != 1 {
			t.Errorf("the write ran %d times", runs.Load())
		}
	})
}

// A session with two thousand writes in the log runs them one at a time and leaves the workers'
// other slots free.
func TestAHotSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
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

// A worker is lost in a post-hook: the tool has ended, but no record says so. If the tool may not
// run again, the hook does not either.
func TestAWorkerIsLostInAPostHook(t *testing.T) {
	for crash, want := range map[messages.OnCrash]struct {
		status string
		runs   int
	}{messages.OnCrashOnce: {"outcome_unknown", 1}, messages.OnCrashIdempotent: {"ok", 2}, messages.OnCrashCheckable: {"ok", 1}} {
		t.Run(string(crash), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				pay := f.kept(schemas.Tool{Name: "pay", OnCrash: crash}, func(context.Context, int) (tool.Output, error) { return tool.Text("paid"), nil })
				pay.probe = func(context.Context, int) (bool, error) { return true, nil }
				var hooked atomic.Int32
				kill := make(chan func(), 1)
				after := hooks(t, hook.Hook{Name: "tell", Budget: time.Hour, After: func(ctx context.Context, _ hook.Call, _ hook.Done) (hook.Change, error) {
					if hooked.Add(1) == 1 {
						(<-kill)()
						<-ctx.Done()
					}
					return hook.Change{}, ctx.Err()
				}})
				kill <- f.doomed(worker.Config{Hooks: after})
				f.coordinator(coordinator.Config{})
				b := canonical("s", "b", call{"pay", ""})
				f.submit(b)
				f.until("the hook runs", func() bool { return hooked.Load() == 1 })
				f.workerWith(f.tools, worker.Config{Hooks: after})
				f.wantStatuses(f.reply(b, 5*time.Minute), want.status)
				if runs := pay.all(); len(runs) != want.runs || want.runs == 2 && runs[0].key != runs[1].key {
					t.Errorf("runs %+v, want %d", runs, want.runs)
				}
				if crash == messages.OnCrashOnce && hooked.Load() != 1 {
					t.Errorf("the hook ran %d times", hooked.Load())
				}
			})
		})
	}
}

var (
	named   = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	defined = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
)

// Every test that docs/faults.md names exists.
func TestFaultsAreShown(t *testing.T) {
	document, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" { // other processes change this folder
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(source, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	shown := named.FindAllSubmatch(document, -1)
	if len(shown) < 60 {
		t.Errorf("docs/faults.md names %d tests", len(shown))
	}
	for _, m := range shown {
		if !there[string(m[1])] {
			t.Errorf("docs/faults.md names %s, which is not there", m[1])
		}
	}
}
