package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
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

// Finished batches that are submitted again, several in a row, are answered from their replies and
// run nothing.
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
		time.Sleep(4 * time.Hour) // the claims are deleted (3 x batch_ttl), the replies kept (24 h)
		slow := canonical("s", "slow", call{"nap", `{"ms":20000}`})
		f.submit(slow)
		f.until("nap", func() bool { return naps.Load() == 1 })
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

// Client.Run returns although the coordinator that took its request stops.
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
		f.until("nap", func() bool { return n.Load() == 1 })
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

// The acknowledgement of a lease renewal is lost and the tool ends well: its result is kept.
func TestALostAckOfARenewalLosesNoResult(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"ms":2000}`})
		f.submit(b)
		f.until("pay", func() bool { return n.Load() == 1 })
		j := journal.New(f.conn)
		key := wire.KeyOf("_", "s", "b").Call(0)
		claim, found, err := j.Newest(context.Background(), key)
		if err != nil || !found {
			t.Fatal(found, err)
		}
		// The record of a renewal whose acknowledgement never reached the worker.
		renewed := claim.Record
		renewed.State, renewed.Nonce, renewed.Fence = wire.Renewed, "lost", claim.Seq
		if _, err := j.Write(context.Background(), key, renewed, claim.Seq); err != nil {
			t.Fatal(err)
		}
		reply, err := f.await(b, 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOK {
			t.Errorf("the tool ended well; the result is %s: %v", got.Status, got.Err)
		}
	})
}

// The server is away for a second when a tool ends: the result is not lost.
func TestTheServerIsAwayWhenAToolEnds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"ms":1500}`})
		f.submit(b)
		f.until("pay", func() bool { return n.Load() == 1 })
		time.Sleep(time.Second)
		srv.Stop()
		time.Sleep(time.Second)
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var reply messages.Reply
		var err error
		for range 100 {
			if reply, err = f.await(b, time.Minute); err == nil {
				break
			}
			time.Sleep(time.Second)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOK {
			t.Errorf("the tool ended well; %v after the restart the result is %s: %v", time.Since(began), got.Status, got.Err)
		}
	})
}

// A result with a foreign id on a call's result subject is ignored.
func TestAForeignResultIsNobodys(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n, reads atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &reads)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", ""}, call{"nap", `{"ms":30000}`})
		f.submit(b)
		f.until("nap", func() bool { return reads.Load() == 1 })
		body := rawjson.MustMarshal(messages.Result{V: 1, Index: 1, CallID: "foreign", Tool: "nap", Status: messages.StatusOK, Outcome: messages.Text("forged")})
		if _, err := f.conn.Append(context.Background(), "toolfleet.result._.s.b.1", nil, body); err != nil {
			t.Fatal(err)
		}
		reply, err := f.await(b, 5*time.Minute)
		if err != nil || reply.Status == messages.ReplyRefused || len(reply.Results) != 2 {
			t.Errorf("pay has run; the reply is %s with %d results", reply.Status, len(reply.Results))
		}
	})
}

// A second coordinator does not end a running read whose worker notifies only the first.
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
		f.until("slow", func() bool { return n.Load() == 1 })
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

// A name stands in every record about its call: one that is too large for that costs its call
// alone.
func TestAHugeNameCostsItsCallAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{strings.Repeat("x", 600_000), ""}, call{"pay", ""})
		f.submit(b)
		switch reply, err := f.await(b, 2*time.Hour); {
		case err != nil:
			t.Errorf("a tool name of 600,000 bytes: %v, want a result for each call", err)
		case reply.Results[0].Status != messages.StatusUnknownTool || reply.Results[1].Status != messages.StatusOK:
			t.Errorf("a tool name of 600,000 bytes: %s, and the call behind it is %s; want unknown_tool and ok", reply.Results[0].Status, reply.Results[1].Status)
		}
		next := canonical("s", "next", call{"pay", ""})
		f.submit(next)
		if _, err := f.await(next, time.Hour); err != nil {
			t.Errorf("the lane is stranded: %v", err)
		}
	})
}

