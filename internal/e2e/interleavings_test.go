package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

func sleepTool(f *fleet, name string, kind messages.Kind, timeout time.Duration, crash messages.OnCrash, n *atomic.Int64) {
	f.tool(schemas.Tool{Name: name, Kind: kind, TimeoutMS: timeout.Milliseconds(), OnCrash: crash}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		n.Add(1)
		var a struct {
			MS int64 `json:"ms"`
		}
		_ = json.Unmarshal(c.Input, &a)
		select {
		case <-time.After(time.Duration(a.MS) * time.Millisecond):
		case <-ctx.Done():
			return tool.Output{}, ctx.Err()
		}
		return tool.Text("slept"), nil
	})
}

func (f *fleet) await(b messages.Batch, within time.Duration) (messages.Reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return f.client.Await(ctx, b.Session, b.ID)
}

func (f *fleet) submit(b messages.Batch) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := f.client.Submit(ctx, b); err != nil {
		f.t.Fatal(err)
	}
}

// Finished batches are submitted again, several in a row. They are answered from their replies
// and run nothing.
func TestFinishedBatchesSubmittedAgainInARowRunNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var writes, naps atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &writes)
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &naps)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Slots: 1})
		x, y := canonical("s", "x", call{"pay", ""}), canonical("s", "y", call{"pay", ""})
		f.run(x)
		f.run(y)
		time.Sleep(4 * time.Hour) // the claims are deleted (3 x batch_ttl); the replies stay (24 h)
		slow := canonical("s", "slow", call{"nap", `{"ms":20000}`})
		f.submit(slow)
		f.until("the read runs", func() bool { return naps.Load() == 1 })
		f.submit(x)
		f.submit(y)
		if _, err := f.await(slow, time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if writes.Load() != 2 {
			t.Errorf("two once writes were submitted, twice each: ran %d times", writes.Load())
		}
	})
}

// A client's request waits at a coordinator that stops. The request still returns when the
// batch has ended.
func TestRunOutlivesItsCoordinator(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &n)
		f.worker(worker.Config{})
		first := f.coordinator(coordinator.Config{})
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
		defer cancel()
		type end struct {
			err error
			at  time.Duration
		}
		ended := make(chan end, 1)
		began := time.Now()
		go func() {
			_, err := f.client.Run(ctx, canonical("s", "b", call{"nap", `{"ms":20000}`}))
			ended <- end{err, time.Since(began)}
		}()
		f.until("the read runs", func() bool { return n.Load() == 1 })
		f.coordinator(coordinator.Config{})
		first.stop() // a graceful stop
		reply, err := f.await(canonical("s", "b"), time.Minute)
		if err != nil || reply.Status != messages.ReplyCompleted {
			t.Errorf("the batch: %s, err %v", reply.Status, err)
		}
		e := <-ended
		if e.err != nil || e.at > 2*time.Minute {
			t.Errorf("Run came back after %v with %v", e.at, e.err)
		}
	})
}

// A read runs, and its worker notifies only the coordinator that stops. The coordinator that
// takes the batch over lets the read run to its end.
func TestASlowReadIsTakenOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "slow", messages.KindRead, 3*time.Minute, "", &n)
		f.worker(worker.Config{})
		first := f.coordinator(coordinator.Config{Drain: time.Millisecond})
		b := canonical("s", "b", call{"slow", `{"ms":120000}`})
		f.submit(b)
		f.until("the read runs", func() bool { return n.Load() == 1 })
		f.coordinator(coordinator.Config{})
		first.stop()
		reply, err := f.await(b, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOK || n.Load() != 1 {
			t.Errorf("ran %d times; result %s: %v", n.Load(), got.Status, got.Err)
		}
	})
}

