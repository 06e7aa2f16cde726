package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// hardenHook is a pre-hook that turns "ls x", which may overlap other calls, into "rm x",
// which may not.
var hardenHook = hook.Hook{Name: "harden", Match: "sh", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
	if !strings.Contains(string(c.Input), "ls ") {
		return hook.Verdict{}, nil
	}
	return hook.Verdict{Input: json.RawMessage(strings.Replace(string(c.Input), "ls ", "rm ", 1))}, nil
}}

// addShell registers the tool sh, a write. The command decides whether a call may overlap
// other calls. Each run takes a second.
func (f *fleet) addShell() *toolRecord {
	return f.recordedTool(schemas.Tool{Name: "sh", Kind: messages.KindWrite, ShellCommand: "command"}, func(ctx context.Context, _ int) (tool.Output, error) {
		select {
		case <-time.After(time.Second):
			return tool.Text("ran"), nil
		case <-ctx.Done():
			return tool.Output{}, ctx.Err()
		}
	})
}

func sh(command string) call { return call{"sh", `{"command":"` + command + `"}`} }

// overlapping returns the indexes of the calls that ran at the same time as call i.
func overlapping(r messages.Reply, i int) (others []int) {
	end := func(x messages.Result) time.Time {
		return x.Started.Add(time.Duration(x.DurationMS * float64(time.Millisecond)))
	}
	for j, other := range r.Results {
		if j != i && r.Results[i].Started.Before(end(other)) && other.Started.Before(end(r.Results[i])) {
			others = append(others, j)
		}
	}
	return others
}

func commands(l *toolRecord) (all []string) {
	for _, r := range l.all() {
		var in struct {
			Command string `json:"command"`
		}
		_ = json.Unmarshal([]byte(r.input), &in)
		all = append(all, in.Command)
	}
	return all
}

// A hook changes two calls in the middle of a stage so that they must run alone. They run one
// after the other, in the order of the calls, after the rest of their stage and before the
// next stage.
func TestHandedBackCallsRunAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, l := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.addShell()
		run := l.do
		l.do = func(ctx context.Context, n int) (tool.Output, error) {
			plans, err := journal.New(f.conn).Plans(ctx, wire.KeyOf("_", "s", "b"))
			if err != nil || len(plans) == 0 {
				t.Errorf("run %d started with %d plan records, err %v", n, len(plans), err)
			}
			recorded := 0
			for _, p := range plans {
				recorded += len(p.Record.Results)
			}
			if recorded < 3 {
				t.Errorf("run %d started while %d of 3 reads were recorded", n, recorded)
			}
			return run(ctx, n)
		}
		for range 2 {
			f.worker(worker.Config{Hooks: hooks(t, hardenHook)})
		}
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"look", ""}, sh("ls one"), call{"look", ""}, sh("ls two"), call{"look", ""}, call{"sh", `{"command":"touch three"}`}, call{"look", through})
		f.submit(b)
		f.atGate(look, 3)
		time.Sleep(20 * time.Second)
		if got := l.all(); len(got) > 0 {
			t.Errorf("%d strict calls started beside the reads of their stage", len(got))
		}
		close(look.open)
		reply := f.reply(b, time.Minute)
		f.wantStatuses(reply, "ok ok ok ok ok ok ok")
		for _, i := range []int{1, 3, 5} {
			if others := overlapping(reply, i); len(others) > 0 {
				t.Errorf("call %d ran beside %v", i, others)
			}
		}
		if diff := cmp.Diff([]string{"rm one", "rm two", "touch three"}, commands(l)); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
	})
}

// A coordinator dies after a call is handed back and before its stage ends, and an old job of
// the call appears in the queue again. The old job does not run, and the call runs alone.
func TestAHandBackOutlivesItsCoordinator(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, l := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.addShell()
		w := f.worker(worker.Config{Slots: 1, Hooks: hooks(t, hardenHook)}) // takes the first call
		die := f.killableCoordinator(coordinator.Config{})
		b := canonical("s", "b", call{"look", ""}, sh("ls one"), call{"look", ""})
		f.submit(b)
		f.atGate(look, 1)
		// queued returns the call's job from before the hand-back. The test publishes that job
		// again later.
		queued := func() (bus.Msg, error) {
			return f.conn.First(context.Background(), f.conn.Names().Stream(bus.Jobs), "toolfleet.read.*._.s.b.1")
		}
		var job bus.Msg
		f.until("the job is queued", func() bool {
			var err error
			job, err = queued()
			return err == nil
		})
		f.worker(worker.Config{Hooks: hooks(t, hardenHook)})
		key := wire.KeyOf("_", "s", "b").Call(1)
		f.until("the call is handed back", func() bool {
			_, err := f.conn.Last(context.Background(), f.conn.Names().Stream(bus.Calls), f.conn.Names().OfCall(wire.VerbHand, key))
			return err == nil
		})
		die()
		stale := func() {
			f.until("the job has left the queue", func() bool { _, err := queued(); return errors.Is(err, bus.ErrNotFound) })
			if _, err := f.conn.Append(context.Background(), job.Subject, nil, job.Data); err != nil {
				t.Error(err)
			}
		}
		stale()
		f.coordinator(coordinator.Config{})
		time.Sleep(20 * time.Second)
		if n := len(l.all()); n > 0 {
			t.Errorf("it ran %d times beside the reads of its stage", n)
		}
		close(look.open)
		f.hasRun(l, 1)
		stale()
		reply := f.reply(b, time.Minute)
		f.wantStatuses(reply, "ok ok ok")
		stale()
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"rm one"}, commands(l)); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
		w.stop()
	})
}

// A call was handed back and waits for its turn. An abort ends the call before it runs.
func TestAbortOfAHandedBackCall(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, l := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.addShell()
		f.worker(worker.Config{Hooks: hooks(t, hardenHook)})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", sh("ls one"), call{"look", ""}, sh("ls two"))
		f.submit(b)
		f.atGate(look, 1)
		time.Sleep(5 * time.Second)
		f.abort("s", "b")
		reply := f.reply(b, 20*time.Second)
		f.wantStatuses(reply, "aborted aborted aborted")
		f.wantWords(reply.Results[0], "Not run: ", "by ops")
		if n := len(l.all()); n > 0 {
			t.Errorf("%d of them ran", n)
		}
	})
}
