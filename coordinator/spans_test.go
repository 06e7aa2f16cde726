package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// traces is a tracer that keeps the spans it made.
type traces struct {
	*tracetest.SpanRecorder
	trace.Tracer
}

func newTraces() traces {
	rec := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec), sdktrace.WithIDGenerator(tracing.IDs{}))
	return traces{rec, provider.Tracer(tracing.Scope)}
}

// named returns the ended spans with a name, in the order of their start.
func (r traces) named(name string) (spans []sdktrace.ReadOnlySpan) {
	for _, s := range r.Ended() {
		if s.Name() == name {
			spans = append(spans, s)
		}
	}
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	return spans
}

// allEnded fails the test if a span has not ended.
func (r traces) allEnded(t *testing.T) {
	t.Helper()
	ended := map[trace.SpanID]int{}
	for _, s := range r.Ended() {
		ended[s.SpanContext().SpanID()]++
	}
	for _, s := range r.Started() {
		if n := ended[s.SpanContext().SpanID()]; n != 1 {
			t.Errorf("%q was ended %d times", s.Name(), n)
		}
	}
}

func attr(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, kv := range s.Attributes() {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return ""
}

// links lists the links of a span, with their reasons.
func links(s sdktrace.ReadOnlySpan) (all []string) {
	for _, l := range s.Links() {
		all = append(all, l.Attributes[0].Value.AsString()+" "+l.SpanContext.SpanID().String())
	}
	return all
}

// spanOf returns the span context that a traceparent names.
func spanOf(t *testing.T, parent string) trace.SpanContext {
	t.Helper()
	link, ok := tracing.Link(parent, "")
	if !ok {
		t.Fatalf("%q is no traceparent", parent)
	}
	return link.SpanContext
}

// submitWith stores a batch like submit, with headers.
func (o *office) submitWith(session, id string, calls int, header bus.Header) wire.BatchKey {
	o.t.Helper()
	var list []map[string]any
	for i := range calls {
		list = append(list, map[string]any{"id": fmt.Sprint("c", i), "name": "refund", "input": map[string]any{"amount": i}})
	}
	b := messages.Batch{V: 1, ID: messages.BatchID(id), Session: messages.SessionID(session), Provider: messages.Canonical, Round: 3, Message: rawjson.MustMarshal(map[string]any{"calls": list})}
	key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
	_, err := o.conn.Append(o.t.Context(), o.names.Of(wire.VerbBatch, key), header, rawjson.MustMarshal(b))
	o.must(err)
	return key
}

// helper is a worker that ends every call at once, except the deliveries that shun selects. It
// keeps the headers of its jobs.
type helper struct {
	shun func(job wire.Job, nth int) bool // nth counts the deliveries of the call from 1

	mu      sync.Mutex
	headers map[int][]string // the traceparents of the deliveries, by call; guarded by mu
}

func (o *office) helper(shun func(wire.Job, int) bool) *helper {
	o.t.Helper()
	h := &helper{shun: shun, headers: map[int][]string{}}
	conn := o.connect("worker")
	pool, err := provision.QueueConsumer(conn.Names(), schemas.DefaultPool, 10*time.Second, 0)
	o.must(err)
	o.must(provision.EnsureConsumer(o.t.Context(), conn, pool))
	o.run(conn, func(ctx context.Context) error {
		defer o.stayPresent(ctx, conn)()
		slots := pull.NewSlots(10)
		err := pull.New(conn, pool.Stream, pool.Name).Run(ctx, slots, func(d *pull.Delivery) { h.work(conn, d) })
		_ = slots.Wait(context.Background())
		return err
	})
	return h
}

func (h *helper) work(conn *bus.Conn, d *pull.Delivery) {
	var job wire.Job
	_ = json.Unmarshal(d.Data, &job)
	h.mu.Lock()
	h.headers[job.Index] = append(h.headers[job.Index], d.Header.Get("traceparent")+" "+d.Header.Get("tracestate"))
	nth := len(h.headers[job.Index])
	h.mu.Unlock()
	if h.shun != nil && h.shun(job, nth) {
		_ = d.Term("not now")
		return
	}
	key := wire.KeyOf(string(job.Tenant), job.Session, job.Batch).Call(job.Index)
	result := messages.Result{V: 1, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind, Status: messages.StatusOK, Attempt: 1,
		Outcome: messages.Text("done"), Trail: &messages.Trail{ArgsHash: "for the record only", Span: d.Header.Get("traceparent")}}
	j, ctx := journal.New(conn), context.Background()
	if job.Kind == messages.KindWrite {
		_, _ = j.Write(ctx, key, wire.CallRecord{State: wire.Ended, Nonce: fmt.Sprint(key), Attempt: 1, Result: &result}, 0)
	} else {
		_, _ = j.WriteResult(ctx, key, result)
	}
	_ = conn.Publish(conn.Names().Notify(job.Notify), nil, rawjson.MustMarshal(wire.Notice{Batch: key.BatchKey.String(), Index: key.Index, Result: &result}))
	_ = d.Ack()
}

func (h *helper) came(index int) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.headers[index])
}

