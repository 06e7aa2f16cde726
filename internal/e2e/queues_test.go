package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The tests of this file have several queues. The workers of all these queues serve one common
// tool.

// slowRead is a read. The test decides how long each run takes.
type slowRead struct {
	promise      schemas.Tool
	runs, active atomic.Int32
	takes        func(run int32) time.Duration
	began        chan struct{} // gets a value for each run
}

func newSlowRead(takes func(run int32) time.Duration) *slowRead {
	return &slowRead{promise: schemas.Tool{Name: "slow", Kind: messages.KindRead, TimeoutMS: 600_000}, takes: takes, began: make(chan struct{}, 100)}
}

func (s *slowRead) run(ctx context.Context, _ tool.Call) (tool.Output, error) {
	takes := s.takes(s.runs.Add(1))
	s.active.Add(1)
	defer s.active.Add(-1)
	s.began <- struct{}{}
	select {
	case <-time.After(takes):
		return tool.Text("ok"), nil
	case <-ctx.Done():
		return tool.Output{}, ctx.Err()
	}
}

// toolset returns the tool slow together with other tools. Workers with other tools beside it
// have another queue.
func (s *slowRead) toolset(f *fleet, beside ...string) *tool.Registry {
	f.t.Helper()
	r := &tool.Registry{}
	nothing := tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text(""), nil })
	put := tool.Func(func(context.Context, tool.Call) (tool.Output, error) {
		if n := s.active.Load(); n > 0 {
			f.t.Errorf("a write runs beside %d reads before it", n)
		}
		return tool.Text("put"), nil
	})
	if err := r.Add(s.promise, tool.Func(s.run)); err != nil {
		f.t.Fatal(err)
	}
	if err := r.Add(schemas.Tool{Name: "put", Kind: messages.KindWrite}, put); err != nil {
		f.t.Fatal(err)
	}
	for _, name := range beside {
		if err := r.Add(schemas.Tool{Name: name, Kind: messages.KindRead}, nothing); err != nil {
			f.t.Fatal(err)
		}
	}
	return r
}

// stopInBackground tells a daemon to stop, which may take a while. wait returns when it has
// stopped. Call it before the fleet is closed.
func (p part) stopInBackground() (wait func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.stop()
	}()
	return func() { <-ended }
}

// awaitWorkers waits until n workers have announced themselves and the coordinators have
// noticed it.
func (f *fleet) awaitWorkers(n int) {
	f.t.Helper()
	f.until("the workers are there", func() bool { return len(values[wire.Presence](f, bus.BucketWorkers)) == n })
	time.Sleep(200 * time.Millisecond) // simulated
}

// deleteAnnouncement deletes the announcement of a worker.
func (f *fleet) deleteAnnouncement(name string) {
	f.t.Helper()
	bucket, err := f.conn.Bucket(context.Background(), f.conn.Names().Stream(bus.BucketWorkers))
	if err == nil {
		err = bucket.Delete(context.Background(), name)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// The worker of a running read drains, or its announcement is lost. Workers with another
// toolset have the read's tool too. The read still runs once, and the next write of the batch
// starts after the read.
func TestARunningReadStaysWithItsWorker(t *testing.T) {
	for what, change := range map[string]func(*fleet, part) (wait func()){
		"it drains":                func(_ *fleet, w part) func() { return w.stopInBackground() },
		"its announcement is lost": func(f *fleet, _ part) func() { f.deleteAnnouncement("w1"); return func() {} },
	} {
		t.Run(what, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				read := newSlowRead(func(run int32) time.Duration {
					if run == 1 { // the second read waits, so its worker looks into the journal
						return 1500 * time.Millisecond
					}
					return 20 * time.Second
				})
				w := f.workerWith(read.toolset(f), worker.Config{Name: "w1", Slots: 1})
				f.coordinator(coordinator.Config{})
				f.awaitWorkers(1)
				f.submit(canonical("first", "b", call{"slow", ""}))
				<-read.began
				b := canonical("s", "b", call{"slow", ""}, call{"put", ""})
				f.submit(b)
				<-read.began
				f.workerWith(read.toolset(f, "extra"), worker.Config{Name: "w2"})
				f.awaitWorkers(2)
				time.Sleep(2 * time.Second)
				defer change(f, w)()
				f.wantStatuses(f.reply(b, time.Minute), "ok ok")
				time.Sleep(30 * time.Second)
				if n := read.runs.Load() - 1; n != 1 {
					t.Errorf("one read ran %d times", n)
				}
			})
		})
	}
}

