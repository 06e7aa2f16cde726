package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// bounces records the notices of workers that handed a job back.
type bounces struct {
	mu   sync.Mutex
	seen []wire.LetGo // guarded by mu
}

// bounces starts to collect these notices; it ends when the fleet is closed.
func (f *fleet) bounces() *bounces {
	f.t.Helper()
	b := &bounces{}
	unsubscribe, err := f.conn.Subscribe(f.conn.Names().Notify("*"), "", func(m bus.Msg) {
		var n wire.Notice
		if json.Unmarshal(m.Data, &n) == nil && n.LetGo != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.seen = append(b.seen, *n.LetGo)
		}
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.stops = append(f.stops, unsubscribe)
	return b
}

// check counts the bounces. It wants each to be offered again within 50 ms and to count as no
// failed attempt.
func (b *bounces) check(t *testing.T) (n int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.seen {
		if l.AfterMS > 50 || l.Attempt != 0 {
			t.Fatalf("bounce %+v of %d: want it offered again within 50 ms, and no failed attempt", l, len(b.seen))
		}
	}
	return len(b.seen)
}

// only starts a worker whose one tool is a read that does nothing.
func (f *fleet) only(name string, cfg worker.Config) part {
	f.t.Helper()
	tools := &tool.Registry{}
	done := tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
	if err := tools.Add(schemas.Tool{Name: name, Kind: messages.KindRead}, done); err != nil {
		f.t.Fatal(err)
	}
	return f.workerWith(tools, cfg)
}

// Two workers of one pool serve different tools, and the one that serves the calls has a tenth of
// the slots. Every call reaches it before its queue timeout.
func TestWorkersOfOnePoolWithDifferentTools(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.only("a", worker.Config{Slots: 1})
		f.only("b", worker.Config{Slots: 10})
		f.coordinator(coordinator.Config{})
		bounced := f.bounces()
		var open []messages.Batch
		for n := range 40 {
			b := canonical(fmt.Sprint("s", n), "b", call{"a", ""})
			f.submit(b)
			open = append(open, b)
		}
		for _, b := range open {
			reply := f.reply(b, 10*time.Minute)
			f.wantStatuses(reply, "ok")
			if attempt := reply.Results[0].Attempt; attempt != 1 {
				t.Errorf("%s ended at attempt %d, want 1: a bounce is none", reply.Session, attempt)
			}
		}
		if bounced.check(t) == 0 {
			t.Error("no call was bounced, so this test shows nothing")
		}
	})
}

// A call that no worker serves is offered again until its queue timeout and then ends as expired.
// It does not spin.
func TestACallThatNoWorkerServes(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		gone := f.only("a", worker.Config{})
		f.only("b", worker.Config{})
		f.coordinator(coordinator.Config{QueueTimeout: 20 * time.Second})
		f.wantStatuses(f.run(canonical("warm", "b", call{"a", ""}, call{"b", ""})), "ok ok")
		gone.stop()
		bounced := f.bounces()
		began := time.Now()
		reply := f.run(canonical("s", "b", call{"a", ""}))
		f.wantStatuses(reply, "expired")
		if r := reply.Results[0]; r.Err.Code != messages.CodeQueueTimeout || r.Attempt != 0 {
			t.Errorf("ended with %s after %d attempts, want queue_timeout after none", r.Err.Code, r.Attempt)
		}
		if took := time.Since(began); took < 20*time.Second || took > 30*time.Second { // simulated
			t.Errorf("ended after %v, want its queue timeout of 20s", took)
		}
		if n := bounced.check(t); n < 100 || n > 600 { // every 35 to 50 ms
			t.Errorf("bounced %d times in 20 s", n)
		}
	})
}