const (
	agentTrace = "0af7651916cd43dd8448eb211c80319c"
	agentSpan  = "b7ad6b7169203331"
	agents     = "00-" + agentTrace + "-" + agentSpan + "-01"
)

func TestTheTraceOfABatch(t *testing.T) {
	for _, kind := range []messages.Kind{messages.KindRead, messages.KindWrite} {
		t.Run(string(kind), func(t *testing.T) {
			r := newTraces()
			var h *helper
			inOffice(t, kind, func(t *testing.T, o *office) {
				o.coordinator(Config{Tracer: r.Tracer})
				h = o.helper(nil)
				key := o.submitWith("s", "b", 3, bus.Header{"TraceParent": {agents}, "TRACESTATE": {"vendor=1"}})
				reply := o.reply(key, soon)
				if reply.Results[0].Trail != nil {
					t.Error("the reply holds what is for the record for people")
				}
			})
			r.allEnded(t)
			drives, stages, sends := r.named(tracing.ProcessBatch), r.named(tracing.Stage), r.named(tracing.SendCall)
			perStage := map[messages.Kind]int{messages.KindRead: 3, messages.KindWrite: 1}[kind]
			if len(drives) != 1 || len(stages) != 3/perStage || len(sends) != 3 || len(r.Ended()) != len(drives)+len(stages)+len(sends) {
				t.Fatalf("%d drives, %d stages, %d sends of %d spans", len(drives), len(stages), len(sends), len(r.Ended()))
			}
			drive := drives[0]
			if p := drive.Parent(); p.TraceID().String() != agentTrace || p.SpanID().String() != agentSpan || !p.IsRemote() || drive.SpanKind() != trace.SpanKindConsumer {
				t.Errorf("the drive is a %v of %v", drive.SpanKind(), p)
			}
			for key, want := range map[attribute.Key]string{
				tracing.Batch: "b", tracing.ConversationID: "s", tracing.Tenant: "_", tracing.Provider: "canonical", tracing.Round: "3", tracing.MessagingCount: "3",
				tracing.Stages: fmt.Sprint(len(stages)), tracing.BatchStatus: "completed", tracing.Suspended: "", tracing.Resumed: "", tracing.ErrorType: "",
				tracing.MessagingDestination: "toolfleet.batch.{tenant}.{session}.{batch}", tracing.MessagingSystem: "nats",
			} {
				if got := attr(drive, key); got != want {
					t.Errorf("%s of the drive is %q, want %q", key, got, want)
				}
			}
			if drive.Status().Code != codes.Unset {
				t.Errorf("status %v", drive.Status())
			}
			for i, stage := range stages {
				if stage.Parent().SpanID() != drive.SpanContext().SpanID() || attr(stage, tracing.StageIndex) != fmt.Sprint(i) ||
					attr(stage, tracing.StageCalls) != fmt.Sprint(perStage) || attr(stage, tracing.Concurrent) != fmt.Sprint(kind == messages.KindRead) {
					t.Errorf("stage %d: under %v, %v", i, stage.Parent().SpanID(), stage.Attributes())
				}
				if i > 0 && stage.StartTime().Before(stages[i-1].EndTime()) {
					t.Errorf("stage %d began before the one before it had ended", i)
				}
			}
			for i, send := range sends {
				stage := stages[i/perStage]
				if send.Parent().SpanID() != stage.SpanContext().SpanID() || send.SpanKind() != trace.SpanKindProducer || send.EndTime().After(stage.EndTime()) {
					t.Errorf("send %d is a %v under %v, until %v", i, send.SpanKind(), send.Parent().SpanID(), send.EndTime())
				}
				lane := map[messages.Kind]string{messages.KindRead: "read", messages.KindWrite: "write"}[kind]
				for key, want := range map[attribute.Key]string{
					tracing.CallIndex: fmt.Sprint(i), tracing.ToolName: "refund", tracing.Pool: "default", tracing.CallKind: string(kind), tracing.ToolCallID: fmt.Sprint("c", i),
					tracing.MessagingDestination: "toolfleet." + lane + ".{pool}.{tenant}.{session}.{batch}.{index}",
				} {
					if got := attr(send, key); got != want {
						t.Errorf("%s of send %d is %q, want %q", key, i, got, want)
					}
				}
				want := fmt.Sprintf("00-%s-%s-01 vendor=1", agentTrace, send.SpanContext().SpanID())
				if got := h.came(i); len(got) != 1 || got[0] != want {
					t.Errorf("the job of call %d came with %q, want %q", i, got, want)
				}
			}
		})
	}
}

