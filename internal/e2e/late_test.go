package e2e

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The result of a write is large, and the object store is missing for longer than a lease. The
// worker is alive and keeps its claim: no other worker runs the write again, and its outcome
// is not reported as unknown.
func TestALargeResultThatWaitsKeepsItsClaim(t *testing.T) {
	for _, onCrash := range []messages.OnCrash{messages.OnCrashOnce, messages.OnCrashIdempotent} {
		t.Run(string(onCrash), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				runs := new(atomic.Int32)
				f.tool(schemas.Tool{Name: "export", OnCrash: onCrash}, func(context.Context, tool.Call) (tool.Output, error) {
					runs.Add(1)
					return tool.Text(strings.Repeat("x", 300<<10)), nil
				})
				f.worker(worker.Config{})
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				jetStream(t, f.conn, "STREAM.DELETE.OBJ_TOOLFLEET_OBJECTS", nil)
				back := time.AfterFunc(25*time.Second, func() {
					if err := provision.Ensure(context.Background(), f.conn, provision.Config{}); err != nil {
						t.Error(err)
					}
				})
				defer back.Stop()
				r := f.run(canonical("s", "b", call{"export", ""})).Results[0]
				if n := runs.Load(); n != 1 || r.Status != messages.StatusOK {
					t.Errorf("the write ran %d times and ended %s; want once, ok", n, r.Status)
				}
			})
		})
	}
}

// A worker is told to stop while a result waits for a missing object store. The worker keeps
// trying for as long as its final publishes may take, and the result is not lost.
func TestAResultThatWaitsAtTheEndOfADrain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "export"}, func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Text(strings.Repeat("x", 300<<10)), nil
		})
		w := f.worker(worker.Config{Drain: time.Second})
		f.coordinator(coordinator.Config{})
		jetStream(t, f.conn, "STREAM.DELETE.OBJ_TOOLFLEET_OBJECTS", nil)
		b := canonical("s", "b", call{"export", ""})
		if err := f.client.Submit(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // simulated: the write has ended by then
		back := time.AfterFunc(3*time.Second, func() {
			if err := provision.Ensure(context.Background(), f.conn, provision.Config{}); err != nil {
				t.Error(err)
			}
		})
		defer back.Stop()
		w.stop()
		if r := f.run(b).Results[0]; r.Status != messages.StatusOK {
			t.Errorf("the write was done and ended %s: %v", r.Status, r.Err)
		}
	})
}

// A coordinator drives a batch that another coordinator has finished, and the id is used again
// with another body. The new batch is refused. It is not deleted from the log as if it were
// the first.
func TestAnIdIsUsedAgainWhileALateDriverRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		running, goOn := make(chan struct{}), make(chan struct{})
		f.tool(schemas.Tool{Name: "slow"}, func(context.Context, tool.Call) (tool.Output, error) {
			close(running)
			<-goOn
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		ctx := context.Background()
		refused := make(chan bus.Msg, 1)
		unsubscribe, err := f.conn.Subscribe(f.conn.Names().All(wire.VerbRefused), "", func(m bus.Msg) {
			select {
			case refused <- m:
			default: // the refusal may be published again
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unsubscribe()
		b := canonical("s", "b", call{"slow", ""})
		if err := f.client.Submit(ctx, b); err != nil {
			t.Fatal(err)
		}
		<-running
		log := journal.New(f.conn)
		first, _, err := log.Head(ctx, messages.OneTenant, "s")
		if err == nil {
			_, err = log.WriteReply(ctx, first, messages.Reply{V: messages.Version, Batch: "b", Session: "s", Digest: messages.Digest(first.Body)})
		}
		if err == nil {
			err = log.Remove(ctx, first)
		}
		if err == nil {
			b.Message = []byte(`{"calls":[]}`)
			err = f.client.Submit(ctx, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // simulated: the new batch is delivered
		close(goOn)
		select {
		case <-refused:
		case <-time.After(time.Minute):
			_, open, err := log.Open(ctx, first.Key)
			t.Errorf("the other body was never refused; still in the log: %v (%v)", open, err)
		}
	})
}
