package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The plan of a batch is damaged while one of its writes runs, and its coordinator is
// replaced. The new coordinator cannot continue the batch. It waits for the write, ends the
// other calls and answers each call. The next write of the session starts after that.
func TestABatchThatCannotBeDrivenOnIsClosedFirst(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		running, goOn := make(chan struct{}), make(chan struct{})
		var inside, overlaps, quick atomic.Int32
		alone := func(do func()) {
			if inside.Add(1) > 1 {
				overlaps.Add(1)
			}
			do()
			inside.Add(-1)
		}
		f.tool(schemas.Tool{Name: "slow"}, func(context.Context, tool.Call) (tool.Output, error) {
			alone(func() { close(running); <-goOn })
			return tool.Text("done"), nil
		})
		f.tool(schemas.Tool{Name: "quick"}, func(context.Context, tool.Call) (tool.Output, error) {
			alone(func() { quick.Add(1) })
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{})
		old := f.coordinator(coordinator.Config{Drain: time.Millisecond})
		ctx := context.Background()
		first, second := canonical("s", "first", call{"slow", ""}, call{"quick", ""}), canonical("s", "second", call{"quick", ""})
		for _, b := range []messages.Batch{first, second} {
			if err := f.client.Submit(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		<-running
		old.stop()
		plan := f.conn.Names().Of(wire.VerbPlan, wire.KeyOf(messages.OneTenant, "s", "first"))
		if _, err := f.conn.Append(ctx, plan, nil, []byte("damaged")); err != nil {
			t.Fatal(err)
		}
		f.coordinator(coordinator.Config{})
		time.Sleep(25 * time.Second) // simulated: less than the tool may take, more than a lease
		if n := quick.Load(); n != 0 {
			t.Errorf("%d writes ran beside the slow one", n)
		}
		close(goOn)
		reply := f.run(first)
		if reply.Status != messages.ReplyCompleted || len(reply.Results) != 2 {
			t.Fatalf("the reply is %s with %d results: %v", reply.Status, len(reply.Results), reply.Error)
		}
		if r := reply.Results[0]; r.Status != messages.StatusOK {
			t.Errorf("the write that ran to its end is %s: %v", r.Status, r.Err)
		}
		if r := reply.Results[1]; r.Status != messages.StatusError || r.Err.Code != messages.CodeInternal {
			t.Errorf("the write that never started is %s: %v", r.Status, r.Err)
		}
		if r := f.run(second).Results[0]; r.Status != messages.StatusOK {
			t.Errorf("the next write of the session is %s: %v", r.Status, r.Err)
		}
		if overlaps.Load() > 0 || quick.Load() != 1 {
			t.Errorf("%d writes overlapped, quick ran %d times; want 0 and 1", overlaps.Load(), quick.Load())
		}
	})
}

// panickingTracer is a tracer that panics when its coordinator publishes its second job. The
// panic stands for a bug in a driver.
type panickingTracer struct {
	noop.Tracer
	jobs *atomic.Int32
}

func (b panickingTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if name == tracing.SendCall && b.jobs.Add(1) > 1 {
		panic("a bug")
	}
	ctx, _ = b.Tracer.Start(ctx, name, options...)
	return ctx, recordingSpan{}
}

// recordingSpan is a span that says that it records, so that child spans are started. It keeps
// nothing.
type recordingSpan struct{ noop.Span }

func (recordingSpan) IsRecording() bool { return true }

// A driver panics while a write of its batch runs. The write ends normally, and every call is
// answered.
func TestADriverThatPanicsClosesItsBatchFirst(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var runs atomic.Int32
		f.tool(schemas.Tool{Name: "slow"}, func(context.Context, tool.Call) (tool.Output, error) {
			runs.Add(1)
			// Simulated: longer than a lease, and than the poll that publishes its job again.
			time.Sleep(15 * time.Second)
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Tracer: panickingTracer{jobs: new(atomic.Int32)}})
		reply := f.run(canonical("s", "b", call{"slow", ""}, call{"slow", ""}))
		if reply.Status != messages.ReplyCompleted || len(reply.Results) != 2 || runs.Load() != 1 {
			t.Fatalf("the reply is %s with %d results (%v), %d runs; want completed, 2 and 1", reply.Status, len(reply.Results), reply.Error, runs.Load())
		}
		if r := reply.Results[0]; r.Status != messages.StatusOK {
			t.Errorf("the write that ran to its end is %s: %v", r.Status, r.Err)
		}
		if r := reply.Results[1]; r.Status != messages.StatusError || r.Err.Code != messages.CodeInternal {
			t.Errorf("the write that never started is %s: %v", r.Status, r.Err)
		}
	})
}

// The reply of the first batch is stored, but its audit lines are not, because the audit log
// is full. With a lookahead of 1, the broker meanwhile delivers the next batch of the session
// again and again: that batch starts nothing before the last event of the first batch.
func TestEventsOfABatchComeBeforeTheNextWhileItsAuditLinesWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "quick"}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
		f.worker(worker.Config{})
		cfg, freeSpace := fullAuditLog(f)
		cfg.Lookahead = 1
		f.coordinator(cfg)
		var mu sync.Mutex
		var heard []string // guarded by mu
		unsubscribe, err := f.conn.Subscribe(f.conn.Names().All(wire.VerbEvent), "", func(m bus.Msg) {
			var e messages.Event
			if err := json.Unmarshal(m.Data, &e); err == nil && (e.Type == messages.EventStart || e.Type == messages.EventReply) {
				mu.Lock()
				heard = append(heard, string(e.Batch)+" "+string(e.Type))
				mu.Unlock()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unsubscribe()
		one, two := canonical("s", "one", call{"quick", ""}), canonical("s", "two", call{"quick", ""})
		f.submit(one)
		f.submit(two)
		time.Sleep(33 * time.Second) // simulated: the second batch is delivered many times
		freeSpace()
		f.awaitGone(one)
		f.awaitGone(two)
		mu.Lock()
		defer mu.Unlock()
		if got, want := strings.Join(heard, ", "), "one start, one reply, two start, two reply"; got != want {
			t.Errorf("the subscriber got %s; want %s", got, want)
		}
	})
}
