package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// silences are the directions in which a link drops everything without an error.
var silences = map[string]struct{ up, down conditions }{
	"in both directions": {conditions{silent: true}, conditions{silent: true}},
	"from the client":    {up: conditions{silent: true}},
	"to the client":      {down: conditions{silent: true}},
}

// fiveSeconds returns a tool that runs for five seconds and then appends the time to ended.
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

// The link of an agent or of the only coordinator is silent for a minute while a write runs.
// The connection reports no error. When the link recovers, the waiting client gets the reply,
// and nothing has run twice.
func TestASilentLink(t *testing.T) {
	for _, who := range []string{"agent", "coordinator"} {
		for how, silence := range silences {
			t.Run(who+", "+how, func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					var ended []time.Time
					pay := f.recordedTool(schemas.Tool{Name: "pay"}, fiveSeconds(&ended))
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
					l.set(conditions{}, conditions{})
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

// The link of a worker that runs a write is silent. The worker stops its tool before another
// worker may run the call.
func TestASilentLinkOfAWorker(t *testing.T) {
	for _, crash := range []messages.OnCrash{messages.OnCrashOnce, messages.OnCrashIdempotent} {
		for how, silence := range silences {
			t.Run(string(crash)+", "+how, func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					var ended []time.Time
					long := f.recordedTool(schemas.Tool{Name: "long", OnCrash: crash, TimeoutMS: 600_000}, func(ctx context.Context, n int) (tool.Output, error) {
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
					// The lease, the grace and one poll pass first. A job that is published
					// again may first be delivered to the silent worker.
					want, runs, within := "outcome_unknown", 1, 20*time.Second
					if crash == messages.OnCrashIdempotent {
						want, runs, within = "ok", 2, 45*time.Second
					}
					if took := time.Since(began); took > within {
						t.Errorf("the call ended after %v", took)
					}
					f.wantStatuses(reply, want)
					l.set(conditions{}, conditions{})
					time.Sleep(time.Minute) // simulated: the worker's late messages arrive
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
					for n := range 4 { // four, so that both workers get one
						f.wantStatuses(f.run(canonical("s", fmt.Sprint("after", n), call{"long", ""})), "ok")
					}
				})
			})
		}
	}
}

// A link breaks in the middle of a message, and the message is lost. The sender sends it
// again, or the receiver asks for it again, and nothing runs twice.
func TestALinkBreaksInAMessage(t *testing.T) {
	for name, row := range map[string]struct {
		who       string
		breakText string
		breakPart float64
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
				pay := f.recordedTool(schemas.Tool{Name: "pay"}, func(ctx context.Context, _ int) (tool.Output, error) {
					// The call ends before its worker first reports that it runs.
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
				l.breakText, l.breakPart = row.breakText, row.breakPart
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
				time.Sleep(time.Minute) // simulated: all redeliveries have arrived
				l.mu.Lock()
				blown := l.broken
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

// An agent disappears while it sends its batch, or right after. In the first case the fleet
// has nothing of the batch. In the second case it has the whole batch, and the reply can be
// fetched.
func TestTheAgentIsGone(t *testing.T) {
	for name, row := range map[string]struct {
		breakPart float64
		known     bool
	}{"in the middle of its batch": {0.5, false}, "after its batch": {1, true}} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var ended []time.Time
				pay := f.recordedTool(schemas.Tool{Name: "pay"}, fiveSeconds(&ended))
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				l := newLink(t, srv)
				l.breakText, l.breakPart = "toolfleet.batch.", row.breakPart
				conn := l.connect(f, "agent")
				b := canonical("s", "b", call{"pay", ""}, call{"pay", ""})
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_ = fleettest.AgentOver(conn, "").Submit(ctx, b)
				}()
				f.until("the link breaks", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.broken })
				conn.Close()
				time.Sleep(time.Minute)
				reply, err := f.client.Get(context.Background(), b.Session, b.ID)
				if !row.known {
					if !errors.Is(err, client.ErrUnknown) || len(pay.all()) != 0 {
						t.Errorf("after half of a batch arrived: %+v, %v, and %d runs", reply, err, len(pay.all()))
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

// The links are slow, or the server answers late because its disk is slow. Everything takes
// longer, but results arrive whole, nothing runs twice, and no call is reported as lost.
func TestSlowLinks(t *testing.T) {
	for name, row := range map[string]struct {
		slow conditions
		size int
	}{
		"16 KB a second":       {conditions{rate: 16 << 10}, 10_000},
		"1 KB a second":        {conditions{rate: 1 << 10}, 2000},
		"answers after 500 ms": {conditions{delay: 250 * time.Millisecond}, 10},
		"answers after 1 s":    {conditions{delay: 500 * time.Millisecond}, 10},
		"large results":        {conditions{rate: 64 << 10}, 100_000},
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
					pay := f.recordedTool(schemas.Tool{Name: "pay", TimeoutMS: 600_000, MaxOutput: 1 << 30}, func(ctx context.Context, _ int) (tool.Output, error) {
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
					toCoordinator.set(conditions{}, conditions{})
					toWorker.set(conditions{}, conditions{})
				})
			})
		}
	}
}
