package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// fragileWorker starts a worker that loses its connection as soon as it starts the tool or, if
// early is set, in a pre-hook before that. It also serves the fleet's other tools.
func (f *fleet) fragileWorker(promise schemas.Tool, early bool, lost *atomic.Int32) {
	f.t.Helper()
	tools := &tool.Registry{}
	for _, p := range f.tools.Definitions() {
		t, _ := f.tools.Lookup(p.Name)
		if err := tools.Add(p, t.Runner); err != nil {
			f.t.Fatal(err)
		}
	}
	conn := f.connect("brittle worker")
	die := func(ctx context.Context) {
		lost.Add(1)
		go conn.Close()
		<-ctx.Done()
	}
	run := func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		die(ctx)
		return tool.Output{}, ctx.Err()
	}
	probe := func(context.Context, tool.Call) (tool.Probed, error) {
		return tool.Probed{}, fmt.Errorf("no connection")
	}
	if err := tools.Add(promise, tool.NewProber(run, probe)); err != nil {
		f.t.Fatal(err)
	}
	cfg := worker.Config{Logger: f.log, Drain: time.Millisecond}
	if early {
		cfg.Hooks = hooks(f.t, hook.Hook{Name: "die", Match: promise.Name, Budget: time.Hour, Before: func(ctx context.Context, _ hook.Call) (hook.Verdict, error) {
			die(ctx)
			return hook.Verdict{}, ctx.Err()
		}})
	}
	w, err := worker.New(conn, tools, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.start(conn, w.Run)
}

// A call kills every worker that starts it. The call ends after it has killed five of them.
// The other calls of its batch, other batches and other sessions go on. A healthy worker that
// does not serve the poisonous tool hands the job back.
func TestPoison(t *testing.T) {
	for _, row := range []struct {
		name  string
		tool  schemas.Tool
		early bool
		want  string
		lost  int32
	}{
		{"read", schemas.Tool{Kind: messages.KindRead}, false, "error", 5},
		{"idempotent write", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, false, "outcome_unknown", 5},
		{"once write", schemas.Tool{Kind: messages.KindWrite}, false, "outcome_unknown", 1},
		{"write, before it is claimed", schemas.Tool{Kind: messages.KindWrite}, true, "error", 5},
	} {
		for _, bounced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bounced %t", row.name, bounced), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
					f := newFleet(t, srv)
					defer f.close()
					var naps atomic.Int64
					sleepTool(f, "nap", messages.KindRead, time.Minute, "", &naps)
					row.tool.Name, row.tool.TimeoutMS = "bomb", 300_000
					var lost atomic.Int32
					for range 9 {
						f.fragileWorker(row.tool, row.early, &lost)
					}
					f.coordinator(coordinator.Config{})
					if bounced {
						f.worker(worker.Config{Slots: 4})
						f.worker(worker.Config{Slots: 4})
					}
					b := canonical("s", "b", call{"nap", ""}, call{"bomb", ""}, call{"nap", ""})
					f.submit(b)
					for n := range 5 {
						f.wantStatuses(f.run(canonical("other", fmt.Sprint("b", n), call{"nap", ""}, call{"nap", ""})), "ok ok")
					}
					reply := f.reply(b, 20*time.Minute)
					f.wantStatuses(reply, "ok "+row.want+" ok")
					if row.lost == 5 {
						f.wantWords(reply.Results[1], "5 workers")
					}
					if lost.Load() != row.lost {
						t.Errorf("%d workers were lost, want %d", lost.Load(), row.lost)
					}
					if strings.Contains(reply.Results[1].Err.Message, "Not run") {
						t.Errorf("the message is %q", reply.Results[1].Err.Message)
					}
				})
			})
		}
	}
}

// Workers of a pool with a bound share one queue. Workers without the tool hand a job back
// until the worker with the tool is free. Such a job does not count as poison.
func TestAJobThatIsHandedBackIsNoPoison(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var naps atomic.Int64
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &naps)
		bare := &tool.Registry{}
		if err := bare.Add(schemas.Tool{Name: "bare"}, tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text(""), nil })); err != nil {
			t.Fatal(err)
		}
		pay := f.gated(schemas.Tool{Name: "pay"})
		bound := map[string]int{"default": 50}
		f.worker(worker.Config{Slots: 1, Pools: bound})
		f.coordinator(coordinator.Config{QueueTimeout: 10 * time.Minute})
		for range 3 {
			f.workerWith(bare, worker.Config{Pools: bound})
		}
		bounced := f.bounces()
		f.run(canonical("warm", "b", call{"bare", ""}))
		f.submit(canonical("other", "b", call{"nap", `{"ms":30000}`}))
		f.until("the worker runs the read nap", func() bool { return naps.Load() == 1 })
		b := canonical("s", "b", call{"pay", through})
		f.submit(b)
		reply := f.reply(b, 2*time.Minute)
		f.wantStatuses(reply, "ok")
		if pay.runs.Load() != 1 || reply.Results[0].Attempt != 1 || bounced.check(t) < 10 {
			t.Errorf("%d runs, attempt %d, %d bounces", pay.runs.Load(), reply.Results[0].Attempt, bounced.check(t))
		}
	})
}

// Workers restart one after another while they run a call. The call does not count as poison.
func TestRollingRestartsAreNoPoison(t *testing.T) {
	for _, promise := range []schemas.Tool{{Kind: messages.KindRead}, {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}} {
		t.Run(string(promise.Kind), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				promise.Name = "long"
				long := f.gated(promise)
				f.coordinator(coordinator.Config{StartWait: time.Hour})
				b := canonical("s", "b", call{"long", ""})
				f.submit(b)
				for n := range 12 {
					w := f.worker(worker.Config{Drain: time.Second})
					f.atGate(long, n+1)
					w.stop()
				}
				f.worker(worker.Config{})
				f.atGate(long, 13)
				close(long.open)
				f.wantStatuses(f.reply(b, time.Minute), "ok")
			})
		})
	}
}
