package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A call runs when its batch is aborted. The tool is stopped, and the call ends with what is
// known about it. The calls behind it never start.
func TestAbortOfRunningCalls(t *testing.T) {
	for _, row := range []struct {
		name    string
		tool    schemas.Tool
		applied bool
		want    string
		words   []string
	}{
		{"read", schemas.Tool{Kind: messages.KindRead}, false, "aborted", []string{"by ops", "wrong account", "while it ran"}},
		{"once", schemas.Tool{Kind: messages.KindWrite}, false, "outcome_unknown", []string{"by ops", "may or may not"}},
		{"idempotent", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, false, "outcome_unknown", []string{"by ops", "while it ran"}},
		{"checkable, applied", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable}, true, "ok", nil},
		{"checkable, not applied", schemas.Tool{Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable}, false, "aborted", []string{"by ops", "not applied"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				row.tool.Name = "do"
				do := f.gated(row.tool)
				do.applied.Store(row.applied)
				after := f.gated(schemas.Tool{Name: "after", Kind: messages.KindWrite})
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				b := canonical("s", "b", call{"do", ""}, call{"after", through})
				f.submit(b)
				f.atGate(do, 1)
				time.Sleep(time.Second) // its worker reports that the call runs
				f.abort("s", "b")
				reply := f.reply(b, 20*time.Second)
				f.wantStatuses(reply, row.want+" aborted")
				if row.words != nil {
					f.wantWords(reply.Results[0], row.words...)
				}
				f.wantWords(reply.Results[1], "Not run", "by ops", "wrong account")
				if row.tool.Kind == messages.KindRead { // the reply does not wait for a read
					f.until("the run is stopped", func() bool { return do.stopped.Load() == 1 })
				}
				if n := do.stopped.Load(); n != 1 {
					t.Errorf("%d runs were stopped", n)
				}
				if reply.Status != messages.ReplyAborted || after.runs.Load() != 0 {
					t.Errorf("the reply is %s; %d runs were started after the abort", reply.Status, after.runs.Load())
				}
			})
		})
	}
}

// A batch has twelve reads and a write. Six reads run, two wait for a worker, four wait for
// the window, and the write waits for all reads. An abort ends all of them.
func TestAbortReachesCallsThatWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, pay := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{Slots: 6})
		f.coordinator(coordinator.Config{})
		var calls []call
		for range 12 {
			calls = append(calls, call{"look", ""})
		}
		b := canonical("s", "b", append(calls, call{"pay", through})...)
		f.submit(b)
		f.atGate(look, 6)
		f.abort("s", "b")
		reply := f.reply(b, 20*time.Second)
		f.wantStatuses(reply, strings.TrimSuffix(strings.Repeat("aborted ", 13), " "))
		for _, r := range reply.Results {
			f.wantWords(r, "by ops", "wrong account")
		}
		next := canonical("s", "next", call{"pay", through})
		f.submit(next)
		f.wantStatuses(f.reply(next, 20*time.Second), "ok")
		time.Sleep(time.Minute)
		if look.runs.Load() != look.stopped.Load() || pay.runs.Load() != 1 {
			t.Errorf("%d reads were started and %d stopped; %d writes ran, want that of the next batch", look.runs.Load(), look.stopped.Load(), pay.runs.Load())
		}
	})
}

// A batch is aborted while its jobs are in the queue and no worker is there. A worker that
// starts later runs none of the jobs.
func TestAbortWithoutAnyWorker(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, pay := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.gated(schemas.Tool{Name: "pay"})
		w := f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.run(canonical("warm", "b", call{"look", through}))
		w.stop()
		reads, write := canonical("s", "reads", call{"look", ""}, call{"look", ""}), canonical("u", "write", call{"pay", ""})
		f.submit(reads)
		f.submit(write)
		time.Sleep(5 * time.Second)
		f.abort("s", "reads")
		f.abort("u", "")
		f.wantStatuses(f.reply(reads, 10*time.Second), "aborted aborted")
		f.wantStatuses(f.reply(write, 10*time.Second), "aborted")
		left, err := f.conn.All(context.Background(), f.conn.Names().Stream(bus.Jobs), ">")
		if err != nil || len(left) > 0 {
			t.Errorf("%d jobs of aborted calls are left in the queue, err %v", len(left), err)
		}
		f.worker(worker.Config{})
		time.Sleep(time.Minute)
		if look.runs.Load() != 1 || pay.runs.Load() != 0 {
			t.Errorf("a worker that came after the abort started %d reads and %d writes", look.runs.Load()-1, pay.runs.Load())
		}
	})
}