// The poll publishes a job again: both publications have one span and the same header.
func TestAJobThatIsPublishedAgainIsOneSpan(t *testing.T) {
	r := newTraces()
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		o.coordinator(Config{Tracer: r.Tracer})
		h := o.helper(func(_ wire.Job, nth int) bool { return nth < 4 })
		o.reply(o.submitWith("s", "b", 1, nil), time.Minute)
		came := h.came(0)
		if len(came) != 4 || len(slices.Compact(came)) != 1 || spanOf(t, strings.TrimSpace(came[0])).SpanID() != r.named(tracing.SendCall)[0].SpanContext().SpanID() {
			t.Errorf("came as %q", came)
		}
		if n := len(r.named(tracing.SendCall)); n != 1 {
			t.Errorf("%d sends", n)
		}
	})
	r.allEnded(t)
}

// The span of a stage ends with its last call, even if the batch then waits for something
// else. In this test the reply cannot be stored at first, because its stream is full.
func TestAStageEndsWithItsLastCall(t *testing.T) {
	r := newTraces()
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		o.helper(nil)
		log := o.logs()
		o.coordinator(Config{Tracer: r.Tracer, Provision: provision.Config{MaxBytes: map[string]int64{bus.Replies: 4000}, Erasable: true}})
		full, err := o.conn.Append(t.Context(), o.names.Of(wire.VerbFinal, wire.KeyOf(messages.OneTenant, "s", "other")), nil, make([]byte, 3800))
		o.must(err)
		key := o.submitWith("s", "b", 1, nil)
		time.Sleep(90 * time.Second)
		o.must(o.conn.Delete(t.Context(), o.names.Stream(bus.Replies), full))
		o.reply(key, time.Minute)
		if said := log.lines("storing the reply failed; trying again"); len(said) != 2 {
			t.Errorf("%d lines about it in a minute and a half, want 2: %q", len(said), said)
		}
	})
	r.allEnded(t)
	stage, drive := r.named(tracing.Stage)[0], r.named(tracing.ProcessBatch)[0]
	if took, all := stage.EndTime().Sub(stage.StartTime()), drive.EndTime().Sub(drive.StartTime()); took > soon || all < time.Minute {
		t.Errorf("the stage took %v of %v", took, all)
	}
}

// The agent sends no trace context: all drivers of a batch use one trace, and another batch
// has another trace.
func TestABatchIsOneTraceWhoeverDrivesIt(t *testing.T) {
	r := newTraces()
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		_, stop := o.coordinator(Config{Tracer: r.Tracer, Drain: time.Second})
		gone := make(chan struct{})
		h := o.helper(func(j wire.Job, nth int) bool {
			select {
			case <-gone:
				return false
			default:
				return j.Session == "s"
			}
		})
		key := o.submitWith("s", "b", 1, nil)
		o.until("the job has come", soon, func() bool { return len(h.came(0)) > 0 })
		stop()
		if n := len(r.named(tracing.ProcessBatch)); n != 1 {
			t.Fatalf("%d drives have ended", n)
		}
		close(gone)
		o.coordinator(Config{Tracer: r.Tracer})
		o.reply(key, time.Minute)
		o.reply(o.submitWith("other", "b", 1, nil), time.Minute)
	})
	r.allEnded(t)
	drives := r.named(tracing.ProcessBatch)
	if len(drives) != 3 {
		t.Fatalf("%d drives", len(drives))
	}
	id := func(i int) trace.TraceID { return drives[i].SpanContext().TraceID() }
	if id(0) != id(1) || id(1) == id(2) || drives[1].Parent().IsValid() {
		t.Errorf("traces %v, %v and %v", id(0), id(1), id(2))
	}
	if drives[0].Status().Code != codes.Unset || attr(drives[0], tracing.BatchStatus) != "" || attr(drives[1], tracing.BatchStatus) != "completed" {
		t.Errorf("the drive that was drained: %v, %v", drives[0].Status(), drives[0].Attributes())
	}
}

