package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// schemaOf names the schema of the messages under each verb.
var schemaOf = map[wire.Verb]string{
	wire.VerbBatch: "batch", wire.VerbRun: "batch", wire.VerbReply: "reply", wire.VerbFinal: "reply",
	wire.VerbRefused: "reply", wire.VerbEvent: "event", wire.VerbRead: "job", wire.VerbWrite: "job",
	wire.VerbCall: "call-record", wire.VerbPlan: "plan-record", wire.VerbResult: "result",
	wire.VerbNotify: "notice", wire.VerbGet: "get", wire.VerbControl: "control", wire.VerbCtl: "control-record",
	wire.VerbStop: "stop", wire.VerbQueue: "queue-request", wire.VerbHand: "hand-back", wire.VerbAudit: "audit-record", auditEnded: "audit-lines",
}

// auditEnded stands for messages with several audit lines, which have other subjects than
// single lines.
const auditEnded wire.Verb = "audit.ended"

// A fleet answers batches in every dialect. Every message that is published is valid by its
// schema.
func TestEveryMessageFitsItsSchema(t *testing.T) {
	t.Parallel()
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	sawAll := everyMessageFits(t, f)
	for _, p := range messages.Providers {
		calls := []call{{"echo", `{"n":1}`}, {"count", ""}, {"nope", ""}, {"count", ""}, {"count", "[]"}, {"echo", ""}}
		if p != messages.Gemini { // its answers must repeat the name
			calls = append(calls, call{"", ""})
		}
		f.run(batchIn(p, "s", "mixed "+string(p), calls...))
	}
	conflict := batchIn(messages.Canonical, "s", "mixed canonical", call{"echo", ""})
	// While the first batch is in the log, the run handler refuses another body itself, and no
	// refusal is published.
	f.awaitGone(conflict)
	if _, err := f.client.Run(t.Context(), conflict); err == nil {
		t.Error("another body under an id that was used was not refused")
	}
	if _, err := f.client.Run(t.Context(), messages.Batch{ID: "bad", Session: "s", Provider: messages.Gemini, Message: json.RawMessage(`{}`)}); err == nil {
		t.Error("a message of no provider's shape was not refused")
	}
	if _, err := f.client.Get(t.Context(), "s", "mixed gemini", client.FullResults()); err != nil {
		t.Error(err)
	}
	sawAll(wire.VerbBatch, wire.VerbRun, wire.VerbReply, wire.VerbRefused, wire.VerbEvent, wire.VerbRead,
		wire.VerbWrite, wire.VerbCall, wire.VerbPlan, wire.VerbResult, wire.VerbNotify, wire.VerbFinal)
}