// A read waits for the only slot of its queue. Its worker starts it, and drains before it has
// reported the start. No other worker starts the read again.
func TestAReadThatHasJustBegunRunsOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		read := newSlowRead(func(int32) time.Duration { return 2 * time.Second })
		w := f.workerWith(read.toolset(f), worker.Config{Slots: 1})
		f.coordinator(coordinator.Config{})
		f.awaitWorkers(1)
		first, second := canonical("s1", "b", call{"slow", ""}), canonical("s2", "b", call{"slow", ""})
		f.submit(first)
		<-read.began
		f.submit(second)
		time.Sleep(time.Second)
		f.workerWith(read.toolset(f, "extra"), worker.Config{})
		<-read.began
		time.Sleep(20 * time.Millisecond)
		defer w.stopInBackground()()
		f.wantStatuses(f.reply(first, time.Minute), "ok")
		f.wantStatuses(f.reply(second, time.Minute), "ok")
		time.Sleep(10 * time.Second)
		if n := read.runs.Load(); n != 2 {
			t.Errorf("2 reads ran %d times", n)
		}
	})
}

// A read kills each worker that runs it. When the next worker comes, the queue of the lost
// worker is already deleted. The call still ends after five workers.
func TestPoisonIsFoundAcrossQueues(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second} { // before and after the worker's first report
		t.Run(after.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var lost atomic.Int32
				bomber := func() {
					conn, tools := f.connect("bomber"), &tool.Registry{}
					if err := tools.Add(schemas.Tool{Name: "bomb", Kind: messages.KindRead, TimeoutMS: 300_000}, tool.Func(func(ctx context.Context, _ tool.Call) (tool.Output, error) {
						time.Sleep(after)
						lost.Add(1)
						go conn.Close()
						<-ctx.Done()
						return tool.Output{}, ctx.Err()
					})); err != nil {
						f.t.Fatal(err)
					}
					w, err := worker.New(conn, tools, worker.Config{Logger: f.log, Drain: time.Millisecond})
					if err != nil {
						f.t.Fatal(err)
					}
					f.start(conn, w.Run)
				}
				f.coordinator(coordinator.Config{})
				bomber()
				f.awaitWorkers(1)
				b := canonical("s", "b", call{"bomb", ""})
				f.submit(b)
				for n := range int32(5) {
					f.until("a worker is lost", func() bool { return lost.Load() == n+1 })
					time.Sleep(45 * time.Second)
					bomber()
				}
				reply := f.reply(b, time.Minute)
				f.wantStatuses(reply, "error")
				f.wantWords(reply.Results[0], "5 workers")
				if n := lost.Load(); n != 5 {
					t.Errorf("%d workers were lost", n)
				}
			})
		})
	}
}

