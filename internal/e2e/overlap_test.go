package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// An agent sends three reads as three batches of one call. The reads run at the same time:
// each takes a second, and all three take about a second.
func TestReadsOfThreeBatchesOverlap(t *testing.T) {
	for coordinators := range 2 {
		t.Run(fmt.Sprint(coordinators+1), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l writeLog
				l.tools(f)
				f.worker(worker.Config{})
				for range coordinators + 1 {
					f.coordinator(coordinator.Config{Lookahead: 32})
				}
				began := time.Now()
				var replies sync.WaitGroup
				for n := range 3 {
					replies.Go(func() { f.run(canonical("s", fmt.Sprint("b", n), call{"count", `{"ms":1000}`})) })
				}
				replies.Wait()
				if took := time.Since(began); took > 1500*time.Millisecond {
					t.Errorf("three reads of 1 s took %v", took)
				}
			})
		})
	}
}

// Two hundred reads are sent at once, as batches of one call. As many run at the same time as
// the session's window allows, just as if they were one batch.
func TestTheBatchesOfASessionShareItsWindow(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var now, most atomic.Int32
		f.tool(schemas.Tool{Name: "slow", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Second) // simulated
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{Slots: 30})
		f.coordinator(coordinator.Config{})
		const reads, window = 200, 8
		var last messages.Batch
		for n := range reads {
			last = canonical("s", fmt.Sprint("b", n), call{"slow", "{}"})
			f.submit(last)
		}
		began := time.Now()
		f.wantStatuses(f.reply(last, time.Hour), "ok")
		if got := most.Load(); got != window {
			t.Errorf("%d reads run at once, want %d", got, window)
		}
		if took, most := time.Since(began), (reads/window+3)*time.Second; took > most {
			t.Errorf("%d reads of a second took %v, want %v at most", reads, took, most)
		}
	})
}

// Reads are sent before any worker has announced its tools. They overlap once a worker has.
func TestReadsThatComeBeforeTheirToolsOverlap(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.coordinator(coordinator.Config{})
		var replies sync.WaitGroup
		for n := range 3 {
			replies.Go(func() { f.run(canonical("s", fmt.Sprint("b", n), call{"count", `{"ms":20000}`})) })
		}
		time.Sleep(time.Second)
		began := time.Now()
		f.worker(worker.Config{})
		replies.Wait()
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("three reads of 20 s took %v", took)
		}
	})
}

// Sessions send reads and writes in random order, one call in a batch. Three coordinators
// drive them, and are stopped and restarted in turn. Each read sees exactly the writes before
// it, and the writes run in order, one at a time.
func TestOneCallBatchesKeepTheirOrder(t *testing.T) {
	runInOrderUnderRestarts(t, 60, func(rng *rand.Rand) []string {
		return []string{[]string{"count", "count", "count", "put"}[rng.IntN(4)]}
	})
}

// Agents send one call in a batch: a write and a read in turn, a write between two reads, or a
// random mix. Two coordinators are killed in turn. Each read still sees exactly the writes
// before it.
func TestOneCallBatchesKeepTheirOrderUnderKills(t *testing.T) {
	for name, calls := range map[string][]string{"write, read": {"put", "count"}, "read, write, read": {"count", "put", "count"}, "mix": nil} {
		t.Run(name, func(t *testing.T) {
			sessions := map[string]int{}
			runInOrder(t, 30, (*fleet).coordinatorsThatAreKilled, func(session string, rng *rand.Rand) []string {
				n := sessions[session]
				sessions[session]++
				if calls == nil {
					return []string{[]string{"count", "put"}[rng.IntN(2)]}
				}
				return []string{calls[n%len(calls)]}
			})
		})
	}
}

