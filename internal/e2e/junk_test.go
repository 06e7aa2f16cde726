package e2e

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A result with another call's id is published on the result subject of a call. The result is
// ignored.
func TestAResultWithAnotherCallIdIsIgnored(t *testing.T) {
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
		f.until("the read runs", func() bool { return reads.Load() == 1 })
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

// The name of a call's tool is in every record about the call. A name that is too large for a
// record costs only its own call.
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
			t.Errorf("the session does not go on: %v", err)
		}
	})
}

// The head of a session is a message with a hostile subject and a large body. The message goes
// to the dead letters, and the session goes on.
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

// A tool reports a progress that is not a number. Its call ends normally.
func TestProgressThatIsNotANumber(t *testing.T) {
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

// A call ends at the moment when its worker first reports that it still runs. The report does
// not delay the end.
func TestAKeepAliveDelaysNoCall(t *testing.T) {
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

// The journal holds unreadable records, and another coordinator takes the batch over. It skips
// those records and finishes the batch.
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
		f.until("the write runs", func() bool { return n.Load() == 1 })
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

// The journal of a call holds an unreadable record, which may mean that the call has run. The
// call ends with an unknown outcome, and the session goes on.
func TestAnUnreadableRecordDoesNotStopItsSession(t *testing.T) {
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