// An abort of a session ends all its batches that are in the log, in order. A later batch
// runs.
func TestAbortOfASession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		const session = "a session. with dots > and * stars"
		var batches []messages.Batch
		for n := range 4 {
			batches = append(batches, canonical(session, fmt.Sprint("b", n), call{"pay", ""}, call{"pay", ""}))
			f.submit(batches[n])
		}
		other := canonical("other", "b0", call{"pay", ""})
		f.submit(other)
		f.atGate(pay, 2)
		f.abort(session, "")
		f.abort(session, "") // a repeated abort changes nothing
		later := canonical(session, "later", call{"pay", through})
		f.submit(later)
		f.wantStatuses(f.reply(batches[0], 20*time.Second), "outcome_unknown aborted")
		for _, b := range batches[1:] {
			reply := f.reply(b, 20*time.Second)
			f.wantStatuses(reply, "aborted aborted")
			f.wantWords(reply.Results[0], "Not run", "by ops", "wrong account")
		}
		f.wantStatuses(f.reply(later, 20*time.Second), "ok")
		close(pay.open)
		f.wantStatuses(f.reply(other, 20*time.Second), "ok")
	})
}

// A batch that waits behind another batch is aborted. The batch that runs is left alone.
func TestAbortOfAWaitingBatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		head, waiting := canonical("s", "head", call{"pay", ""}), canonical("s", "waiting", call{"pay", ""})
		f.submit(head)
		f.submit(waiting)
		f.atGate(pay, 1)
		f.abort("s", "waiting")
		time.Sleep(time.Minute)
		close(pay.open)
		f.wantStatuses(f.reply(head, 20*time.Second), "ok")
		f.wantStatuses(f.reply(waiting, 20*time.Second), "aborted")
		f.abort("s", "head") // the batch has ended: the abort changes nothing
		f.wantStatuses(f.reply(head, 20*time.Second), "ok")
		if pay.runs.Load() != 1 {
			t.Errorf("%d writes ran, want 1", pay.runs.Load())
		}
	})
}

// An abort that names a batch is stored before the batch, and holds for batch_ttl. An abort of
// a whole session covers only the batches that are already in the log.
func TestAbortBeforeItsBatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		look := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead})
		away := f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		away.stop() // the jobs of the batches stay in the queue
		both := []call{{"look", through}, {"pay", through}}
		soon, late, other := canonical("s", "soon", both...), canonical("s", "late", both...), canonical("s", "other", both...)
		elsewhere := canonical("elsewhere", "soon", both...)
		f.abort("s", "soon")
		f.abort("s", "late")
		f.abort("s", "")
		time.Sleep(time.Hour - time.Minute) // batch_ttl is an hour
		f.submit(soon)
		reply := f.reply(soon, 20*time.Second)
		f.wantStatuses(reply, "aborted aborted")
		f.wantWords(reply.Results[0], "ops", "wrong account")
		if n := pay.runs.Load() + look.runs.Load(); reply.Status != messages.ReplyAborted || n != 0 {
			t.Errorf("the batch is %s, and %d of its calls ran", reply.Status, n)
		}
		if jobs, err := inspect.Stream(t.Context(), f.conn, f.conn.Names().Stream(bus.Jobs)); err != nil || jobs.Messages > 0 {
			t.Errorf("%d jobs were published, err %v", jobs.Messages, err)
		}
		f.worker(worker.Config{})
		f.submit(other)
		f.wantStatuses(f.reply(other, 20*time.Second), "ok ok")
		f.submit(elsewhere)
		f.wantStatuses(f.reply(elsewhere, 20*time.Second), "ok ok")
		time.Sleep(2 * time.Minute)
		f.submit(late)
		f.wantStatuses(f.reply(late, 20*time.Second), "ok ok")
		f.submit(soon)
		f.wantStatuses(f.reply(soon, 20*time.Second), "aborted aborted")
	})
}

// A batch is aborted before it comes, and the first read of the session's controls fails: the
// batch does not start before the controls are read.
func TestAbortBeforeItsBatchIsReadLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead})
		f.worker(worker.Config{})
		g := &garblingServer{Server: srv, words: `"last_by_subj":"` + f.conn.Names().OfSession(wire.VerbCtl, messages.OneTenant, "s")}
		g.left.Store(1)
		f.as = func(o *bus.Options) { o.InProcess = g }
		f.coordinator(coordinator.Config{})
		f.abort("s", "b")
		b := canonical("s", "b", call{"look", through})
		f.submit(b)
		f.wantStatuses(f.reply(b, 20*time.Second), "aborted")
		if look.runs.Load() != 0 || g.left.Load() != 0 {
			t.Errorf("%d reads ran; %d looks are still to fail", look.runs.Load(), g.left.Load())
		}
	})
}