// coordinatorsThatAreKilled starts two coordinators. kill closes the connection of one after
// the other, six times in all, and starts another coordinator each time.
func (f *fleet) coordinatorsThatAreKilled(cfg coordinator.Config) (kill func()) {
	alive := []func(){f.killableCoordinator(cfg), f.killableCoordinator(cfg)}
	return func() {
		for n := range 6 {
			time.Sleep(time.Duration(150+n*70) * time.Millisecond) // simulated
			alive[n%2]()
			alive[n%2] = f.killableCoordinator(cfg)
		}
	}
}

func TestBatchesOfWriteAndReadKeepTheirOrder(t *testing.T) {
	runInOrderUnderRestarts(t, 15, func(*rand.Rand) []string { return []string{"put", "count"} })
}

func TestBatchesWithAWriteBetweenReadsKeepTheirOrder(t *testing.T) {
	runInOrderUnderRestarts(t, 15, func(*rand.Rand) []string { return []string{"count", "put", "count"} })
}

func TestMixedBatchesKeepTheirOrder(t *testing.T) {
	runInOrderUnderRestarts(t, 20, func(rng *rand.Rand) (names []string) {
		for range rng.IntN(5) {
			names = append(names, []string{"count", "count", "put"}[rng.IntN(3)])
		}
		return names
	})
}

// runInOrderUnderRestarts is runInOrder with coordinators that stop and restart.
func runInOrderUnderRestarts(t *testing.T, batches int, mix func(*rand.Rand) []string) {
	runInOrder(t, batches, (*fleet).coordinatorsThatComeAndGo, func(_ string, rng *rand.Rand) []string { return mix(rng) })
}

// runInOrder runs ten sessions with the given number of batches, or 200 in the long form, and
// checks what their reads and writes saw. start starts coordinators, and disturb stops or
// kills them meanwhile. mix returns the calls of a batch.
func runInOrder(t *testing.T, batches int, start func(*fleet, coordinator.Config) (disturb func()), mix func(session string, rng *rand.Rand) []string) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{Slots: 30})
		f.worker(worker.Config{Slots: 30})
		disturb := start(f, coordinator.Config{Lookahead: 32})
		rng := rand.New(rand.NewPCG(13, 1))
		var p publishLog
		calls := map[string][]string{}
		for n := range repeats(batches, 200) {
			for s := range 10 {
				names := mix(fmt.Sprint("s", s), rng)
				var list []call
				for _, name := range names {
					list = append(list, call{name, fmt.Sprintf(`{"ms":%d}`, rng.IntN(5)*20)})
				}
				b := canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), list...)
				calls[fmt.Sprint(b.Session, b.ID)] = names
				p.publish(f, f.conn, b)
			}
		}
		disturb()
		var want writeOrder
		for session, ids := range p.log() {
			puts := 0
			for _, id := range ids {
				reply, err := f.await(messages.Batch{Session: session, ID: id}, 10*time.Minute)
				if err != nil {
					t.Fatalf("batch %s of %s: %v", id, session, err)
				}
				outputs := outputsOf(t, reply)
				for i, name := range calls[fmt.Sprint(session, id)] {
					if name == "put" {
						puts++
						want.add(session, id, i)
					} else if outputs[i] != fmt.Sprint(puts) {
						t.Errorf("batch %s of %s: %d writes come before call %d, and it says %s", id, session, puts, i, outputs[i])
					}
				}
			}
		}
		l.checkOrder(t, want)
	})
}

// outputsOf returns the outputs of a canonical batch as texts, in the order of its calls.
func outputsOf(t *testing.T, r messages.Reply) (outputs []string) {
	t.Helper()
	var out struct{ Results []struct{ Output string } }
	if err := json.Unmarshal(r.Reinjection, &out); err != nil {
		t.Fatalf("the reinjection of batch %s: %v: %s", r.Batch, err, r.Reinjection)
	}
	for _, result := range out.Results {
		outputs = append(outputs, result.Output)
	}
	return outputs
}

