package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// drainCase is a kind of call that runs when its worker is told to stop. want is how the call
// ends, and runs is how often its tool starts.
type drainCase struct {
	name    string
	tool    schemas.Tool
	applied bool
	want    string
	runs    int32
}

var drainCases = []drainCase{
	{"read", schemas.Tool{Kind: messages.KindRead}, false, "ok", 2},
	{"once", schemas.Tool{Kind: messages.KindWrite}, false, "outcome_unknown", 1},
	{"idempotent", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, false, "ok", 2},
	{"checkable, applied", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable}, true, "ok", 1},
	{"checkable, not applied", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable}, false, "ok", 2},
}

// A tool runs longer than its worker's drain. The worker stops the tool, and a call that may
// run again does so at once on another worker. A drain of hours that is hurried ends in the
// same way.
func TestADrainStopsCallsThatTakeTooLong(t *testing.T) {
	for _, hurried := range []bool{false, true} {
		for _, row := range drainCases {
			t.Run(fmt.Sprintf("%s, hurried %t", row.name, hurried), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					row.tool.Name = "do"
					do := f.gated(row.tool)
					do.applied.Store(row.applied)
					hurry := make(chan struct{})
					cfg := worker.Config{Drain: 20 * time.Second, Hurry: hurry}
					const patience = 20 * time.Second
					if hurried {
						cfg.Drain = 3 * time.Hour
						time.AfterFunc(15*time.Second, func() { close(hurry) })
					}
					going := f.worker(cfg)
					f.coordinator(coordinator.Config{})
					b := canonical("s", "b", call{"do", ""})
					f.submit(b)
					f.atGate(do, 1)
					f.worker(worker.Config{})
					time.Sleep(10 * time.Second)
					began := time.Now()
					var stopping sync.WaitGroup
					stopping.Go(going.stop)
					f.until("the drain is over", func() bool { return do.stopped.Load() == 1 })
					stopping.Wait()
					if took := time.Since(began); took > patience+2*time.Second {
						t.Errorf("the worker took %v to end", took)
					}
					close(do.open)
					ended := time.Now()
					f.wantStatuses(f.reply(b, time.Minute), row.want)
					if took := time.Since(ended); took > time.Second {
						t.Errorf("no worker took the call over for %v", took)
					}
					if do.runs.Load() != row.runs {
						t.Errorf("%d runs, want %d", do.runs.Load(), row.runs)
					}
				})
			})
		}
	}
}

// A call ends within the drain of its worker and is not stopped. The draining worker takes no
// other call.
func TestADrainLetsCallsEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		going := f.worker(worker.Config{Name: "going", Drain: 30 * time.Second})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", ""}, call{"pay", through})
		f.submit(b)
		f.atGate(pay, 1)
		f.worker(worker.Config{Name: "heir"})
		var stopping sync.WaitGroup
		stopping.Go(going.stop)
		time.Sleep(20 * time.Second)
		close(pay.open)
		stopping.Wait()
		reply := f.reply(b, time.Minute)
		f.wantStatuses(reply, "ok ok")
		if first, second := reply.Results[0].Worker, reply.Results[1].Worker; first != "going" || second != "heir" {
			t.Errorf("run by %s and %s, want going and heir", first, second)
		}
	})
}

// A tool ignores its cancellation. Its worker ends nevertheless.
func TestADrainLeavesAStubbornToolBehind(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		release := make(chan struct{})
		defer close(release)
		started := make(chan struct{}, 1)
		f.tool(schemas.Tool{Name: "stubborn", TimeoutMS: 600_000}, func(context.Context, tool.Call) (tool.Output, error) {
			started <- struct{}{}
			<-release
			return tool.Text("late"), nil
		})
		going := f.worker(worker.Config{Drain: 5 * time.Second})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"stubborn", ""})
		f.submit(b)
		<-started
		began := time.Now()
		going.stop()
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("the worker took %v to end", took)
		}
		f.wantStatuses(f.reply(b, time.Second), "outcome_unknown")
	})
}

// A worker's drain is hurried, and a probe hangs. The worker does not wait for the probe.
func TestAHurriedDrainDoesNotWaitForAProbe(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		l := f.recordedTool(schemas.Tool{Name: "book", Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable, TimeoutMS: 600_000}, func(ctx context.Context, _ int) (tool.Output, error) { return waitForStop(ctx) })
		l.probe = func(ctx context.Context, n int) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		hurry := make(chan struct{})
		close(hurry)
		going := f.worker(worker.Config{Hurry: hurry})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"book", ""})
		f.submit(b)
		f.hasRun(l, 1)
		began := time.Now()
		going.stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the worker took %v to end", took)
		}
		f.wantStatuses(f.reply(b, time.Minute), "outcome_unknown")
	})
}

// Workers and coordinators are replaced one after another under load. Every batch is answered,
// and each write happens once.
func TestRollingRestartsUnderLoad(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		l := f.recordedTool(schemas.Tool{Name: "pay"}, func(ctx context.Context, n int) (tool.Output, error) {
			select {
			case <-time.After(time.Duration(100+n%5*100) * time.Millisecond):
				return tool.Text("paid"), nil
			case <-ctx.Done():
				return tool.Output{}, ctx.Err()
			}
		})
		look := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead})
		workers := []part{f.worker(worker.Config{Slots: 4}), f.worker(worker.Config{Slots: 4})}
		coordinators := []part{f.coordinator(coordinator.Config{}), f.coordinator(coordinator.Config{})}
		const sessions = 8
		last := int64(repeats(12, 12))
		var agents sync.WaitGroup
		var restarts, batches atomic.Int64
		for s := range sessions {
			agents.Go(func() {
				for n := 0; restarts.Load() < last; n++ {
					batches.Add(1)
					b := canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), call{"look", through}, call{"pay", fmt.Sprintf(`{"n":"%d-%d"}`, s, n)}, call{"look", through})
					f.submit(b)
					reply, err := f.await(b, 5*time.Minute)
					if err != nil {
						t.Errorf("session %d batch %d: %v", s, n, err)
						return
					}
					f.wantStatuses(reply, "ok ok ok")
				}
			})
		}
		done := make(chan struct{})
		go func() { agents.Wait(); close(done) }()
		for over := false; !over; {
			select {
			case <-done:
				over = true
			case <-time.After(150 * time.Millisecond):
				n := restarts.Add(1)
				i := n % 2
				if n%4 < 2 {
					old := workers[i]
					workers[i] = f.worker(worker.Config{Slots: 4})
					old.stop()
				} else {
					old := coordinators[i]
					coordinators[i] = f.coordinator(coordinator.Config{})
					old.stop()
				}
			}
		}
		paid := map[string]int{}
		for _, r := range l.all() {
			paid[r.input]++
		}
		for input, n := range paid {
			if n != 1 {
				t.Errorf("%s was paid %d times", input, n)
			}
		}
		if len(paid) != int(batches.Load()) {
			t.Errorf("%d payments in %d batches; %d restarts, %d reads", len(paid), batches.Load(), restarts.Load(), look.runs.Load())
		}
		t.Logf("%d batches, %d restarts, %d reads", batches.Load(), restarts.Load(), look.runs.Load())
	})
}
