package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// bounces collects the notices of workers that let a job go.
type bounces struct {
	mu   sync.Mutex
	seen []wire.LetGo // guarded by mu
}

// Coordinators use the same subjects to tell each other which batches they let go. Their
// notices name no queue.
func (f *fleet) bounces() *bounces {
	f.t.Helper()
	b := &bounces{}
	unsubscribe, err := f.conn.Subscribe(f.conn.Names().Notify("*"), "", func(m bus.Msg) {
		var n wire.Notice
		if json.Unmarshal(m.Data, &n) == nil && n.LetGo != nil && n.LetGo.Queue != "" {
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

// check returns the number of collected notices. Each must say that the job is offered again
// within 50 ms and that no attempt failed.
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

// oneToolWorker starts a worker with one tool, a read that does nothing.
func (f *fleet) oneToolWorker(name string, cfg worker.Config) part {
	f.t.Helper()
	tools := &tool.Registry{}
	done := tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
	if err := tools.Add(schemas.Tool{Name: name, Kind: messages.KindRead}, done); err != nil {
		f.t.Fatal(err)
	}
	return f.workerWith(tools, cfg)
}

// announce announces a worker that does not exist. gone removes the announcement.
func (f *fleet) announce(w wire.Presence) (gone func()) {
	f.t.Helper()
	ctx := context.Background()
	bucket, err := f.conn.Bucket(ctx, f.conn.Names().Stream(bus.BucketWorkers))
	if err == nil {
		err = bucket.Put(ctx, w.Worker, rawjson.MustMarshal(w))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return func() {
		if err := bucket.Delete(ctx, w.Worker); err != nil {
			f.t.Error(err)
		}
	}
}

// settlements counts the settled deliveries of jobs by the queue that they came from.
type settlements struct {
	mu sync.Mutex
	by map[string]int // guarded by mu
}

func (f *fleet) settlements() *settlements {
	f.t.Helper()
	s := &settlements{by: map[string]int{}}
	unsubscribe, err := f.conn.Subscribe("$JS.ACK."+f.conn.Names().Stream(bus.Jobs)+".>", "", func(m bus.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if string(m.Data) != "+WPI" {
			s.by[strings.Split(m.Subject, ".")[3]]++
		}
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.stops = append(f.stops, unsubscribe)
	return s
}

func (s *settlements) all() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, settled := range s.by {
		n += settled
	}
	return n
}

// Two workers of one pool serve different tools. The worker that serves the calls has one
// slot, and the other has ten. Each job is delivered once, to the worker that has its tool.
func TestWorkersOfOnePoolWithDifferentTools(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.oneToolWorker("a", worker.Config{Slots: 1})
		f.oneToolWorker("b", worker.Config{Slots: 10})
		f.coordinator(coordinator.Config{})
		f.wantStatuses(f.run(canonical("warm", "b", call{"a", ""}, call{"b", ""})), "ok ok")
		bounced, settled := f.bounces(), f.settlements()
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
				t.Errorf("%s ended at attempt %d, want 1", reply.Session, attempt)
			}
		}
		if n := bounced.check(t); n > 0 || settled.all() != 40 {
			t.Errorf("%d bounces, and 40 jobs were delivered %v times", n, settled.by)
		}
	})
}

// No worker serves the tool of a call, and the call waits in the backlog of its pool. The
// first worker that comes with the tool gets the call at once. No other worker gets it.
func TestACallThatNoWorkerServes(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		gone := f.oneToolWorker("a", worker.Config{})
		f.coordinator(coordinator.Config{QueueTimeout: 40 * time.Second})
		f.wantStatuses(f.run(canonical("warm", "b", call{"a", ""})), "ok")
		gone.stop()
		bounced, settled := f.bounces(), f.settlements()
		backlog := func() uint64 {
			q, err := inspect.Pool(t.Context(), f.conn, schemas.DefaultPool)
			if err != nil {
				t.Error(err)
			}
			return q.Pending
		}
		for name, other := range map[string]bool{"alone": false, "beside others": true} {
			if other {
				f.oneToolWorker("b", worker.Config{})
			}
			b := canonical("s "+name, "b", call{"a", ""})
			f.submit(b)
			f.until(name+": the call is in the backlog", func() bool { return backlog() == 1 })
			time.Sleep(20 * time.Second)
			f.oneToolWorker("a", worker.Config{}) // stopped at the end of this round
			came, w := time.Now(), part{f.stops[len(f.stops)-1]}
			f.wantStatuses(f.reply(b, time.Minute), "ok")
			if took := time.Since(came); took > time.Second { // simulated
				t.Errorf("%s: its worker came, and it took %v", name, took)
			}
			w.stop()
		}
		if n := bounced.check(t); n > 0 || settled.all() != 2 {
			t.Errorf("%d bounces, and 2 jobs were delivered %v times", n, settled.by)
		}
	})
}

// No worker serves the tool of a call. If other workers of its pool are there, the call ends
// after twice worker_ttl, or after start_wait if that is longer. If no worker is there, it
// ends after its queue timeout.
func TestACallThatNoWorkerServesForLong(t *testing.T) {
	for name, tc := range map[string]struct {
		others    bool
		startWait time.Duration
		wait      time.Duration
		code      messages.Code
	}{
		"no worker is there":                              {false, 10 * time.Second, 90 * time.Second, messages.CodeQueueTimeout},
		"other workers are there":                         {true, 10 * time.Second, 60 * time.Second, messages.CodeToolVersionGone},
		"other workers are there, start_wait counts":      {true, 70 * time.Second, 70 * time.Second, messages.CodeToolVersionGone},
		"other workers are there, start_wait is too long": {true, 2 * time.Minute, 90 * time.Second, messages.CodeToolVersionGone},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				gone := f.oneToolWorker("a", worker.Config{})
				f.coordinator(coordinator.Config{QueueTimeout: 90 * time.Second, StartWait: tc.startWait})
				f.wantStatuses(f.run(canonical("warm", "b", call{"a", ""})), "ok")
				if tc.others {
					f.oneToolWorker("b", worker.Config{})
					f.until("the other worker is there", func() bool { return len(f.presentWorkers()) == 2 })
				}
				gone.stop()
				began := time.Now()
				reply := f.run(canonical("s", "b", call{"a", ""}))
				f.wantStatuses(reply, "expired")
				if r := reply.Results[0]; r.Err.Code != tc.code || r.Attempt != 0 {
					t.Errorf("ended with %s after %d attempts, want %s after none", r.Err.Code, r.Attempt, tc.code)
				}
				if tc.others {
					f.wantWords(reply.Results[0], " a ", "pool default")
				}
				if took := time.Since(began); took < tc.wait || took > tc.wait+time.Second { // simulated
					t.Errorf("ended after %v, want %v", took, tc.wait)
				}
				f.until("no job is left", func() bool { return f.messageCount(bus.Jobs) == 0 })
			})
		})
	}
}