// A coordinator tells its peers when it has finished a session. The next batch of the session
// is driven at once, at any coordinator.
func TestASessionThatHasEndedIsDrivenAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{Slots: 30})
		for range 3 {
			f.coordinator(coordinator.Config{Lookahead: 32})
		}
		for s := range 20 {
			session := fmt.Sprint("s", s)
			var replies sync.WaitGroup
			for n := range 3 {
				replies.Go(func() { f.run(canonical(session, fmt.Sprint("b", n), call{"count", `{"ms":1000}`})) })
			}
			replies.Wait()
			began := time.Now()
			f.run(canonical(session, "last", call{"count", `{"ms":0}`}))
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("session %s: a batch of one call that takes no time took %v after three others", session, took)
			}
		}
	})
}

// A coordinator shuts down and still ends one batch of a session, while other batches of the
// session wait. A peer drives those batches as soon as the first one has ended.
func TestADrainHandsTheRestOfASessionOn(t *testing.T) {
	for _, lookahead := range []int{1, 2, 32} {
		t.Run(fmt.Sprint(lookahead), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				pay := f.gated(schemas.Tool{Name: "pay"})
				f.worker(worker.Config{})
				going := f.coordinator(coordinator.Config{Lookahead: lookahead})
				f.submit(canonical("s", "b0", call{"pay", ""}))
				var last messages.Batch
				for n := range 4 {
					last = canonical("s", fmt.Sprint("b", n+1), call{"pay", through})
					f.submit(last)
				}
				f.atGate(pay, 1)
				time.Sleep(2 * time.Minute) // simulated: each batch is delivered rarely by now
				f.coordinator(coordinator.Config{Lookahead: lookahead})
				var stopping sync.WaitGroup
				stopping.Go(going.stop)
				time.Sleep(time.Second)
				close(pay.open)
				stopping.Wait()
				began := time.Now()
				f.wantStatuses(f.reply(last, time.Minute), "ok")
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("the last batch was answered %v after the shutdown", took)
				}
			})
		})
	}
}

// A batch begins with a call of an unknown tool, and then has a read. The read still runs at
// the same time as the read of the batch before.
func TestAReadBehindAnUnknownToolOverlaps(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Lookahead: 32})
		first := canonical("s", "first", call{"look", ""})
		f.submit(first)
		f.atGate(look, 1)
		f.wantStatuses(f.run(canonical("s", "second", call{"nope", ""}, call{"look", through})), "unknown_tool ok")
		close(look.open)
		f.wantStatuses(f.reply(first, time.Minute), "ok")
	})
}

// A read is followed by a write, so no later read can overlap it and its plan is not stored.
// The batches cost as many messages as one after another.
func TestAReadBeforeAWriteCostsNoRecord(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, pay := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Lookahead: 32})
		all := []messages.Batch{canonical("s", "read", call{"look", ""}), canonical("s", "write", call{"pay", through}), canonical("s", "last", call{"look", through})}
		for _, b := range all {
			f.submit(b)
		}
		f.atGate(look, 1)
		time.Sleep(time.Minute)
		if pay.runs.Load() > 0 {
			t.Error("the write did not wait for the read")
		}
		close(look.open)
		for _, b := range all {
			f.wantStatuses(f.reply(b, time.Minute), "ok")
		}
		plans, err := journal.New(f.conn).Plans(t.Context(), wire.KeyOf(messages.OneTenant, "s", "read"))
		if err != nil || len(plans) > 0 {
			t.Errorf("%d plan records of the read, err %v; want none", len(plans), err)
		}
	})
}