// A message with a hostile subject and a large body is dead-lettered and does not block its
// session, even as the session's head.
func TestAHostileHeadIsDeadLettered(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		if _, err := f.conn.Append(context.Background(), "toolfleet.batch._.s.a*b", nil, make([]byte, 900_000)); err != nil {
			t.Fatal(err)
		}
		b := canonical("s", "b", call{"pay", ""})
		f.submit(b)
		if _, err := f.await(b, time.Hour); err != nil {
			t.Errorf("session s is blocked: %v", err)
		}
	})
}

// Progress of 0/0 does not harm the call that reports it.
func TestProgressOfNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			c.Progress(messages.Progress{Fraction: math.NaN()})
			return tool.Text("paid"), nil
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		if got := f.run(canonical("s", "b", call{"pay", ""})).Results[0]; got.Status != messages.StatusOK {
			t.Errorf("%s: %v", got.Status, got.Err)
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

// A worker that took a call over but never started the tool reported "failed" for a call that may
// have been applied.
func TestATakeoverThatIsRefusedKnowsNothing(t *testing.T) {
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
		f.until("make", func() bool { return applied.Load() == 1 })
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

// A call that ends just as its first keep-alive is sent is not delayed by it.
func TestASignOfLifeHoldsNobodyUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		for r := range 20 {
			calls := make([]call, 8)
			for i := range calls {
				calls[i] = call{"nap", fmt.Sprintf(`{"ms":%d}`, 95+r/2)}
			}
			began := time.Now()
			f.run(canonical("s", fmt.Sprint("b", r), calls...))
			if took := time.Since(began); took > time.Second {
				t.Errorf("8 reads of %d ms took %v of simulated time", 95+r/2, took)
			}
		}
	})
}

// Unreadable records are skipped, and a coordinator that takes the batch over continues with the
// rest.
func TestJunkInTheJournal(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		first := f.coordinator(coordinator.Config{Drain: time.Millisecond})
		for _, subject := range []string{"toolfleet.call._.s.b.x", "toolfleet.result._.s.b.0", "toolfleet.result._.s.b.99"} {
			if _, err := f.conn.Append(context.Background(), subject, nil, []byte("junk")); err != nil {
				t.Fatal(err)
			}
		}
		b := canonical("s", "b", call{"pay", `{"ms":5000}`}, call{"pay", ""})
		f.submit(b)
		f.until("pay", func() bool { return n.Load() == 1 })
		f.coordinator(coordinator.Config{})
		first.stop()
		reply, err := f.await(b, 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reply.Results {
			if r.Status != messages.StatusOK {
				t.Errorf("%+v", r)
			}
		}
	})
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

