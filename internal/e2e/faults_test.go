package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// addSlowWrite registers a write that takes the given time. It returns the number of runs.
func addSlowWrite(f *fleet, took time.Duration) *atomic.Int32 {
	runs := new(atomic.Int32)
	f.tool(schemas.Tool{Name: "slow", TimeoutMS: 300_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		runs.Add(1)
		select {
		case <-time.After(took):
			return tool.JSON(c.Fence > 0)
		case <-ctx.Done():
			return tool.Output{}, ctx.Err()
		}
	})
	return runs
}

// A write runs longer than its lease. Its worker renews the lease, no other worker takes the
// call over, and the call is not reported as lost.
func TestALongWriteKeepsItsClaim(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := addSlowWrite(f, 2*time.Minute)
		f.worker(worker.Config{})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		r := f.run(canonical("s", "b", call{"slow", ""})).Results[0]
		if r.Status != messages.StatusOK || r.Attempt != 1 || runs.Load() != 1 {
			t.Errorf("result %+v after %d runs", r, runs.Load())
		}
	})
}

func TestTheServerRestartsDuringABatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := addSlowWrite(f, 5*time.Second)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"slow", ""}, call{"slow", ""})
		if err := f.client.Submit(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		f.until("the write runs", func() bool { return runs.Load() == 1 })
		srv.Stop()
		time.Sleep(time.Second) // simulated
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		reply, err := f.client.Await(ctx, b.Session, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reply.Results {
			if r.Status != messages.StatusOK || r.Attempt != 1 {
				t.Errorf("result %+v", r)
			}
		}
		if runs.Load() != 2 {
			t.Errorf("two writes ran %d times", runs.Load())
		}
	})
}

// Clients wait for a reply while the server is down, and every message in flight is lost. Each
// gets its reply soon after the server is back.
func TestAWaitingClientGetsItsReplySoonAfterTheServerIsBack(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		// There are so many agents that some reconnect later than the coordinator that has
		// their reply.
		const agents = 12
		runs := addSlowWrite(f, 5*time.Second)
		f.worker(worker.Config{Slots: agents})
		f.coordinator(coordinator.Config{})
		replied := make(chan time.Time, agents)
		for n := range agents {
			own := f.connect("agent")
			defer own.Close()
			go func() {
				_, err := fleettest.AgentOver(own, "").Run(context.Background(), canonical(fmt.Sprint("s", n), "b", call{"slow", ""}))
				if err != nil {
					t.Error(err)
				}
				replied <- time.Now()
			}()
		}
		f.until("the writes run", func() bool { return runs.Load() == agents })
		time.Sleep(4900 * time.Millisecond) // the writes end while the server is down
		srv.Stop()
		time.Sleep(time.Second)
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		for range agents {
			if took := (<-replied).Sub(back); took > 5*time.Second {
				t.Errorf("a reply came %v after the server", took)
			}
		}
	})
}

// A client's run request waits at a coordinator that disappears without an error. Another
// coordinator finishes the batch. The client gets the reply as soon as it is stored, not when
// its own timeout ends.
func TestARunRequestOutlivesItsCoordinator(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := addSlowWrite(f, 15*time.Second) // longer than a connection takes to close
		f.worker(worker.Config{})
		lostConn := f.connect("lost coordinator")
		lost, err := coordinator.New(lostConn, coordinator.Config{})
		if err != nil {
			t.Fatal(err)
		}
		f.start(lostConn, lost.Run)
		f.until("the first coordinator is ready", lost.Ready)
		stored := make(chan time.Time, 1)
		if _, err := f.conn.Subscribe("toolfleet.reply._.s.b", "", func(bus.Msg) {
			select {
			case stored <- time.Now():
			default: // a repeated request publishes the reply again
			}
		}); err != nil {
			t.Fatal(err)
		}
		replied := make(chan time.Time)
		go func() {
			f.run(canonical("s", "b", call{"slow", ""}))
			replied <- time.Now()
		}()
		f.until("the write runs", func() bool { return runs.Load() == 1 })
		f.coordinator(coordinator.Config{})
		lostConn.Close()
		if late := (<-replied).Sub(<-stored); late > 2*time.Second {
			t.Errorf("the client got the reply %v after it was stored", late)
		}
	})
}