// A session sends one batch at a time. A lookahead costs it nothing: the server sees the same
// messages with a lookahead of 1 and of 32.
func TestOneBatchAtATimeCostsNoMore(t *testing.T) {
	counts := map[int]map[string]int{}
	for _, lookahead := range []int{1, 32} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			addQuickTools(f)
			f.worker(worker.Config{})
			f.coordinator(coordinator.Config{Lookahead: lookahead})
			f.coordinator(coordinator.Config{Lookahead: lookahead})
			f.run(canonical("s", "first", call{"rd", `{"n":1}`}))
			time.Sleep(time.Second) // simulated: the last messages arrive
			var mu sync.Mutex
			count := map[string]int{}
			unsubscribe, err := f.conn.Subscribe(">", "", func(m bus.Msg) {
				mu.Lock()
				defer mu.Unlock()
				switch words := strings.Split(m.Subject, "."); {
				case words[0] == "_INBOX" || strings.Contains(m.Subject, "$KV") || strings.Contains(m.Subject, "MSG.NEXT"):
				case words[0] == "toolfleet":
					count[words[1]]++
				default:
					count[strings.Join(words[:min(4, len(words))], ".")]++
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			for n := range 10 {
				f.run(canonical("s", fmt.Sprint("b", n), call{[]string{"rd", "wr"}[n%2], `{"n":1}`}))
				time.Sleep(50 * time.Millisecond)
			}
			unsubscribe()
			mu.Lock()
			defer mu.Unlock()
			counts[lookahead] = count
		})
	}
	if diff := cmp.Diff(counts[1], counts[32]); diff != "" || counts[1]["final"] != 10 {
		t.Errorf("messages of ten batches, one batch at a time (-) and overlapping (+):\n%s\n%v", diff, counts[1])
	}
}

// A batch waits behind another batch, and its tool becomes known meanwhile. The tool runs: the
// batch's plan is made when its first call may start.
func TestAWaitingBatchIsPlannedWhenItStarts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Lookahead: 32})
		first, second := canonical("s", "first", call{"pay", ""}), canonical("s", "second", call{"late", through})
		f.submit(first)
		f.submit(second)
		f.atGate(pay, 1)
		time.Sleep(time.Minute)
		f.gated(schemas.Tool{Name: "late"})
		f.worker(worker.Config{})
		time.Sleep(time.Second)
		close(pay.open)
		f.wantStatuses(f.reply(first, time.Minute), "ok")
		f.wantStatuses(f.reply(second, time.Minute), "ok")
	})
}

// A thousand batches (ten thousand in the long form) wait in one session. The coordinator
// holds only as many as its lookahead, and serves other sessions at once.
func TestALongQueueHoldsUpOnlyItsSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		live := prometheus.NewRegistry()
		f.coordinator(coordinator.Config{Lookahead: 32, Metrics: coordinator.NewMetrics(live)})
		f.submit(canonical("long", "head", call{"pay", ""}))
		f.atGate(pay, 1)
		before, waiting := heap(), repeats(1000, 10_000)
		for n := range waiting {
			f.submit(canonical("long", fmt.Sprint("b", n), call{"pay", through}))
		}
		redelivered := 0.0
		for n := range 5 {
			if n == 3 {
				redelivered = metric(t, live, "toolfleet_batch_redeliveries_total")
			}
			time.Sleep(20 * time.Second) // simulated: batches are delivered and handed back
			began := time.Now()
			f.wantStatuses(f.run(canonical("other", fmt.Sprint("b", began.UnixNano()), call{"pay", through})), "ok")
			if took := time.Since(began); took > time.Second {
				t.Errorf("another session waited %v", took)
			}
			if driven := metric(t, live, "toolfleet_batches_live"); driven > 33 {
				t.Errorf("%v batches are driven, want 32 of the session at most", driven)
			}
		}
		// A batch that has waited for a minute is delivered every 30 s.
		if n := metric(t, live, "toolfleet_batch_redeliveries_total") - redelivered; n > 3*float64(waiting) {
			t.Errorf("%v deliveries of %d batches that wait, in 40 s", n, waiting)
		}
		if grown := heap() - before; grown > 32<<20+int64(waiting)*8<<10 { // the heap includes the server's
			t.Errorf("%d MiB for %d batches that wait", grown>>20, waiting)
		}
	})
}

// metric returns the value of a gauge or counter without labels.
func metric(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