// A slow call has the only slot of a queue, and other calls wait behind it. A worker of
// another queue with the same tool is free, now or later. The waiting calls go to that worker.
func TestACallDoesNotWaitBehindASlowOne(t *testing.T) {
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprint("later ", later), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				read := newSlowRead(func(run int32) time.Duration {
					if run == 1 {
						return 5 * time.Minute
					}
					return time.Second
				})
				f.workerWith(read.toolset(f), worker.Config{Slots: 1})
				if !later {
					f.workerWith(read.toolset(f, "extra"), worker.Config{Slots: 1})
				}
				f.coordinator(coordinator.Config{})
				if !later {
					f.awaitWorkers(2)
				}
				var open []messages.Batch
				for n := range 5 {
					b := canonical(fmt.Sprint("s", n), "b", call{"slow", ""})
					f.submit(b)
					open = append(open, b)
					time.Sleep(100 * time.Millisecond)
				}
				if later {
					f.workerWith(read.toolset(f, "extra"), worker.Config{Slots: 1})
				}
				began := time.Now()
				for _, b := range open[1:] {
					f.wantStatuses(f.reply(b, 5*time.Minute), "ok")
				}
				if took := time.Since(began); took > 45*time.Second { // simulated
					t.Errorf("calls of a second had their results after %v", took)
				}
				f.wantStatuses(f.reply(open[0], 6*time.Minute), "ok")
				if n := read.runs.Load(); n != 5 {
					t.Errorf("5 calls ran %d times", n)
				}
			})
		})
	}
}

// A worker announces itself and takes no jobs, for example because its consumer cannot be
// made. Its calls go to another worker.
func TestAQueueThatNobodyPullsFrom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		read := newSlowRead(func(int32) time.Duration { return 100 * time.Millisecond })
		f.workerWith(read.toolset(f), worker.Config{Slots: 2})
		f.coordinator(coordinator.Config{})
		f.awaitWorkers(1)
		tools := append([]string{"0000"}, f.presentWorkers()[0].Queues["default"].Tools...)
		defer f.announce(wire.Presence{
			V: 1, Worker: "deaf", Pools: []string{"default"}, Slots: 10,
			Queues: map[string]wire.Queue{"default": {Token: wire.QueueToken("default", tools), Tools: tools}},
		})()
		f.awaitWorkers(2)
		var open []messages.Batch
		for n := range 10 {
			b := canonical(fmt.Sprint("s", n), "b", call{"slow", ""})
			f.submit(b)
			open = append(open, b)
		}
		for _, b := range open {
			f.wantStatuses(f.reply(b, 20*time.Second), "ok") // the announcement stays for 30 s
		}
	})
}

// The announcements of a worker are lost for a while, and its job is in a queue without a
// worker. The call waits until the worker is known again.
func TestACallOutlivesALostAnnouncement(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		read := newSlowRead(func(int32) time.Duration { return time.Second })
		f.workerWith(read.toolset(f), worker.Config{Announce: 75 * time.Second})
		f.oneToolWorker("other", worker.Config{})
		f.coordinator(coordinator.Config{QueueTimeout: 2 * time.Minute})
		f.awaitWorkers(2)
		time.Sleep(35 * time.Second)
		f.awaitWorkers(1)
		f.wantStatuses(f.run(canonical("s", "b", call{"slow", ""})), "ok")
	})
}

// Two workers have the same name, as when one replaces the other. The first worker ends, and
// leaves the announcement of the second in place.
func TestAWorkerLeavesTheAnnouncementOfItsNamesake(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		read := newSlowRead(func(int32) time.Duration { return 5 * time.Second })
		first := f.workerWith(read.toolset(f), worker.Config{Name: "w", Announce: 20 * time.Second})
		f.coordinator(coordinator.Config{})
		f.awaitWorkers(1)
		b := canonical("s", "b", call{"slow", ""})
		f.submit(b)
		<-read.began
		wait := first.stopInBackground()
		time.Sleep(time.Second)
		f.workerWith(read.toolset(f), worker.Config{Name: "w", Announce: 20 * time.Second})
		wait()
		f.wantStatuses(f.reply(b, time.Minute), "ok")
		if all := values[wire.Presence](f, bus.BucketWorkers); len(all) != 1 || all[0].Draining {
			t.Errorf("the fleet knows the workers %+v", all)
		}
	})
}

