package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// release is one version of a program's tools: a read and a write. Their definitions differ
// from those of other versions.
type release struct {
	tools          *tool.Registry
	reads, applied atomic.Int64
}

func (f *fleet) release(version string, more ...string) *release {
	f.t.Helper()
	r := &release{tools: &tool.Registry{}}
	add := func(t schemas.Tool, run tool.Func) {
		t.Description = "of release " + version
		if err := r.tools.Add(t, run); err != nil {
			f.t.Fatal(err)
		}
	}
	add(schemas.Tool{Name: "look", Kind: messages.KindRead}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		r.reads.Add(1)
		time.Sleep(20 * time.Millisecond)
		return tool.Text(version), nil
	})
	add(schemas.Tool{Name: "put", Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce}, func(context.Context, tool.Call) (tool.Output, error) {
		r.applied.Add(1)
		time.Sleep(20 * time.Millisecond)
		return tool.Text(version), nil
	})
	for _, name := range more {
		add(schemas.Tool{Name: name, Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text(name), nil })
	}
	return r
}

// answeredBatch is a batch of a load, with its reply.
type answeredBatch struct {
	submitted time.Time
	took      time.Duration // until its reply
	reply     messages.Reply
}

// load submits a batch with a read and a write at the given interval, until stop is called.
// stop waits for all replies and returns the batches in the order in which they were
// submitted.
func (f *fleet) load(every time.Duration) (stop func() []*answeredBatch) {
	ctx, end := context.WithCancel(context.Background())
	var all []*answeredBatch
	var running sync.WaitGroup
	running.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			b := canonical(fmt.Sprint("load", n%40), fmt.Sprint("b", n), call{"look", ""}, call{"put", ""})
			a := &answeredBatch{submitted: time.Now()}
			all = append(all, a)
			running.Go(func() {
				a.reply = f.run(b)
				a.took = time.Since(a.submitted)
			})
			time.Sleep(every)
		}
	})
	return func() []*answeredBatch {
		end()
		running.Wait()
		return all
	}
}

// median returns the median of the times that the batches took.
func median(all []*answeredBatch) time.Duration {
	var took []time.Duration
	for _, a := range all {
		took = append(took, a.took)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// Four workers are replaced one after another under load by workers with a new release, and
// then the release is rolled back. Every call runs, and every write runs once. No worker gets
// a job of the other release, and the median time of a batch does not grow. A single worker
// can bear the load, because the first worker with a new release gets all of it.
func TestARollingUpdateAndItsRollback(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		v1, v2 := f.release("1"), f.release("2")
		var workers []part
		for range 4 {
			workers = append(workers, f.workerWith(v1.tools, worker.Config{Slots: 10}))
		}
		for range 2 {
			f.coordinator(coordinator.Config{})
		}
		f.run(canonical("warm", "b", call{"look", ""}, call{"put", ""}))
		bounced := f.bounces()
		stop := f.load(5 * time.Millisecond)
		time.Sleep(3 * time.Second)
		rolling := time.Now()
		roll := func(to *release) {
			for i := range workers {
				time.Sleep(time.Second)
				came := f.workerWith(to.tools, worker.Config{Slots: 10})
				time.Sleep(500 * time.Millisecond)
				workers[i].stop()
				workers[i] = came
			}
		}
		roll(v2)
		time.Sleep(time.Second)
		roll(v1)
		time.Sleep(time.Second)
		replies := stop()
		for _, a := range replies {
			f.wantStatuses(a.reply, "ok ok")
		}
		first := slices.IndexFunc(replies, func(a *answeredBatch) bool { return a.submitted.After(rolling) })
		quiet, busy := median(replies[:first]), median(replies[first:])
		t.Logf("half of %d batches before the update took %v at most, of %d during it %v", first, quiet, len(replies)-first, busy)
		if busy > quiet+quiet/10 { // simulated
			t.Errorf("half of the batches took %v before the update, and %v during it", quiet, busy)
		}
		if n := bounced.check(t); n > 0 {
			t.Errorf("%d jobs of %d batches were given back", n, len(replies))
		}
		if puts := int(v1.applied.Load() + v2.applied.Load()); puts != len(replies)+1 {
			t.Errorf("%d writes of %d batches", puts, len(replies)+1)
		}
		if reads := int(v1.reads.Load() + v2.reads.Load()); reads > len(replies)+1+len(replies)/100 {
			t.Errorf("%d reads of %d batches", reads, len(replies)+1)
		}
		if v1.applied.Load() < 100 || v2.applied.Load() < 100 {
			t.Errorf("release 1 applied %d writes, release 2 %d: the load missed one", v1.applied.Load(), v2.applied.Load())
		}
		f.until("no job is left", func() bool { return f.messageCount(bus.Jobs) == 0 })
	})
}