// A coordinator is killed after it stored an abort. The next coordinator finds the abort in
// the journal.
func TestAbortOutlivesItsCoordinator(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		kill := f.killableCoordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", ""}, call{"pay", ""})
		f.submit(b)
		f.atGate(pay, 1)
		f.abort("s", "b")
		kill()
		time.Sleep(time.Second) // simulated: the server has seen that its connection is gone
		if _, err := f.client.Abort(context.Background(), "s", "b", byOps); !errors.Is(err, client.ErrNoFleet) {
			t.Errorf("an abort that nobody can store was answered with %v", err)
		}
		f.coordinator(coordinator.Config{})
		f.wantStatuses(f.reply(b, time.Minute), "outcome_unknown aborted")
		if pay.runs.Load() != 1 {
			t.Errorf("%d writes were started, want the one before the abort", pay.runs.Load())
		}
	})
}

// An abort reaches a call that failed and waits for its next attempt. There is no next
// attempt.
func TestAbortInThePauseBeforeARetry(t *testing.T) {
	for _, kind := range []messages.Kind{messages.KindRead, messages.KindWrite} {
		t.Run(string(kind), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var runs atomic.Int32
				promise := schemas.Tool{Name: "flaky", Kind: kind, Retry: schemas.Retry{Attempts: 3, BackoffMS: 60_000, MaxBackoffMS: 60_000}}
				if kind == messages.KindWrite {
					promise.OnCrash = messages.OnCrashIdempotent
				}
				f.tool(promise, func(context.Context, tool.Call) (tool.Output, error) {
					runs.Add(1)
					return tool.Output{}, &messages.Error{Code: "rate_limited", Message: "slow down", Retryable: true}
				})
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				b := canonical("s", "b", call{"flaky", ""})
				f.submit(b)
				f.until("the first attempt has failed", func() bool { return runs.Load() == 1 })
				time.Sleep(5 * time.Second)
				f.abort("s", "b")
				reply := f.reply(b, 10*time.Second)
				f.wantStatuses(reply, "aborted")
				f.wantWords(reply.Results[0], "by ops", "wrong account", "again")
				time.Sleep(5 * time.Minute)
				if runs.Load() != 1 {
					t.Errorf("it ran %d times", runs.Load())
				}
			})
		})
	}
}

// Invalid aborts and steering messages are refused and change nothing.
func TestControlsThatAreRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", ""})
		f.submit(b)
		f.atGate(pay, 1)
		ask := func(subject, body string) messages.ControlAnswer {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			m, err := f.conn.Request(ctx, subject, nil, []byte(body))
			if err != nil {
				t.Fatalf("%s %.60s: %v", subject, body, err)
			}
			wantValid(t, "control-answer", m.Data)
			var answer messages.ControlAnswer
			if err := json.Unmarshal(m.Data, &answer); err != nil {
				t.Fatalf("%.60s: the answer is %s: %v", body, m.Data, err)
			}
			return answer
		}
		for _, body := range []string{
			``, `x`, `[]`, `null`, `"abort"`, `{}`, `{"abort":false}`, `{"abort":""}`, `{"abort":null}`, `{"abort":1}`, `{"abort":{"id":"b"}}`, `{"abort":["b"]}`,
			`{"abort":true,"abort":"b"}`, `{"v":2,"abort":true}`, `{"steer":null}`, `{"steer":"x","when":"now"}`, `{"steer":`, `{"abort":true,"by":7}`,
			`{"abort":"` + strings.Repeat("x", 70_000) + `"}`, `{"abort":true,"reason":"` + strings.Repeat("x", 1001) + `"}`,
			`{"steer":"` + strings.Repeat("x", 256<<10) + `"}`, `{"steer":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, "{\"steer\":\"\xff\"}",
		} {
			if got := ask("toolfleet.control._.s", body); got.OK || got.Error == nil || got.Error.Class != messages.ClassMalformedMessage || got.Error.Message == "" {
				t.Errorf("%.60q was answered with %+v", body, got)
			}
		}
		for _, subject := range []string{"toolfleet.control.*.s", "toolfleet.control._.*", "toolfleet.control._.>", "toolfleet.control._.=short"} {
			if got := ask(subject, `{"abort":true}`); got.OK || got.Error == nil || got.Error.Class != messages.ClassSubjectMismatch {
				t.Errorf("%s was answered with %+v", subject, got)
			}
		}
		time.Sleep(time.Minute)
		close(pay.open)
		f.wantStatuses(f.reply(b, 20*time.Second), "ok")
		stored, err := f.conn.All(context.Background(), f.conn.Names().Stream(bus.Calls), "toolfleet.ctl.>")
		if err != nil || len(stored) > 0 {
			t.Errorf("controls that were refused are stored: %v, err %v", stored, err)
		}
	})
}

// wantValid checks a message against its schema.
func wantValid(t testing.TB, name string, body []byte) {
	t.Helper()
	schema, err := schemas.For(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(body); err != nil {
		t.Errorf("%.200s is not what schema %s says: %v", body, name, err)
	}
}
