package e2e

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// addQuickTools registers a read rd and a write wr. Both return their input at once.
func addQuickTools(f *fleet) {
	echo := func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Output{Value: c.Input}, nil }
	f.tool(schemas.Tool{Name: "rd", Kind: messages.KindRead}, echo)
	f.tool(schemas.Tool{Name: "wr"}, echo)
}

// runOncePerSession submits one batch to each of the sessions and waits for every reply.
func (f *fleet) runOncePerSession(prefix string, sessions int) {
	f.t.Helper()
	var mu sync.Mutex
	replied := map[string]bool{}
	all := make(chan struct{})
	unsubscribe, err := f.conn.Subscribe("toolfleet.reply._.*.*", "", func(m bus.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(string(m.Data), `"status":"completed"`) || strings.Count(string(m.Data), `"status":"ok"`) != 2 {
			f.t.Errorf("%s: %s", m.Subject, m.Data)
		}
		before := len(replied)
		if replied[m.Subject] = true; len(replied) == sessions && before < sessions {
			close(all)
		}
	})
	if err != nil {
		f.t.Fatal(err)
	}
	defer unsubscribe()
	var next atomic.Int64
	var agents sync.WaitGroup
	for range 64 {
		agents.Go(func() {
			for n := next.Add(1); n <= int64(sessions); n = next.Add(1) {
				f.submit(canonical(fmt.Sprint(prefix, n), "b", call{"rd", `{"n":1}`}, call{"wr", `{"n":2}`}))
			}
		})
	}
	agents.Wait()
	select {
	case <-all:
	case <-time.After(5 * time.Minute):
		mu.Lock()
		defer mu.Unlock()
		f.t.Fatalf("%d of %d sessions have their reply", len(replied), sessions)
	}
}

// heap returns the number of bytes in use after a garbage collection.
func heap() (inUse int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// many is the size of two tests. `make soak` sets it to 10,000.
var many = flag.Int("many", 1_000, "how many calls wait in TestManyApprovals, and how many sessions TestManySessionsLeaveNothingBehind has")

// long runs the long form of some tests. `make soak` sets it.
var long = flag.Bool("long", false, "run the long form of tests that repeat the same with other timing")

// repeats returns how often a test repeats: usual, or often in the long form. With -short,
// which runs with the race detector, it is a third of usual: the detector needs few
// repetitions to see what runs side by side.
func repeats(usual, often int) int {
	switch {
	case *long:
		return often
	case testing.Short():
		return usual / 3
	}
	return usual
}

// A thousand sessions (or as many as -many says) have one batch each. They leave no consumer
// or stream at the server, no state in the coordinators, and no goroutine. Only records stay.
// When the records expire, their memory is free again.
func TestManySessionsLeaveNothingBehind(t *testing.T) {
	sessions := repeats(*many, *many)
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	addQuickTools(f)
	erasable := provision.Config{Erasable: true}
	f.worker(worker.Config{Slots: 64, Provision: erasable})
	live := prometheus.NewRegistry()
	f.coordinator(coordinator.Config{Metrics: coordinator.NewMetrics(live), Provision: erasable})
	f.coordinator(coordinator.Config{Provision: erasable})

	f.runOncePerSession("warm", 500) // grows the buffers and pools
	f.awaitIdle()
	f.deleteRecords(t)
	objects, goroutines, before := f.objects(t), runtime.NumGoroutine(), heap()

	f.runOncePerSession("s", sessions)
	f.awaitIdle()
	if now := f.objects(t); now != objects {
		t.Errorf("the server has %s after %d sessions, and had %s", now, sessions, objects)
	}
	f.until("the goroutines are as many as before", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	f.until("the coordinator drives nothing", func() bool {
		families, err := live.Gather()
		for _, m := range families {
			if m.GetName() == "toolfleet_batches_live" {
				return m.GetMetric()[0].GetGauge().GetValue() == 0
			}
		}
		t.Fatalf("no gauge of live batches: %v", err)
		return false
	})
	full := heap()
	records := f.messageCount(bus.Calls) + f.messageCount(bus.Results) + f.messageCount(bus.Replies) + f.messageCount(bus.Audit)
	t.Logf("%d sessions: heap %d KiB more with %d records kept", sessions, (full-before)>>10, records)
	if n := f.messageCount(bus.Replies); n != uint64(sessions) {
		t.Errorf("%d replies are kept for %d sessions", n, sessions)
	}
	f.deleteRecords(t)
	after := heap()
	t.Logf("without them %d KiB more than before", (after-before)>>10)
	if after > before+8<<20 {
		t.Errorf("the heap had %d KiB before and has %d KiB once the records are gone", before>>10, after>>10)
	}
}

// awaitIdle waits until the log and the queue of jobs are empty.
func (f *fleet) awaitIdle() {
	f.t.Helper()
	f.until("the log and the queue of jobs are empty", func() bool { return f.messageCount(bus.Batches) == 0 && f.messageCount(bus.Jobs) == 0 })
}

// objects returns how many streams and consumers the server has, as a text.
func (f *fleet) objects(t *testing.T) string {
	t.Helper()
	info := jetStream(t, f.conn, "INFO", nil)
	return fmt.Sprintf("%v streams and %v consumers", info["streams"], info["consumers"])
}

// deleteRecords deletes the records as their expiry would, and checks that each of these
// streams has an expiry.
func (f *fleet) deleteRecords(t *testing.T) {
	t.Helper()
	for _, name := range []string{bus.Calls, bus.Results, bus.Replies, bus.Audit} {
		stream := f.conn.Names().Stream(name)
		config, _ := jetStream(t, f.conn, "STREAM.INFO."+stream, nil)["config"].(map[string]any)
		if age, _ := config["max_age"].(float64); age <= 0 {
			t.Errorf("the messages of %s do not expire: %v", name, config["max_age"])
		}
		jetStream(t, f.conn, "STREAM.PURGE."+stream, nil)
	}
}

// BenchmarkLiveSessions has this many sessions at once, each with a batch of 8 reads and 2
// writes that waits or runs. Run it with at least as many batches as sessions, and compare
// only figures of the same run:
//
//	go test -run '^$' -bench LiveSessions -benchtime 10000x ./internal/e2e
func BenchmarkLiveSessions(b *testing.B) {
	for _, sessions := range []int{64, 1000, 10_000} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			f := newFleet(b, natstest.Server(b, natstest.Fast))
			defer f.close()
			addQuickTools(f)
			f.worker(worker.Config{Slots: 64})
			f.coordinator(coordinator.Config{})
			calls := make([]call, 10)
			for i := range calls {
				calls[i] = call{"rd", `{"p":1}`}
				if i >= 8 {
					calls[i].Name = "wr"
				}
			}
			replies := make(chan string, 10*sessions)
			unsubscribe, err := f.conn.Subscribe("toolfleet.reply._.*.*", "", func(m bus.Msg) { replies <- strings.Split(m.Subject, ".")[3] })
			if err != nil {
				b.Fatal(err)
			}
			defer unsubscribe()
			b.ResetTimer()
			submit := func(session string, n int) {
				go f.submit(batchIn(messages.Anthropic, session, fmt.Sprint("b", n), calls...))
			}
			next := min(sessions, b.N)
			for n := range next {
				submit(fmt.Sprint("s", n), n)
			}
			for range b.N {
				session := <-replies
				if next < b.N {
					submit(session, next)
					next++
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(10*b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