// A batch waits for a person: there is one span before the wait and one after it, and none
// during it.
func TestTheTraceOfABatchThatRests(t *testing.T) {
	r := newTraces()
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Tracer: r.Tracer})
		o.worker()
		key := o.submitWith("s", "b", 1, bus.Header{"traceparent": {agents}})
		q := o.rests(key.Call(0), c)
		o.until("the drive is ended", soon, func() bool { return len(r.named(tracing.ProcessBatch)) == 1 })
		r.allEnded(t)
		first := r.named(tracing.ProcessBatch)[0]
		if attr(first, tracing.Suspended) != "true" || attr(first, tracing.BatchStatus) != "" || first.Status().Code != codes.Unset || first.EndTime().Sub(first.StartTime()) > soon {
			t.Errorf("the first drive: %v, %v", first.Status(), first.Attributes())
		}
		parked, err := o.journal.Question(t.Context(), key.Call(0))
		o.must(err)
		asked := spanOf(t, parked.Record.Span).SpanID().String()

		time.Sleep(2 * time.Minute)
		const person = "00-11111111111111111111111111111111-2222222222222222-01"
		_, err = o.conn.Request(t.Context(), o.names.OfCall(wire.VerbDecide, key.Call(0)), bus.Header{"traceparent": {person}}, o.decision(q, messages.VerdictApprove, "alice"))
		o.must(err)
		o.reply(key, soon)
		o.until("both drives are ended", soon, func() bool { return len(r.named(tracing.ProcessBatch)) == 2 })
		r.allEnded(t)
		second := r.named(tracing.ProcessBatch)[1]
		if got := links(second); len(got) != 1 || got[0] != tracing.Driven+" "+asked {
			t.Errorf("the second drive is linked to %v, want %s", got, asked)
		}
		if second.Parent().SpanID().String() != agentSpan || attr(second, tracing.Resumed) != "true" || attr(second, tracing.Suspended) != "" || len(r.named(tracing.SendCall)) != 2 {
			t.Errorf("the second drive: under %v, %v; %d sends", second.Parent().SpanID(), second.Attributes(), len(r.named(tracing.SendCall)))
		}
		decide := r.named(tracing.Decide)
		if len(decide) != 1 || decide[0].Parent().SpanID().String() != "2222222222222222" || decide[0].Status().Code != codes.Unset ||
			attr(decide[0], tracing.Verdict) != "approve" || attr(decide[0], tracing.Approval) != q.ID || decide[0].EndTime().Sub(decide[0].StartTime()) > soon {
			t.Fatalf("the decision: %v", decide)
		}
		if got := links(decide[0]); len(got) != 1 || got[0] != tracing.Asked+" "+asked {
			t.Errorf("the decision is linked to %v, want %s", got, asked)
		}
		all, err := o.conn.All(t.Context(), o.names.Stream(bus.Calls), o.names.OfCall(wire.VerbCall, key.Call(0)))
		o.must(err)
		for _, m := range all {
			var record wire.CallRecord
			if o.must(json.Unmarshal(m.Data, &record)); record.Span != parked.Record.Span {
				t.Errorf("the %s record names the attempt %q, want %q", record.State, record.Span, parked.Record.Span)
			}
		}
	})
}

// A coordinator writes a record about a call: the record keeps the span of the attempt. A
// refusal marks the span in which it happened.
func TestTheTraceOfWhatIsRefused(t *testing.T) {
	r := newTraces()
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Tracer: r.Tracer})
		o.worker()
		o.ask = func(q *messages.Approval) { q.Expires = q.Asked.Add(time.Minute) }
		key := o.submitWith("s", "b", 1, nil)
		q := o.rests(key.Call(0), c)
		parked, err := o.journal.Question(t.Context(), key.Call(0))
		o.must(err)
		o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "agent"))
		o.reply(key, 2*time.Minute)
		// The spans end only after the reply.
		o.until("both drives are ended", soon, func() bool { return len(r.named(tracing.ProcessBatch)) == 2 })
		ended, _, err := o.journal.Newest(t.Context(), key.Call(0))
		o.must(err)
		if ended.Record.State != wire.Ended || ended.Record.Span != parked.Record.Span || ended.Record.Span == "" {
			t.Errorf("the %s record names %q, want %q", ended.Record.State, ended.Record.Span, parked.Record.Span)
		}
		for i, body := range []string{`{"v":1,"id":"r0","session":"s","provider":"canonical","message":{"calls":[{"id":"","name":"x","input":{}}]}}`, `{"v":1,"id":"elsewhere","session":"s","provider":"canonical","message":{"calls":[]}}`} {
			refused := wire.KeyOf(messages.OneTenant, "s", messages.BatchID(fmt.Sprint("r", i)))
			before := len(r.named(tracing.ProcessBatch))
			_, err = o.conn.Append(t.Context(), o.names.Of(wire.VerbBatch, refused), nil, []byte(body))
			o.must(err)
			o.until("it is refused", soon, func() bool { return len(r.named(tracing.ProcessBatch)) > before })
			_, found, err := o.journal.Open(t.Context(), refused)
			if err != nil || found {
				t.Errorf("still in the log: %v, %v", found, err)
			}
		}
	})
	r.allEnded(t)
	if d := r.named(tracing.Decide); len(d) != 1 || d[0].Status().Code != codes.Error || attr(d[0], tracing.ErrorType) != "self_approval" {
		t.Errorf("the decision: %v", d)
	}
	var types []string
	for _, drive := range r.named(tracing.ProcessBatch) {
		types = append(types, drive.Status().Code.String()+" "+attr(drive, tracing.ErrorType)+" "+attr(drive, tracing.BatchStatus))
	}
	if want := []string{"Unset  ", "Unset  completed", "Error missing_id refused", "Error subject_mismatch "}; !slices.Equal(types, want) {
		t.Errorf("drives ended as %q, want %q", types, want)
	}
}

