package e2e

import (
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

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A batch has hooks that deny, that ask the agent to stop, and that cannot run. What they do
// appears in events while it happens, in the results, and as a summary in the reply.
func TestHooksOfABatch(t *testing.T) {
	t.Parallel()
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	sawAll := everyMessageFits(t, f)
	f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	set, err := hook.NewSet(
		hook.Hook{Name: "guard", Priority: 1, Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			if strings.Contains(string(c.Input), "deny") {
				return hook.Verdict{Opinion: hook.Deny, Reason: "not this one"}, nil
			}
			return hook.Verdict{}, nil
		}},
		hook.Hook{Name: "broken", Priority: 2, Class: hook.Observe, Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			return hook.Verdict{}, errors.New("SECRET")
		}},
		hook.Hook{Name: "close", Priority: 3, After: func(_ context.Context, c hook.Call, _ hook.Done) (hook.Change, error) {
			if c.Index != 2 {
				return hook.Change{}, nil
			}
			return hook.Change{Stop: true, StopReason: "enough", Context: "note", Output: json.RawMessage(`"other"`)}, nil
		}},
	)
	if err != nil {
		t.Fatal(err)
	}
	f.worker(worker.Config{Hooks: set})
	f.coordinator(coordinator.Config{})
	var mu sync.Mutex
	told := map[int][]messages.HookMessage{}
	reply, err := f.client.Run(t.Context(), canonical("s", "b", call{"echo", `{}`}, call{"echo", `{"x":"deny"}`}, call{"echo", `{"n":2}`}, call{"nope", ``}), client.OnEvent(func(e messages.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Type == messages.EventHook {
			told[e.Index] = append(told[e.Index], *e.Hook)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	f.wantStatuses(reply, "ok denied ok unknown_tool")
	broken := messages.HookMessage{Type: messages.HookErrorInExecution, Hook: "broken"}
	denied := messages.HookMessage{Type: messages.HookPermissionDecision, Hook: "guard", Opinion: "deny", Text: "not this one"}
	note := messages.HookMessage{Type: messages.HookAdditionalContext, Hook: "close", Text: "note"}
	stops := messages.HookMessage{Type: messages.HookStoppedContinuation, Hook: "close", Text: "enough"}
	want := map[int][]messages.HookMessage{0: {broken}, 1: {denied}, 2: {broken, note, stops}}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	// The first and third call have the hooks guard, broken and close. The second has guard
	// and close. The call of an unknown tool has none.
	counts := []int{3, 2, 3, 0}
	for i, r := range reply.Results {
		var all messages.Hooks
		if r.Hooks != nil {
			all = *r.Hooks
		}
		if diff := cmp.Diff(want[i], all.Messages); diff != "" || all.Count != counts[i] || all.Opinion != "" || all.Context != nil {
			t.Errorf("call %d: %+v, want %d hooks (-want +got):\n%s", i, r.Hooks, counts[i], diff)
		}
	}
	summary := &messages.StopSummary{StopHookSummary: messages.StopHookSummary{
		HookCount: 8, HookInfos: slices.Concat(want[0], want[1], want[2]), HookErrors: []messages.HookMessage{broken, broken},
		PreventedContinuation: true, StopReason: "enough",
	}}
	if diff := cmp.Diff(summary, reply.HookSummary); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if written := string(rawjson.MustMarshal(reply)); strings.Contains(written, "SECRET") || !strings.Contains(written, `other`) || !strings.Contains(written, "note") {
		t.Errorf("the reply: %s", written)
	}
	sawAll(wire.VerbEvent, wire.VerbReply, wire.VerbResult)
}

// The worker of a write is lost after the hooks changed its input. The next worker runs the
// call with the same input. The hooks do not run again, and their messages reach the model.
func TestHooksRunOnceForAClaimedInput(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		kill := make(chan func(), 1)
		pay := f.recordedTool(schemas.Tool{Name: "pay", OnCrash: messages.OnCrashIdempotent}, func(ctx context.Context, n int) (tool.Output, error) {
			if n == 1 {
				(<-kill)()
				return waitForStop(ctx)
			}
			return tool.Text("paid"), nil
		})
		var asked atomic.Int32
		set := hooks(t, hook.Hook{Name: "round", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			n := asked.Add(1)
			return hook.Verdict{Opinion: hook.Allow, Input: json.RawMessage(fmt.Sprintf(`{"amount":%d}`, n)), Context: fmt.Sprintf("rounded %d", n)}, nil
		}})
		kill <- f.killableWorker(worker.Config{Hooks: set})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"amount":0.5}`})
		f.submit(b)
		f.until("the tool runs", func() bool { return len(pay.all()) == 1 })
		f.workerWith(f.tools, worker.Config{Hooks: set})
		reply := f.reply(b, 5*time.Minute)
		f.wantStatuses(reply, "ok")
		runs := pay.all()
		if len(runs) != 2 || asked.Load() != 1 {
			t.Fatalf("runs %+v, and the hook ran %d times: want two runs and one hook run", runs, asked.Load())
		}
		for _, r := range runs {
			if r.input != `{"amount":1}` || r.key != runs[0].key {
				t.Errorf("run %+v, want the claimed input and one key", r)
			}
		}
		if said := string(reply.Reinjection); !strings.Contains(said, "paid") || !strings.Contains(said, "rounded 1") {
			t.Errorf("the model reads %s", said)
		}
		if h := reply.Results[0].Hooks; h == nil || h.Count != 1 || len(h.Messages) != 2 {
			t.Errorf("hooks of the result: %+v, want those of the first attempt", h)
		}
	})
}

// A worker starts the hooks that keep something running, and closes them at the end. It
// announces the hooks that could not run.
func TestAWorkerStartsAndClosesItsHooks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	var mended atomic.Bool
	stopped := make(chan struct{})
	gate := hook.Hook{Name: "gate", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
		if !mended.Load() {
			return hook.Verdict{}, &hook.Fault{Cause: hook.Unreachable, Err: errors.New("SECRET")}
		}
		return hook.Verdict{}, nil
	}, Keep: []hook.Kept{{Start: func(context.Context) error { return errors.New("SECRET") }, Stop: func() { close(stopped) }}}}
	ready := make(chan struct{})
	w := f.worker(worker.Config{Name: "w", Hooks: hooks(t, gate), Announce: 10 * time.Millisecond, OnReady: func() { close(ready) }})
	<-ready
	f.coordinator(coordinator.Config{})
	announced := func(want ...wire.FailingHook) {
		t.Helper()
		f.until(fmt.Sprintf("the worker announces %v", want), func() bool {
			all := f.presentWorkers()
			return len(all) == 1 && slices.Equal(all[0].Hooks, want)
		})
	}
	announced(wire.FailingHook{Name: "gate", Class: "gate", Why: "it did not start"})
	f.wantStatuses(f.run(canonical("s", "refused", call{"echo", `{}`})), "hook_error")
	announced(wire.FailingHook{Name: "gate", Class: "gate", Why: "it could not be reached"})
	mended.Store(true)
	f.wantStatuses(f.run(canonical("s", "passed", call{"echo", `{}`})), "ok")
	announced()
	w.stop()
	<-stopped
}