// One session has many batches in the log, and there are two coordinators. The batches run one
// at a time, in the order of the log.
func TestASessionStaysInOrder(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	var s shelf
	s.tools(f)
	f.worker(worker.Config{})
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{AckWait: 3 * time.Second})
	f.coordinator(coordinator.Config{AckWait: 3 * time.Second})
	const batches = 20
	var want []string
	for n := range batches { // one after another, so that the order of the log is known
		id := fmt.Sprint("b", n)
		v := func(m int) string { return fmt.Sprintf(`{"k":"x","v":"%d-%d"}`, n, m) }
		b := canonical("s", id, call{"wr", v(0)}, call{"rd", `{"k":"x"}`}, call{"wr", v(1)})
		if n%5 == 3 {
			// A refused head must not hold up the batches behind it.
			b.Message = json.RawMessage(`{"calls":"none"}`)
		} else {
			want = append(want, fmt.Sprintf(`"%d-0"`, n), fmt.Sprintf(`"%d-1"`, n))
		}
		if err := f.client.Submit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n := range batches {
		reply, err := f.client.Await(ctx, "s", messages.BatchID(fmt.Sprint("b", n)))
		if refused := n%5 == 3; refused != (err != nil) {
			t.Fatalf("batch %d: %s, err %v", n, reply.Status, err)
		}
	}
	if diff := cmp.Diff(want, s.order); diff != "" {
		t.Errorf("order of the writes (-want +got):\n%s", diff)
	}
}

// The clock of a coordinator or worker is three hours ahead of the server's clock or behind
// it. Three hours is longer than the life of a batch and than any lease. Nothing expires, no
// lease lapses, and retries come on time.
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
					pay := f.recordedTool(schemas.Tool{Name: "pay"}, func(ctx context.Context, _ int) (tool.Output, error) {
						return tool.Text("paid"), pauseArgs{40_000}.wait(ctx)
					})
					flaky := f.recordedTool(schemas.Tool{Name: "flaky", Kind: messages.KindRead, Retry: schemas.Retry{Attempts: 2, BackoffMS: 4000}}, func(_ context.Context, n int) (tool.Output, error) {
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

// A worker takes a job from the queue and acknowledges it, but does not run the call. The call
// has no result, and its job is published again.
func TestAnAcknowledgedJobThatDidNotRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := startBounded(f, provision.Config{}, nil)
		f.stops[0]() // the worker leaves
		rogue := f.announce(wire.Presence{Worker: "rogue", Pools: []string{"default"}, Tools: []string{"echo", "put"}})
		b := canonical("s", "b", call{"echo", ""}, call{"put", ""})
		f.submit(b)
		for n := range 2 {
			f.until("a job is in the queue", func() bool { return f.messageCount(bus.Jobs) == 1 })
			next, err := f.conn.Request(context.Background(), "$JS.API.CONSUMER.MSG.NEXT.TOOLFLEET_JOBS.default", nil, []byte("1"))
			if err != nil || !strings.HasPrefix(next.Reply, "$JS.ACK.") {
				t.Fatalf("a rogue worker got %+v, %v", next, err)
			}
			if err := f.conn.Publish(next.Reply, nil, []byte("+ACK")); err != nil {
				t.Fatal(err)
			}
			f.until("the job has gone", func() bool { return f.messageCount(bus.Jobs) == 0 })
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

// A worker is lost in a post-hook: the tool has ended, but no record says so. If the tool may
// not run again, the hook does not run again either.
func TestAWorkerIsLostInAPostHook(t *testing.T) {
	for crash, want := range map[messages.OnCrash]struct {
		status string
		runs   int
	}{messages.OnCrashOnce: {"outcome_unknown", 1}, messages.OnCrashIdempotent: {"ok", 2}, messages.OnCrashCheckable: {"ok", 1}} {
		t.Run(string(crash), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				pay := f.recordedTool(schemas.Tool{Name: "pay", OnCrash: crash}, func(context.Context, int) (tool.Output, error) { return tool.Text("paid"), nil })
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
				kill <- f.killableWorker(worker.Config{Hooks: after})
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