// A batch that is driven because it is next in its session has not been delivered yet. Its first
// delivery starts a second driver, which the worker does not notify. This driver must not take a
// running read for one that no worker claimed.
func TestAFirstDeliveryIsNotAFirstDriver(t *testing.T) {
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
		f.submit(b) // the only slot is taken: it is not delivered
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

// A write that no worker starts comes before a slow write of its session. The slow one waits until
// the first expires in the queue. A worker that gets the first one after that does not run it.
func TestANeverStartedWriteBeforeASlowOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
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

// A restarted server redelivers a delivery at once if it was killed while a worker settled that
// delivery. A worker that still runs the call recognises the redelivered job. Any other worker
// finds the claim of the call.
func TestEarlyRedeliveryAfterAServerKill(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		for range 4 {
			f.worker(worker.Config{Slots: 2})
		}
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		var p published
		for n := range 3 {
			p.publish(f, f.conn, canonical("s", fmt.Sprint("b", n), call{"put", `{"ms":4000}`}, call{"count", `{"ms":100}`}, call{"put", `{"ms":4000}`}))
		}
		for range 4 {
			time.Sleep(3 * time.Second) // simulated
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 3 {
			reply, err := f.await(canonical("s", fmt.Sprint("b", n)), 10*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range reply.Results {
				if r.Status != messages.StatusOK || r.Kind == messages.KindWrite && r.Attempt != 1 {
					t.Errorf("batch %d: %+v", n, r)
				}
			}
		}
		l.inOrder(t, p.log(), 0, 2)
	})
}

// cutter connects to a server and cuts the connection once, right after a write: the server has the
// message, but its answer is lost.
type cutter struct {
	srv  *devserver.Server
	what string
	done atomic.Bool
}

func (c *cutter) InProcessConn() (net.Conn, error) {
	conn, err := c.srv.InProcessConn()
	return &cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	*cutter
}

func (c *cutConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && strings.Contains(string(b), c.what) && c.done.CompareAndSwap(false, true) {
		err = c.Close()
	}
	return n, err
}

// What was stored although its acknowledgement was lost is found again: no write runs twice, and
// none is reported as lost. The cut happens at the publish itself, since creating or reading a
// stream names its subjects too.
func TestALostPubAck(t *testing.T) {
	for name, tt := range map[string]struct {
		what   string
		worker bool // the worker is cut off; else the coordinator
	}{
		"of a claim":       {`"state":"claimed"`, true},
		"of a renewal":     {`"state":"renewed"`, true},
		"of a result":      {`"state":"ended"`, true},
		"of a read result": {"PUB toolfleet.result.", true},
		"of a plan":        {"PUB toolfleet.plan.", false},
		"of a job":         {"PUB toolfleet.write.", false},
		"of a reply":       {"PUB toolfleet.final.", false},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l laneBook
				l.tools(f)
				cut := &cutter{srv: srv, what: tt.what}
				conn, err := bus.Connect(context.Background(), bus.Options{InProcess: cut, Name: "cut", Logger: f.log})
				if err != nil {
					t.Fatal(err)
				}
				if tt.worker {
					w, err := worker.New(conn, f.tools, worker.Config{})
					if err != nil {
						t.Fatal(err)
					}
					f.start(conn, w.Run)
					f.coordinator(coordinator.Config{})
				} else {
					c, err := coordinator.New(conn, coordinator.Config{})
					if err != nil {
						t.Fatal(err)
					}
					f.worker(worker.Config{})
					f.start(conn, c.Run)
					f.until("it is ready", c.Ready)
				}
				b := canonical("s", "b", call{"count", `{"ms":10}`}, call{"put", `{"ms":8000}`}, call{"put", `{"ms":10}`})
				f.submit(b)
				began := time.Now()
				reply, err := f.await(b, 10*time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range reply.Results {
					if r.Status != messages.StatusOK || r.Attempt != 1 {
						t.Errorf("%s: %+v", r.Tool, r)
					}
				}
				// The puts take 8 s. If the delivery was lost too, it comes again after
				// ack_wait, 10 s.
				if took := time.Since(began); took > 25*time.Second {
					t.Errorf("done after %v", took)
				}
				f.until("the connection was cut", cut.done.Load) // a reply may be here before its writer goes on
				l.inOrder(t, map[messages.SessionID][]messages.BatchID{"s": {"b"}}, 1, 2)
			})
		})
	}
}

// Another body under the id of a running batch is not part of that batch: it is refused, and does
// not get the first one's reply.
func TestTheSameIdWithAnotherBodyWhileTheFirstRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		first, other := canonical("s", "b", call{"put", `{"ms":20000}`}), canonical("s", "b", call{"put", `{"ms":1}`})
		f.submit(first)
		f.until("it runs", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.writes) == 1 })
		other.V = messages.Version
		subject := f.conn.Names().Of(wire.VerbBatch, wire.KeyOf(messages.OneTenant, "s", "b"))
		if _, err := f.conn.Append(ctx, subject, nil, rawjson.MustMarshal(other)); !errors.Is(err, bus.ErrExists) {
			t.Errorf("published behind it: %v, want %v", err, bus.ErrExists)
		}
		_, err := f.client.Run(ctx, other)
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) || refusal.Class != messages.ClassBatchConflict {
			t.Errorf("at the door: %v, want a batch_conflict", err)
		}
		if reply := f.run(first); reply.Status != messages.ReplyCompleted || reply.Digest != messages.Digest(encoded(first)) {
			t.Errorf("the first one's reply: %+v", reply)
		}
		l.inOrder(t, map[messages.SessionID][]messages.BatchID{"s": {"b"}}, 0)
	})
}

