package coordinator

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// askFor sets how long every question of the workers waits for people.
func (o *office) askFor(wait time.Duration) {
	o.ask = func(q *messages.Approval) { q.Expires = q.Asked.Add(wait) }
}

// A session is suspended because its read waits for a person: a read that comes later starts
// all the same.
func TestAReadBehindARestingSessionStarts(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		o.worker()
		o.askFor(50 * time.Minute)
		o.rests(o.submit("s", "first", 1).Call(0), c)
		second := o.submit("s", "second", 1)
		o.until("the read of the second batch is started", time.Minute, func() bool {
			_, err := o.journal.Question(t.Context(), second.Call(0))
			return err == nil
		})
	})
}

// Two batches of a session wait for people, and the question of the later one is answered
// first: the later batch gets its reply first.
func TestADecisionOnALaterBatch(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		o.askFor(50 * time.Minute)
		first, second := o.submit("s", "first", 1), o.submit("s", "second", 1)
		o.until("both are driven", time.Minute, func() bool { return c.runs.of(first) != nil && c.runs.of(second) != nil })
		o.worker()
		o.rests(first.Call(0), c)
		q := o.rests(second.Call(0), c)
		if a := o.decide(second.Call(0), o.decision(q, messages.VerdictApprove, "alice")); !a.OK {
			t.Fatalf("the decision was refused: %+v", a)
		}
		o.reply(second, time.Minute)
	})
}

// A session is suspended because its first write waits for a person. The second batch, whose
// write waits for the first, is aborted: its reply comes at once.
func TestAbortBehindARestingSession(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		o.askFor(50 * time.Minute)
		o.worker()
		first, second := o.submit("s", "first", 1), o.submit("s", "second", 1)
		o.rests(first.Call(0), c)
		time.Sleep(time.Minute) // simulated: the session is suspended for long
		o.say("s", messages.Control{Abort: []byte(`"second"`)})
		o.reply(second, time.Minute)
	})
}

// A write waits behind one that runs for long. Its abort is stored, and the coordinator that
// stored it dies before it tells the driver. The driver of the session finds the abort by
// itself.
func TestAbortOfABatchThatWaits(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		o.coordinator(Config{Lookahead: 32})
		o.hold = 10 * time.Minute
		o.worker()
		first, second := o.submit("s", "first", 1), o.submit("s", "second", 1)
		if a := o.decide(first.Call(0), o.decision(o.rests(first.Call(0)), messages.VerdictApprove, "alice")); !a.OK {
			t.Fatalf("the decision was refused: %+v", a)
		}
		o.until("the first write runs", time.Minute, func() bool { return o.runs.Load() == 1 })
		time.Sleep(time.Minute) // simulated
		_, err := o.journal.WriteControl(t.Context(), messages.OneTenant, "s", messages.Control{Abort: []byte(`"second"`)})
		o.must(err)
		if reply := o.reply(second, time.Minute); reply.Status != messages.ReplyAborted {
			t.Errorf("the second batch is %s", reply.Status)
		}
	})
}

// A batch waits behind a long question: it ends when its own time is over, although the
// session is suspended.
func TestALaterBatchExpiresOnTime(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32, BatchTTL: time.Hour})
		o.askFor(100 * time.Minute)
		o.worker()
		first, second := o.submit("s", "first", 1), o.submit("s", "second", 1)
		o.rests(first.Call(0), c)
		o.reply(second, time.Hour+time.Minute)
	})
}

// A session run drives the batches b1 and b2. The driver of b1 gives b1 up without a reply,
// and another session run has to drive b1 again: the write of b2 does not start in this
// session run.
func TestNothingStartsBehindABatchThatWasGivenUp(t *testing.T) {
	cfg := Config{}.withDefaults()
	c := &Coordinator{cfg: cfg, log: cfg.Logger, runs: newRuns(cfg.Metrics.Live, cfg.Logger)}
	s := c.newSessionRun(wire.BatchKey{Tenant: "_", Session: "s", Batch: "b1"})
	tools, err := schemas.NewCatalog(schemas.Tool{Name: "write", Kind: messages.KindWrite}, schemas.Tool{Name: "read", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	run := func(id string, seq uint64, names ...string) *batchRun {
		d := c.newRun(s, journal.Accepted{Key: wire.BatchKey{Tenant: "_", Session: "s", Batch: id}, Seq: seq}, nil)
		var calls []messages.ToolCall
		for i, n := range names {
			calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(n), Name: n, Input: []byte("{}")})
		}
		p := plan.New(calls, tools)
		d.machine = batch.New(p, batch.Config{Window: 8, QueueTimeout: time.Hour, Poll: time.Hour, FirstPoll: time.Hour, NotAfter: now.Add(time.Hour)})
		record := wire.PlanRecord{Calls: p.Record()}
		for i, n := range names {
			if n == "read" { // the read has ended
				record.Results = append(record.Results, messages.Result{Index: i, CallID: "read", Tool: "read", Status: messages.StatusOK})
			}
		}
		d.machine.Step(now, batch.Planned{Record: record, Seq: seq})
		s.take(d)
		return d
	}
	b1 := run("b1", 1, "write") // the write of b1 is at a worker
	b2 := run("b2", 2, "read", "write")
	s.step(b1, now, batch.Begin{})
	dispatched := func(effects []batch.Effect) (n int) {
		for _, e := range effects {
			if _, is := e.(batch.Dispatch); is {
				n++
			}
		}
		return n
	}
	if dispatched(s.step(b2, now, batch.Begin{})) > 0 {
		t.Fatal("b2 overtakes")
	}
	s.leave(b1)   // given up without a reply, after an error or at the end of the drain
	for range 2 { // steps that run before the cancellation is noticed
		if dispatched(s.step(b2, now, batch.Tick{})) > 0 {
			t.Error("the write of b2 starts although b1 is not over")
		}
	}
}

// faultyTracer panics when the second batch is first driven. The panic ends that drive.
type faultyTracer struct {
	trace.Tracer
	batches atomic.Int32
}

func (f *faultyTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if name == tracing.ProcessBatch && f.batches.Add(1) == 2 {
		panic("the tracer is broken")
	}
	return f.Tracer.Start(ctx, name, options...)
}

// One batch of three cannot be driven at first: the run of the batch before it goes on, and
// all three are answered.
func TestAnErrorHoldsUpOneBatch(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		tracer := &faultyTracer{Tracer: noop.NewTracerProvider().Tracer("")}
		c, _ := o.coordinator(Config{Lookahead: 32, Tracer: tracer})
		first := o.submit("s", "first", 1)
		o.until("the first is driven", time.Minute, func() bool { return c.runs.of(first) != nil })
		run := c.runs.of(first)
		broken := o.submit("s", "broken", 1)
		o.until("the second has failed", time.Minute, func() bool { return tracer.batches.Load() == 2 })
		last := o.submit("s", "last", 1)
		o.until("the last is driven", time.Minute, func() bool { return c.runs.of(last) != nil })
		time.Sleep(time.Second)
		if c.runs.of(first) != run {
			t.Error("the first was given up too")
		}
		o.worker()
		for _, key := range []wire.BatchKey{first, broken, last} {
			q := o.rests(key.Call(0))
			if a := o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice")); !a.OK {
				t.Fatalf("the decision was refused: %+v", a)
			}
		}
		for _, key := range []wire.BatchKey{first, broken, last} {
			o.reply(key, time.Minute)
		}
	})
}