// Messages about aborts, steering, retries, and calls that are handed back are valid by their
// schemas.
func TestEveryRareMessageFitsItsSchema(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	var hanging atomic.Bool
	f.tool(schemas.Tool{Name: "hang", Kind: messages.KindRead, TimeoutMS: 60_000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		hanging.Store(true)
		<-ctx.Done()
		return tool.Output{}, context.Cause(ctx)
	})
	f.tool(schemas.Tool{Name: "flaky", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, Retry: schemas.Retry{Attempts: 2, BackoffMS: 1}}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		if c.Attempt == 1 {
			return tool.Output{}, &messages.Error{Message: "busy", Retryable: true}
		}
		return tool.Text("done"), nil
	})
	f.tool(schemas.Tool{Name: "sh", Kind: messages.KindWrite, ShellCommand: "command", InputSchema: []byte(`{"type":"object"}`)}, func(context.Context, tool.Call) (tool.Output, error) {
		return tool.Text("ran"), nil
	})
	rewrite := hook.Hook{Name: "rewrite", Match: "sh", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
		return hook.Verdict{Input: json.RawMessage(`{"command":"rm x"}`)}, nil
	}}
	hooks, err := hook.NewSet(rewrite)
	if err != nil {
		t.Fatal(err)
	}
	sawAll := everyMessageFits(t, f)
	f.worker(worker.Config{Hooks: hooks})
	f.coordinator(coordinator.Config{})
	hung := canonical("s", "hung", call{"hang", ""}, call{"flaky", ""})
	f.submit(hung)
	f.until("the read runs", hanging.Load)
	if _, err := f.client.Steer(t.Context(), hung.Session, json.RawMessage(`{"role":"user","content":"hurry"}`), messages.SteerAfterBatch, client.Reason{By: "the user"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.Abort(t.Context(), hung.Session, hung.ID, client.Reason{By: "the user", Text: "too slow"}); err != nil {
		t.Fatal(err)
	}
	reply, err := f.client.Await(t.Context(), hung.Session, hung.ID)
	if err != nil || reply.Status != messages.ReplyAborted || string(reply.Steering) != `[{"role":"user","content":"hurry"}]` {
		t.Errorf("the aborted batch: %s, steering %s, %v", reply.Status, reply.Steering, err)
	}
	for _, r := range f.run(canonical("s", "rare", call{"flaky", ""}, call{"sh", `{"command":"ls"}`})).Results {
		if r.Status != messages.StatusOK {
			t.Errorf("%+v", r)
		}
	}
	sawAll(wire.VerbControl, wire.VerbCtl, wire.VerbStop, wire.VerbHand, auditEnded)
}

// everyMessageFits checks every message that is published from now on against its schema.
// sawAll waits until messages of all the given verbs were seen.
func everyMessageFits(t *testing.T, f *fleet) (sawAll func(...wire.Verb)) {
	t.Helper()
	watcher := f.connect("watcher")
	t.Cleanup(watcher.Close)
	var mu sync.Mutex
	seen := map[wire.Verb]int{}
	_, err := watcher.Subscribe("toolfleet.>", "", func(m bus.Msg) {
		mu.Lock()
		defer mu.Unlock()
		verb := wire.Verb(strings.Split(m.Subject, ".")[1])
		if verb == wire.VerbAudit && (strings.HasSuffix(m.Subject, ".lines") || strings.HasSuffix(m.Subject, ".aside") || strings.HasSuffix(m.Subject, ".question")) {
			verb = auditEnded
		}
		seen[verb]++
		name, known := schemaOf[verb]
		if !known {
			t.Errorf("no schema is known for messages on %s", m.Subject)
			return
		}
		if len(m.Data) == 0 && verb == wire.VerbGet {
			return
		}
		schema, err := schemas.For(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if err := schema.Validate(m.Data); err != nil {
			t.Errorf("%s does not fit %s.json: %v\n%s", m.Subject, name, err, m.Data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return func(verbs ...wire.Verb) {
		t.Helper()
		for _, verb := range verbs {
			f.until("a "+string(verb)+" message was seen", func() bool { mu.Lock(); defer mu.Unlock(); return seen[verb] > 0 })
		}
	}
}

// Sessions and tenants choose their ids freely. The same ids in another session or tenant mean
// another batch.
func TestTheSameIdsElsewhere(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		startBounded(f, provision.Config{}, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, where := range []string{"_.s", "_.other", "tenant.s", "tenant.other"} {
			_, session, _ := strings.Cut(where, ".")
			b := encoded(canonical(session, "b", call{"echo", fmt.Sprintf(`{"from":%q}`, where)}, call{"put", ""}))
			reply, err := f.conn.Request(ctx, "toolfleet.run."+where+".b", nil, b)
			if err != nil || !strings.Contains(string(reply.Data), `{"from":"`+where+`"}`) {
				t.Errorf("%s: %s, %v", where, reply.Data, err)
			}
		}
	})
}

// A later version adds fields to a batch and a job. The fleet ignores those fields.
func TestFieldsOfALaterVersion(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := startBounded(f, provision.Config{}, nil)
		f.stops[0]() // the worker leaves
		f.append("s.b", []byte(`{"v":1,"id":"b","session":"s","provider":"canonical","later":{"n":1},"message":{"calls":[{"id":"c0","name":"put","input":{}}]}}`))
		f.until("the job is in the queue", func() bool { return f.messageCount(bus.Jobs) == 1 })
		ctx := context.Background()
		job, err := f.conn.First(ctx, f.conn.Names().Stream(bus.Jobs), ">")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.conn.Delete(ctx, f.conn.Names().Stream(bus.Jobs), job.Seq); err != nil {
			t.Fatal(err)
		}
		if _, err := f.conn.Append(ctx, job.Subject, job.Header, bytes.Replace(job.Data, []byte(`{`), []byte(`{"later":{"n":1},`), 1)); err != nil {
			t.Fatal(err)
		}
		f.worker(worker.Config{})
		f.wantStatuses(f.reply(canonical("s", "b"), time.Minute), "ok")
		if runs.Load() != 1 {
			t.Errorf("the write ran %d times", runs.Load())
		}
	})
}
