package lane_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/lane"
)

// patience bounds every wait, in simulated time.
const patience = time.Minute

// yard is a server with the queues of one pool, and workers on them. The test plays the
// coordinator.
type yard struct {
	*testing.T
	srv     *devserver.Server
	conn    *bus.Conn
	journal *journal.Journal
	notices chan wire.Notice // what the coordinator gets, except signs of life
	spans   *tracetest.SpanRecorder
	log     lines

	mu     sync.Mutex
	counts map[lane.Count]int // guarded by mu
}

func inYard(t *testing.T, test func(*yard)) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		y := &yard{T: t, srv: srv, notices: make(chan wire.Notice, 100), spans: tracetest.NewSpanRecorder(), counts: map[lane.Count]int{}}
		t.Cleanup(y.nothingLeft)
		y.conn = y.connect()
		if err := provision.Ensure(t.Context(), y.conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		pool, err := provision.QueueConsumer(y.conn.Names(), "default", 10*time.Second, 0)
		if err == nil {
			err = provision.EnsureConsumer(t.Context(), y.conn, pool)
		}
		if err != nil {
			t.Fatal(err)
		}
		y.journal = journal.New(y.conn)
		if _, err := y.conn.Subscribe(y.conn.Names().Notify("co"), "", func(m bus.Msg) {
			var n wire.Notice
			if err := json.Unmarshal(m.Data, &n); err != nil {
				t.Error(err)
			}
			if !n.Running {
				y.notices <- n
			}
		}); err != nil {
			t.Fatal(err)
		}
		test(y)
	}, natstest.Fast)
}

func (y *yard) connect() *bus.Conn {
	y.Helper()
	conn, err := bus.Connect(y.Context(), bus.Options{InProcess: y.srv})
	if err != nil {
		y.Fatal(err)
	}
	y.Cleanup(conn.Close)
	return conn
}

// runs stands for the pipeline: the test's function that runs a call.
type runs func(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim) (messages.Result, error)

// tools is the set of a worker's tools. service says whether calls need a claim, and run runs
// each call.
type tools struct {
	service lane.Service
	run     runs
}

func (t tools) Serves(wire.Job) (lane.Service, bool) { return t.service, true }

func (t tools) Run(ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim, _ func(messages.Event)) (messages.Result, error) {
	return t.run(ctx, job, prior, claim)
}

// worker starts a worker that serves until the test ends or until stop is called.
func (y *yard) worker(name string, claims bool, run runs) (stop func()) {
	y.Helper()
	service := lane.Service{Claims: claims, Attempts: 2, Backoff: func(int) time.Duration { return time.Second }}
	consumer := lane.New(y.connect(), tools{service, run}, lane.Config{
		Worker: name, Drain: time.Second, Tracer: y.tracer(), Count: y.count, Logger: slog.New(slog.NewTextHandler(&y.log, nil)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(y.Context()))
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := consumer.Run(ctx, []lane.Queues{{Pool: "default"}}); err != nil {
			y.Error(err)
		}
	})
	stop = func() { cancel(); ended.Wait() }
	y.Cleanup(stop)
	return stop
}

var key = wire.KeyOf(string(messages.OneTenant), "s", "b").Call(0)

func (y *yard) job(claims bool) wire.Job {
	kind := messages.KindRead
	if claims {
		kind = messages.KindWrite
	}
	now := y.conn.Now(y.Context())
	return wire.Job{
		V: 1, Tenant: messages.OneTenant, Session: "s", Batch: "b", CallID: "c", Tool: "t", ToolDigest: "d", Kind: kind, ConcurrencySafe: !claims,
		Input: json.RawMessage(`{"n":1}`), Notify: "co", QueuedAt: now, NotAfter: now.Add(time.Hour),
	}
}

// plan stores a plan of the batch with one call. If there is a plan already, it stays.
func (y *yard) plan(c wire.PlannedCall) {
	y.Helper()
	if _, err := y.journal.WritePlan(y.Context(), key.BatchKey, wire.PlanRecord{V: 1, Nonce: "n", Calls: []wire.PlannedCall{c}}, 0); err != nil {
		y.Fatal(err)
	}
}

func (y *yard) publish(job wire.Job) {
	y.Helper()
	y.send(y.Context(), job)
}

// send publishes a job within the trace of ctx. For a write, it first stores a plan.
func (y *yard) send(ctx context.Context, job wire.Job) {
	y.Helper()
	if job.Kind == messages.KindWrite {
		y.plan(wire.PlannedCall{Tool: job.Tool, Kind: job.Kind})
	}
	y.offer(ctx, job)
}

// offer publishes a job within the trace of ctx, without a plan.
func (y *yard) offer(ctx context.Context, job wire.Job) {
	y.Helper()
	header := bus.Header{}
	tracing.Inject(ctx, header)
	subject := y.conn.Names().Lane(!job.ConcurrencySafe, "default", key.BatchKey.Call(job.Index))
	if _, err := y.conn.Append(y.Context(), subject, header, rawjson.MustMarshal(job)); err != nil {
		y.Fatal(err)
	}
}

func (y *yard) notice() wire.Notice {
	y.Helper()
	select {
	case n := <-y.notices:
		return n
	case <-time.After(patience):
		y.Fatal("no notice")
		return wire.Notice{}
	}
}

// newest returns the newest record of the call, and how many records the call has.
func (y *yard) newest() (journal.CallEntry, int) {
	y.Helper()
	newest, _, err := y.journal.Newest(y.Context(), key)
	if err != nil {
		y.Fatal(err)
	}
	all, err := y.conn.All(y.Context(), y.conn.Names().Stream(bus.Calls), y.conn.Names().OfCall(wire.VerbCall, key))
	if err != nil {
		y.Fatal(err)
	}
	return newest, len(all)
}

// noJobs waits until no job is queued.
func (y *yard) noJobs() {
	y.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		left, err := y.conn.All(y.Context(), y.conn.Names().Stream(bus.Jobs), ">")
		if err != nil {
			y.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
	}
	y.Fatal("a job is left in the queue")
}

func (y *yard) write(record wire.CallRecord, last uint64) uint64 {
	y.Helper()
	seq, err := y.journal.Write(y.Context(), key, record, last)
	if err != nil {
		y.Fatal(err)
	}
	return seq
}

// question returns the question that the tools of these tests ask. It is about the input
// {"n":2}, which hooks have put in the place of the job's input.
func question(job wire.Job) *call.Ask {
	input := json.RawMessage(`{"n":2}`)
	return &call.Ask{ArgsHash: messages.Digest(input), Hooks: &messages.Hooks{Count: 1, Context: []string{"told"}}, Approval: messages.Approval{
		V: 1, Tenant: job.Tenant, Session: job.Session, Batch: job.Batch, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind, ToolDigest: "d",
		Input: input, ArgsHash: messages.Digest(input), Line: "t n=2", Requester: string(job.Tenant), Rule: "r", Tier: messages.TierHigh, Approvers: 1, Policy: "v1",
	}}
}

func done(job wire.Job, held call.Grant) messages.Result {
	return messages.Result{
		V: 1, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind, Status: messages.StatusOK, Attempt: held.Attempt, Outcome: messages.Text("done"), Started: time.Now(),
	}
}