// A worker with one more tool joins while jobs run. Both kinds of workers serve the old tools,
// and each job goes to a worker that has its tool.
func TestAWorkerWithANewToolsFile(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		old, more := f.release("1"), f.release("1", "extra")
		f.workerWith(old.tools, worker.Config{Slots: 4})
		f.coordinator(coordinator.Config{})
		f.run(canonical("warm", "b", call{"look", ""}, call{"put", ""}))
		bounced := f.bounces()
		stop := f.load(10 * time.Millisecond)
		time.Sleep(2 * time.Second)
		f.workerWith(more.tools, worker.Config{Slots: 4})
		f.until("the new tool is known", func() bool { return len(f.announced()) == 3 })
		for n := range 20 {
			f.wantStatuses(f.run(canonical(fmt.Sprint("s", n), "b", call{"extra", ""})), "ok")
		}
		time.Sleep(5 * time.Second)
		for _, a := range stop() {
			f.wantStatuses(a.reply, "ok ok")
		}
		if n := bounced.check(t); n > 0 {
			t.Errorf("%d jobs were given back", n)
		}
		if a, b := old.reads.Load(), more.reads.Load(); b < a/4 {
			t.Errorf("the workers that both have the tool ran %d and %d of its calls", a, b)
		}
	})
}

// A worker is killed while it runs a call and other calls wait. No other worker serves exactly
// the same tools. When the killed worker's announcement has lapsed, the calls go to a worker
// that serves their tool and more tools.
func TestALostToolsetLosesNoCall(t *testing.T) {
	for _, promise := range []schemas.Tool{{Kind: messages.KindRead}, {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}} {
		t.Run(string(promise.Kind), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				promise.Name = "slow"
				g := f.gated(promise)
				kill := f.killableWorker(worker.Config{Slots: 1})
				f.coordinator(coordinator.Config{})
				var open []messages.Batch
				for n := range 3 {
					b := canonical(fmt.Sprint("s", n), "b", call{"slow", ""})
					f.submit(b)
					open = append(open, b)
				}
				f.atGate(g, 1)
				kill()
				other, runs := &tool.Registry{}, atomic.Int64{}
				slow, _ := f.tools.Lookup("slow")
				for _, t := range []schemas.Tool{slow.Tool, {Name: "extra"}} {
					if err := other.Add(t, tool.Func(func(context.Context, tool.Call) (tool.Output, error) { runs.Add(1); return tool.Text(""), nil })); err != nil {
						f.t.Fatal(err)
					}
				}
				f.workerWith(other, worker.Config{})
				began := time.Now()
				for _, b := range open {
					f.wantStatuses(f.reply(b, 5*time.Minute), "ok")
				}
				if took := time.Since(began); took > time.Minute { // simulated
					t.Errorf("it took %v until the calls were elsewhere", took)
				}
				if runs.Load() != 3 {
					t.Errorf("3 calls ran %d times", runs.Load())
				}
				f.until("no job is left", func() bool { return f.messageCount(bus.Jobs) == 0 })
			})
		})
	}
}