func TestTimeouts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"nap", `{"ms":100}`})
		b.TimeoutMS = 18446744073710
		if got := f.run(b).Results[0]; got.Status != messages.StatusOK {
			t.Errorf("timeout of 584 years: %s %v", got.Status, got.Err)
		}
		n.Store(0)
		b = canonical("s", "b2", call{"nap", `{"ms":10000}`})
		b.TimeoutMS = 80
		if got := f.run(b).Results[0]; strings.Contains(got.Err.Message, "Not run") && n.Load() == 1 {
			t.Errorf("it was run: %s %v", got.Status, got.Err)
		}
	})
}

// A worker is lost after a write was applied. The worker that takes the call over denies it
// and never starts the tool. The outcome is reported as unknown, because the write may have
// been applied.
func TestADeniedTakeoverReportsAnUnknownOutcome(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var applied atomic.Int64
		block := make(chan struct{})
		f.tool(schemas.Tool{Name: "make", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, InputSchema: []byte(`{"type":"object"}`)},
			func(ctx context.Context, _ tool.Call) (tool.Output, error) {
				if applied.Add(1) == 1 {
					<-block // the worker is lost after the effect
				}
				return tool.Text("made"), nil
			})
		defer close(block)
		conn := f.connect("lost worker")
		w, err := worker.New(conn, f.tools, worker.Config{Drain: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		f.start(conn, w.Run)
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"make", ""})
		f.submit(b)
		f.until("the write was applied", func() bool { return applied.Load() == 1 })
		go conn.Close()
		time.Sleep(time.Second)
		// The second worker denies the call before its tool starts.
		f.workerWith(f.tools, worker.Config{Rules: denyAll()})
		reply, err := f.await(b, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOutcomeUnknown {
			t.Errorf("applied %d times; the result says %s: %v", applied.Load(), got.Status, got.Err)
		}
	})
}

func denyAll() permission.Rules {
	r, err := permission.New(permission.Config{Default: permission.Deny})
	if err != nil {
		panic(err)
	}
	return r
}

func TestAReplyIsKeptLongerThanItsRecords(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		cfg := coordinator.Config{Provision: provision.Config{ReplyTTL: 30 * time.Minute}}
		if _, err := coordinator.New(f.conn, cfg); err == nil {
			t.Error("a reply_ttl below three times batch_ttl was accepted")
		}
	})
}

// A coordinator drives a batch that JetStream has not delivered yet, because the batch is next
// in its session. The first delivery then starts a second driver, at another coordinator,
// which the worker does not notify. That driver must not start the running read again.
func TestALateFirstDeliveryDoesNotRunAReadAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "slow", messages.KindRead, 3*time.Minute, "", &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Slots: 1})
		before, b := canonical("s", "before", call{"slow", `{"ms":1000}`}), canonical("s", "b", call{"slow", `{"ms":120000}`})
		f.submit(before)
		f.until("the first batch runs", func() bool { return n.Load() == 1 })
		f.submit(b) // the only slot is taken, so b is not delivered
		f.until("the second batch runs", func() bool { return n.Load() == 2 })
		f.coordinator(coordinator.Config{})
		reply, err := f.await(b, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOK || n.Load() != 2 {
			t.Errorf("ran %d times; result %s: %v", n.Load(), got.Status, got.Err)
		}
	})
}