// A worker hands a job back late, when its call already has a job in another queue. That job
// stays, and the call runs once.
func TestALateHandBackFromAnotherQueue(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				read := newSlowRead(func(int32) time.Duration { return 10 * time.Second })
				f.workerWith(read.toolset(f), worker.Config{})
				f.coordinator(coordinator.Config{})
				f.awaitWorkers(1)
				b := canonical("s", "b", call{"slow", ""})
				f.submit(b)
				<-read.began
				f.workerWith(read.toolset(f, "extra"), worker.Config{})
				f.awaitWorkers(2)
				jobs, err := f.conn.All(context.Background(), f.conn.Names().Stream(bus.Jobs), ">")
				if err != nil || len(jobs) != 1 {
					t.Fatalf("%d jobs, %v", len(jobs), err)
				}
				queue, key, err := f.conn.Names().Job(jobs[0].Subject)
				var job wire.Job
				if err == nil {
					err = json.Unmarshal(jobs[0].Data, &job)
				}
				if err != nil {
					t.Fatal(err)
				}
				if late {
					queue = wire.QueueToken("default", []string{"of an earlier worker"})
				}
				notice := wire.Notice{V: 1, Batch: key.BatchKey.String(), Index: 0, LetGo: &wire.LetGo{Queue: queue}}
				if err := f.conn.Publish(f.conn.Names().Notify(job.Notify), nil, rawjson.MustMarshal(notice)); err != nil {
					t.Fatal(err)
				}
				f.wantStatuses(f.reply(b, time.Minute), "ok")
				want := int32(2)
				if late {
					want = 1
				}
				if n := read.runs.Load(); n != want {
					t.Errorf("the read ran %d times, want %d", n, want)
				}
			})
		})
	}
}

// The last worker of a toolset drains while a call waits for its only slot. Once a second the
// worker looks whether another worker has taken the call.
func TestTheLastWorkerLooksForOthersOnceASecond(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		read := newSlowRead(func(int32) time.Duration { return 8 * time.Second })
		w := f.workerWith(read.toolset(f), worker.Config{Slots: 1})
		f.coordinator(coordinator.Config{})
		f.awaitWorkers(1)
		first, second := canonical("s1", "b", call{"slow", ""}), canonical("s2", "b", call{"slow", ""})
		f.submit(first)
		<-read.began
		f.submit(second)
		time.Sleep(time.Second)
		var looks atomic.Int32
		stop, err := f.conn.Subscribe("$JS.API.DIRECT.GET.KV_"+f.conn.Names().Stream(bus.BucketWorkers), "", func(bus.Msg) { looks.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		defer w.stopInBackground()()
		f.wantStatuses(f.reply(first, time.Minute), "ok")
		f.wantStatuses(f.reply(second, time.Minute), "ok")
		if n := looks.Load(); n < 5 || n > 9 || read.runs.Load() != 2 {
			t.Errorf("the worker looked %d times within 7 s, and 2 calls ran %d times", n, read.runs.Load())
		}
	})
}

// The server allows no more consumers, so that a worker with new tools cannot have a queue of
// its own. It takes jobs from the queue of its pool.
func TestAWorkerWithoutAConsumerOfItsOwn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.oneToolWorker("a", worker.Config{})
		f.coordinator(coordinator.Config{})
		f.wantStatuses(f.run(canonical("s", "before", call{"a", ""})), "ok")
		for n := 0; ; n++ {
			consumer, err := provision.QueueConsumer(f.conn.Names(), wire.QueueToken("default", []string{fmt.Sprint(n)}), 10*time.Second, 0)
			if err == nil {
				err = provision.EnsureConsumer(context.Background(), f.conn, consumer)
			}
			if errors.Is(err, provision.ErrTooManyConsumers) {
				break
			}
			if err != nil || n > 2000 {
				t.Fatalf("consumer %d: %v", n, err)
			}
		}
		f.oneToolWorker("b", worker.Config{})
		f.until("the new tool is known", func() bool { return len(f.announced()) == 2 })
		f.wantStatuses(f.run(canonical("s", "b", call{"a", ""}, call{"b", ""})), "ok ok")
	})
}