func encoded(b messages.Batch) []byte {
	b.V = messages.Version
	return rawjson.MustMarshal(b)
}

// Jobs and batches that reappear after their records were deleted run nothing, because each carries
// its own time of expiry.
func TestNothingIsResurrectedAfterRetention(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
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
			l.inOrder(t, map[messages.SessionID][]messages.BatchID{"s": {"ran"}}, 0, 1)
			if f.left(bus.Jobs) != 0 || f.left(bus.Batches) != 0 {
				t.Errorf("%s: %d jobs and %d batches stay", when, f.left(bus.Jobs), f.left(bus.Batches))
			}
		}
		again("while the journal remembers")
		c.stop()
		f.submit(canonical("s", "old", call{"put", `{"ms":1}`}))
		time.Sleep(3 * time.Hour) // simulated: the records are gone
		if n := f.left(bus.Calls); n != 0 {
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

// A call that waited for approval is claimed by the dispatch after the grant. An older job for it,
// from any source, leaves the call alone.
func TestAGrantMeetsTheOldJob(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
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
		// Simulated; longer than the queue timeout, and less than the longest suspension.
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
		// Now the old job meets the grant.
		if _, err := f.conn.Append(ctx, old.Subject, old.Header, old.Data); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // simulated: the worker has seen it, and no poll has come
		if n := l.ran("s"); n != 0 {
			t.Errorf("the old job ran the call behind the grant")
		}
		reply, err := f.await(b, 2*time.Minute)
		if err != nil || reply.Results[0].Status != messages.StatusOK || l.ran("s") != 1 {
			t.Errorf("%+v, %v after %d runs", reply, err, l.ran("s"))
		}
		mu.Lock()
		defer mu.Unlock()
		var job wire.Job
		if err := json.Unmarshal(jobs[len(jobs)-1].Data, &job); err != nil || job.TakeOver != granted || len(jobs) != before+2 {
			t.Errorf("the grant is at %d, the last of %d jobs may be claimed behind %d: %v", granted, len(jobs), job.TakeOver, err)
		}
		if got := attempt.Decide(0, attempt.Entry{Seq: granted, Record: wire.CallRecord{State: wire.Granted}}); got != attempt.LeaveAlone {
			t.Errorf("a job from before the grant: %v", got)
		}
		if got := attempt.Decide(granted, attempt.Entry{Seq: granted, Record: wire.CallRecord{State: wire.Granted}}); got != attempt.TakeOver {
			t.Errorf("the job behind the grant: %v", got)
		}
	})
}

// ran counts the writes of a session.
func (l *laneBook) ran(session messages.SessionID) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.writes {
		if w.session == session {
			n++
		}
	}
	return n
}

// An unreadable record in a call's own journal may mean that the call ran. The call ends as
// unknown, and the session goes on.
func TestAnUnreadableRecordStrandsNobody(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		if _, err := f.conn.Append(context.Background(), "toolfleet.call._.s.head.0", nil, []byte("junk")); err != nil {
			t.Fatal(err)
		}
		head, next := canonical("s", "head", call{"pay", ""}), canonical("s", "next", call{"pay", ""})
		f.submit(head)
		f.submit(next)
		for b, want := range map[*messages.Batch]messages.Status{&head: messages.StatusOutcomeUnknown, &next: messages.StatusOK} {
			reply, err := f.await(*b, 5*time.Minute)
			if err != nil || reply.Results[0].Status != want {
				t.Errorf("batch %s: %+v, %v, want %s", b.ID, reply.Results, err, want)
			}
		}
		if n.Load() != 1 {
			t.Errorf("two writes, of which one was not to be run, ran %d times", n.Load())
		}
	})
}