// No worker starts the first write of a session, and a slow write comes behind it. The slow
// write waits until the first expires in the queue. A worker that gets the first write later
// does not run it.
func TestANeverStartedWriteBeforeASlowOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		var never atomic.Int64
		elsewhere := &tool.Registry{}
		if err := elsewhere.Add(schemas.Tool{Name: "never"}, tool.Func(func(context.Context, tool.Call) (tool.Output, error) {
			never.Add(1)
			return tool.Text("too late"), nil
		})); err != nil {
			t.Fatal(err)
		}
		f.worker(worker.Config{})
		w := f.workerWith(elsewhere, worker.Config{})
		f.coordinator(coordinator.Config{StartWait: time.Hour})
		f.coordinator(coordinator.Config{StartWait: time.Hour})
		f.run(canonical("warm", "b", call{"never", ""})) // makes the tool known
		w.stop()
		never.Store(0)
		first := canonical("s", "first", call{"never", ""}, call{"put", `{"ms":5000}`})
		second := canonical("s", "second", call{"put", `{"ms":5000}`}, call{"put", `{"ms":1}`})
		began := time.Now()
		f.submit(first)
		f.submit(second)
		reply, err := f.await(first, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := reply.Results[0], reply.Results[1]; a.Status != messages.StatusExpired || b.Status != messages.StatusOK {
			t.Errorf("the write that nobody takes is %s, the one behind it %s", a.Status, b.Status)
		}
		f.workerWith(elsewhere, worker.Config{})
		if _, err := f.await(second, 10*time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // simulated
		if never.Load() != 0 {
			t.Error("a write that had ended as expired was run")
		}
		if from := l.writes[0].from.Sub(began); from < time.Minute || len(l.writes) != 3 || l.writes[0].batch != "first" || l.writes[1].batch != "second" {
			t.Errorf("%v after the start the writes ran: %+v", from, l.writes)
		}
	})
}

// A batch runs, and another body is sent under its id. The coordinator refuses that body, and
// the first batch ends normally.
func TestTheSameIdWithAnotherBodyWhileTheFirstRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		first, other := canonical("s", "b", call{"put", `{"ms":20000}`}), canonical("s", "b", call{"put", `{"ms":1}`})
		f.submit(first)
		f.until("the first body runs", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.writes) == 1 })
		other.V = messages.Version
		subject := f.conn.Names().Of(wire.VerbBatch, wire.KeyOf(messages.OneTenant, "s", "b"))
		if _, err := f.conn.Append(ctx, subject, nil, rawjson.MustMarshal(other)); !errors.Is(err, bus.ErrExists) {
			t.Errorf("published behind it: %v, want %v", err, bus.ErrExists)
		}
		_, err := f.client.Run(ctx, other)
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) || refusal.Class != messages.ClassBatchConflict {
			t.Errorf("the run request: %v, want a batch_conflict", err)
		}
		if reply := f.run(first); reply.Status != messages.ReplyCompleted || reply.Digest != messages.Digest(encoded(first)) {
			t.Errorf("the first one's reply: %+v", reply)
		}
		l.checkLogOrder(t, map[messages.SessionID][]messages.BatchID{"s": {"b"}}, 0)
	})
}

func encoded(b messages.Batch) []byte {
	b.V = messages.Version
	return rawjson.MustMarshal(b)
}

// Old jobs and batches appear again after their records are deleted. None of them runs,
// because each carries the time at which it expires.
func TestOldMessagesRunNothingAfterRetention(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		var mu sync.Mutex
		var jobs []bus.Msg
		for _, subject := range []string{"toolfleet.write.>", "toolfleet.read.>"} {
			if _, err := f.conn.Subscribe(subject, "", func(m bus.Msg) { mu.Lock(); defer mu.Unlock(); jobs = append(jobs, m) }); err != nil {
				t.Fatal(err)
			}
		}
		f.worker(worker.Config{})
		c := f.coordinator(coordinator.Config{})
		ran := canonical("s", "ran", call{"put", `{"ms":1}`}, call{"put", `{"ms":1}`})
		f.run(ran)
		f.until("both jobs were seen", func() bool { mu.Lock(); defer mu.Unlock(); return len(jobs) == 2 })
		again := func(when string) {
			mu.Lock()
			old := jobs
			mu.Unlock()
			for _, job := range old {
				if _, err := f.conn.Append(context.Background(), job.Subject, job.Header, job.Data); err != nil && !errors.Is(err, bus.ErrExists) {
					t.Fatalf("%s: %v", when, err)
				}
			}
			f.submit(ran)
			time.Sleep(5 * time.Minute)
			l.checkLogOrder(t, map[messages.SessionID][]messages.BatchID{"s": {"ran"}}, 0, 1)
			if f.messageCount(bus.Jobs) != 0 || f.messageCount(bus.Batches) != 0 {
				t.Errorf("%s: %d jobs and %d batches stay", when, f.messageCount(bus.Jobs), f.messageCount(bus.Batches))
			}
		}
		again("while the journal remembers")
		c.stop()
		f.submit(canonical("s", "old", call{"put", `{"ms":1}`}))
		time.Sleep(3 * time.Hour) // simulated: the records are deleted
		if n := f.messageCount(bus.Calls); n != 0 {
			t.Fatalf("%d records of calls are still there", n)
		}
		f.coordinator(coordinator.Config{})
		reply, err := f.await(canonical("s", "old"), time.Minute)
		if err != nil || reply.Results[0].Status != messages.StatusExpired {
			t.Errorf("a batch that was found after its time: %+v, %v", reply, err)
		}
		again("when the journal has forgotten")
	})
}