// A coordinator without a tracer passes the agent's trace context on, and creates no trace
// context of its own.
func TestTheAgentsContextGoesThroughASilentCoordinator(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		log := o.logs()
		o.coordinator(Config{})
		h := o.helper(nil)
		o.reply(o.submitWith("s", "b", 2, bus.Header{"TraceParent": {agents}, "tracestate": {"vendor=1"}}), soon)
		// The first reply may be there before its log line, so wait for the line.
		o.until("the first is told of", soon, func() bool { return len(log.lines("replied")) == 1 })
		o.reply(o.submitWith("s", "c", 3, nil), soon)
		b := messages.Batch{V: 1, ID: "d", Session: "s", Provider: messages.Canonical, Message: []byte(`{"calls":[{"id":"1","name":"refund","input":{"amount":1}}]}`)}
		_, err := o.conn.Request(t.Context(), o.names.Of(wire.VerbRun, wire.KeyOf(messages.OneTenant, b.Session, b.ID)), bus.Header{"TRACEPARENT": {agents}}, rawjson.MustMarshal(b))
		o.must(err)
		if came := h.came(0); came[len(came)-1] != agents+" " {
			t.Errorf("from the run door a job came with %q", came[len(came)-1])
		}
		for i, want := range []string{agents + " vendor=1", agents + " vendor=1", " "} {
			if got := h.came(i)[0]; got != want {
				t.Errorf("a job came with %q, want %q", got, want)
			}
		}
		o.until("all are told of", soon, func() bool { return len(log.lines("replied")) == 3 })
		for i, want := range []bool{true, false} {
			if got := strings.Contains(log.lines("replied")[i], " trace_id="+agentTrace+" "); got != want {
				t.Errorf("line %d with the trace: %v, want %v", i, got, want)
			}
		}
		c, err := New(o.conn, Config{})
		o.must(err)
		d := c.newRun(nil, journal.Accepted{Header: bus.Header{"traceparent": {agents}}}, nil)
		ctx := d.beginSpans(t.Context())
		synctest.Wait() // so that only our own allocations are counted
		if n := testing.AllocsPerRun(100, func() { d.spans.SendCall(ctx, plan.Call{}, batch.Dispatch{}) }); n != 0 {
			t.Errorf("%v allocations for a job", n)
		}
	})
}

// A call that cannot run has a span, and so has a call that no worker took. A later driver
// makes no second span for them.
func TestTheSpanOfACallThatNobodyRan(t *testing.T) {
	r := newTraces()
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		o.coordinator(Config{Tracer: r.Tracer})
		body := rawjson.MustMarshal(messages.Batch{V: 1, ID: "b", Session: "s", Provider: messages.Canonical, Message: json.RawMessage(
			`{"calls":[{"id":"0","name":"admin_override","input":{}},{"id":"1","name":"` + o.tool.Name + `","input":{}}]}`)})
		key := wire.KeyOf("_", "s", "b")
		if _, err := o.conn.Append(t.Context(), o.names.Of(wire.VerbBatch, key), nil, body); err != nil {
			t.Fatal(err)
		}
		o.reply(key, 2*time.Minute) // no worker takes the other call
	})
	r.allEnded(t)
	var got []string
	for _, s := range r.named(tracing.EndCall) {
		got = append(got, fmt.Sprint(attr(s, tracing.CallIndex), " ", attr(s, tracing.ToolName), " ", attr(s, tracing.ErrorType), " ", s.Status().Code))
	}
	slices.Sort(got)
	if want := []string{"0 _unknown unknown_tool Error", "1 refund queue_timeout Error"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