// A call waited for approval and is granted. Only the job that was published after the grant
// may run the call: an older job of the call runs nothing.
func TestAnOldJobDoesNotRunAGrantedCall(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		var mu sync.Mutex
		var jobs []bus.Msg
		if _, err := f.conn.Subscribe("toolfleet.write.>", "", func(m bus.Msg) { mu.Lock(); defer mu.Unlock(); jobs = append(jobs, m) }); err != nil {
			t.Fatal(err)
		}
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.run(canonical("warm", "b", call{"put", `{"ms":1}`}))
		ctx, j, key := context.Background(), journal.New(f.conn), wire.KeyOf(messages.OneTenant, "s", "b").Call(0)
		parked, err := j.Write(ctx, key, wire.CallRecord{State: wire.Parked, Nonce: "parked", Approval: &messages.Approval{Expires: time.Now().Add(15 * time.Minute)}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := canonical("s", "b", call{"put", `{"ms":1}`})
		f.submit(b)
		// Simulated. This is longer than the queue timeout, and shorter than the longest
		// suspension.
		time.Sleep(4 * time.Minute)
		mu.Lock()
		old := jobs[len(jobs)-1]
		before := len(jobs)
		mu.Unlock()
		if n := l.ran("s"); n != 0 {
			t.Fatalf("a parked call was run %d times", n)
		}
		f.worker(worker.Config{})
		granted, err := j.Write(ctx, key, wire.CallRecord{State: wire.Granted, Nonce: "granted"}, parked)
		if err != nil {
			t.Fatal(err)
		}
		// The old job appears again after the grant.
		if _, err := f.conn.Append(ctx, old.Subject, old.Header, old.Data); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // simulated: the worker has seen the job, and no poll has come
		if n := l.ran("s"); n != 0 {
			t.Errorf("the old job ran the granted call")
		}
		reply, err := f.await(b, 2*time.Minute)
		if err != nil || reply.Results[0].Status != messages.StatusOK || l.ran("s") != 1 {
			t.Errorf("%+v, %v after %d runs", reply, err, l.ran("s"))
		}
		mu.Lock()
		defer mu.Unlock()
		var job wire.Job
		if err := json.Unmarshal(jobs[len(jobs)-1].Data, &job); err != nil || job.TakeOver != granted || len(jobs) != before+2 {
			t.Errorf("the grant is at %d, the last of %d jobs may be claimed after %d: %v", granted, len(jobs), job.TakeOver, err)
		}
		if got := attempt.Decide(0, attempt.Entry{Seq: granted, Record: wire.CallRecord{State: wire.Granted}}); got != attempt.LeaveAlone {
			t.Errorf("a job from before the grant: %v", got)
		}
		if got := attempt.Decide(granted, attempt.Entry{Seq: granted, Record: wire.CallRecord{State: wire.Granted}}); got != attempt.TakeOver {
			t.Errorf("the job after the grant: %v", got)
		}
	})
}

// ran returns the number of writes of a session.
func (l *writeLog) ran(session messages.SessionID) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.writes {
		if w.session == session {
			n++
		}
	}
	return n
}
