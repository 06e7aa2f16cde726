package e2e

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// run is one run of a tool, with what the tool was given.
type run struct {
	at      time.Time
	key     string
	fence   uint64
	attempt int
	input   string
}

// toolRecord stands for the world outside the fleet: it records the runs and probes of a tool.
// The test decides how each of them ends.
type toolRecord struct {
	mu     sync.Mutex
	runs   []run                                                          // guarded by mu
	probes []run                                                          // guarded by mu
	do     func(ctx context.Context, n int) (tool.Output, error)          // the nth run; n counts from 1
	probe  func(ctx context.Context, n int) (applied bool, problem error) // the nth probe; n counts from 1
}

func seen(c tool.Call) run {
	return run{time.Now(), c.IdempotencyKey, c.Fence, c.Attempt, string(c.Input)}
}

// recordedTool registers a tool whose runs and probes are recorded. do decides how each run
// ends.
func (f *fleet) recordedTool(promise schemas.Tool, do func(ctx context.Context, n int) (tool.Output, error)) *toolRecord {
	f.t.Helper()
	l := &toolRecord{do: do}
	note := func(list *[]run, c tool.Call) int {
		l.mu.Lock()
		defer l.mu.Unlock()
		*list = append(*list, seen(c))
		return len(*list)
	}
	runner := tool.NewProber(func(ctx context.Context, c tool.Call) (tool.Output, error) {
		return l.do(ctx, note(&l.runs, c))
	}, func(ctx context.Context, c tool.Call) (tool.Probed, error) {
		applied, err := l.probe(ctx, note(&l.probes, c))
		return tool.Probed{Applied: applied}, err
	})
	if promise.TimeoutMS == 0 {
		promise.TimeoutMS = 60_000
	}
	if err := f.tools.Add(promise, runner); err != nil {
		f.t.Fatal(err)
	}
	return l
}

func (l *toolRecord) all() []run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]run(nil), l.runs...)
}

func (l *toolRecord) asked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.probes)
}

func (f *fleet) hasRun(l *toolRecord, n int) {
	f.t.Helper()
	f.until(fmt.Sprintf("the tool has run %d times", n), func() bool { return len(l.all()) == n })
}

// killableWorker starts a worker. kill closes its connection, so that the rest of the fleet
// takes the worker for dead.
func (f *fleet) killableWorker(cfg worker.Config) (kill func()) {
	f.t.Helper()
	conn := f.connect("doomed worker")
	cfg.Logger, cfg.Drain = f.log, time.Millisecond
	w, err := worker.New(conn, f.tools, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.start(conn, w.Run)
	return func() { go conn.Close() }
}

func waitForStop(ctx context.Context) (tool.Output, error) {
	<-ctx.Done()
	return tool.Output{}, ctx.Err()
}

func busy(code messages.Code) (tool.Output, error) {
	return tool.Output{}, &messages.Error{Code: code, Message: "busy", Retryable: true}
}

func hooks(t testing.TB, h hook.Hook) hook.Set {
	t.Helper()
	set, err := hook.NewSet(h)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A tool fails twice with an error that it calls retryable, and then succeeds. The pauses
// before the attempts double, and each is shortened by a random part.
func TestRetries(t *testing.T) {
	for _, promise := range []schemas.Tool{
		{Kind: messages.KindRead}, {Kind: messages.KindCompute}, {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, {Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable},
	} {
		t.Run(fmt.Sprint(promise.Kind, promise.OnCrash), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				promise.Name, promise.Retry = "flaky", schemas.Retry{Attempts: 3, BackoffMS: 4000}
				l := f.recordedTool(promise, func(_ context.Context, n int) (tool.Output, error) {
					if n < 3 {
						return busy("rate_limited")
					}
					return tool.Text("done"), nil
				})
				l.probe = func(context.Context, int) (bool, error) { return false, nil }
				f.worker(worker.Config{})
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				r := f.run(canonical("s", "b", call{"flaky", ""})).Results
				runs := l.all()
				if r[0].Status != messages.StatusOK || r[0].Attempt != 3 || len(runs) != 3 {
					t.Fatalf("%d runs, result %+v", len(runs), r[0])
				}
				for n, pause := range []time.Duration{4 * time.Second, 8 * time.Second} {
					if took := runs[n+1].at.Sub(runs[n].at); took < pause/2 || took > pause+time.Second {
						t.Errorf("pause %d took %v, want half to the whole of %v", n+1, took, pause)
					}
					if runs[n+1].key != runs[0].key || promise.Kind == messages.KindWrite && runs[n+1].fence <= runs[n].fence || runs[n+1].attempt != n+2 {
						t.Errorf("attempt %d is %+v after %+v", n+2, runs[n+1], runs[n])
					}
				}
			})
		})
	}
}

// A failure is not retried if the write may run only once, if the error is final, or if the
// attempt was the last one.
func TestFailuresThatAreNotRetried(t *testing.T) {
	for _, row := range []struct {
		name    string
		promise schemas.Tool
		err     error
		want    string
		runs    int
		words   string
	}{
		{"final", schemas.Tool{Kind: messages.KindRead, Retry: schemas.Retry{Attempts: 3}}, &messages.Error{Message: "no"}, "error", 1, "no"},
		{"no policy", schemas.Tool{Kind: messages.KindRead}, &messages.Error{Message: "busy", Retryable: true}, "error", 1, "busy"},
		{"once", schemas.Tool{Kind: messages.KindWrite}, &messages.Error{Message: "busy", Retryable: true}, "error", 1, "busy"},
		{"exhausted", schemas.Tool{Kind: messages.KindRead, Retry: schemas.Retry{Attempts: 3}}, &messages.Error{Message: "busy", Retryable: true}, "error", 3, "attempted 3 times"},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				row.promise.Name = "flaky"
				l := f.recordedTool(row.promise, func(context.Context, int) (tool.Output, error) { return tool.Output{}, row.err })
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				reply := f.run(canonical("s", "b", call{"flaky", ""}))
				f.wantStatuses(reply, row.want)
				f.wantWords(reply.Results[0], row.words)
				if len(l.all()) != row.runs || reply.Results[0].Attempt != row.runs {
					t.Errorf("it ran %d times in attempt %d, want %d", len(l.all()), reply.Results[0].Attempt, row.runs)
				}
			})
		})
	}
}

// A call fails, and its next attempt could start only after the batch's time limit or end of
// life. The call ends at once.
func TestNoRetryAfterTheEndOfTheBatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		l := f.recordedTool(schemas.Tool{Name: "flaky", Kind: messages.KindRead, Retry: schemas.Retry{Attempts: 3, BackoffMS: 60_000, MaxBackoffMS: 60_000}},
			func(context.Context, int) (tool.Output, error) { return busy("rate_limited") })
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		short := canonical("s", "b", call{"flaky", ""})
		short.TimeoutMS = 20_000
		began := time.Now()
		reply := f.run(short)
		f.wantStatuses(reply, "error")
		f.wantWords(reply.Results[0], "busy")
		if took := time.Since(began); took > time.Second || len(l.all()) != 1 {
			t.Errorf("%d runs, %v until the end", len(l.all()), took)
		}
	})
}

// The worker of a failed attempt and its coordinator are lost in the pause before the next
// attempt. Another worker makes that attempt.
func TestTheWorkerIsLostInThePause(t *testing.T) {
	for _, promise := range []schemas.Tool{{Kind: messages.KindRead}, {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}} {
		t.Run(string(promise.Kind), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				promise.Name, promise.Retry = "flaky", schemas.Retry{Attempts: 3, BackoffMS: 20_000, MaxBackoffMS: 20_000}
				l := f.recordedTool(promise, func(_ context.Context, n int) (tool.Output, error) {
					if n == 1 {
						return busy("rate_limited")
					}
					return tool.Text("done"), nil
				})
				kill := f.killableWorker(worker.Config{})
				die := f.killableCoordinator(coordinator.Config{})
				b := canonical("s", "b", call{"flaky", ""})
				f.submit(b)
				f.hasRun(l, 1)
				time.Sleep(time.Second)
				kill()
				die() // kills the coordinator too
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				f.wantStatuses(f.reply(b, time.Minute), "ok")
				if len(l.all()) != 2 {
					t.Errorf("%d runs, want 2", len(l.all()))
				}
			})
		})
	}
}

// A call is released after a failed attempt, and its next job is lost. The poll publishes the
// job again.
func TestTheJobOfAReleasedCallIsLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		l := f.recordedTool(schemas.Tool{Name: "flaky", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, Retry: schemas.Retry{Attempts: 2, BackoffMS: 4000}},
			func(_ context.Context, n int) (tool.Output, error) {
				if n == 1 {
					return busy("rate_limited")
				}
				return tool.Text("done"), nil
			})
		w := f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"flaky", ""})
		f.submit(b)
		f.hasRun(l, 1)
		w.stop()
		f.until("the job of the first attempt is gone", func() bool { return f.messageCount(bus.Jobs) == 0 })
		jobs := f.conn.Names().Stream(bus.Jobs)
		var job bus.Msg
		f.until("the job is published again", func() bool {
			var err error
			job, err = f.conn.First(context.Background(), jobs, "toolfleet.write.>")
			return err == nil
		})
		if err := f.conn.Delete(context.Background(), jobs, job.Seq); err != nil {
			t.Fatal(err)
		}
		f.worker(worker.Config{})
		f.wantStatuses(f.reply(b, time.Minute), "ok")
	})
}

// A worker is lost in the middle of a checkable write. The probe's answer decides what
// happens.
func TestTheProbeDecides(t *testing.T) {
	for _, row := range []struct {
		name    string
		applied bool
		err     error
		want    string
		runs    int
	}{
		{"applied", true, nil, "ok", 1},
		{"not applied", false, nil, "ok", 2},
		{"nobody knows", false, fmt.Errorf("no route"), "outcome_unknown", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				l := f.recordedTool(schemas.Tool{Name: "book", Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable}, func(ctx context.Context, n int) (tool.Output, error) {
					if n == 1 {
						return waitForStop(ctx)
					}
					return tool.Text("booked"), nil
				})
				lost := make(chan struct{})
				l.probe = func(ctx context.Context, n int) (bool, error) {
					if n == 1 { // the lost worker probes too, but its answer is lost
						close(lost)
						<-ctx.Done()
						return false, ctx.Err()
					}
					return row.applied, row.err
				}
				kill := f.killableWorker(worker.Config{})
				f.coordinator(coordinator.Config{})
				b := canonical("s", "b", call{"book", `{"n":1}`})
				f.submit(b)
				f.hasRun(l, 1)
				kill()
				<-lost // the lost worker could not renew its lease
				f.worker(worker.Config{})
				reply := f.reply(b, 2*time.Minute)
				f.wantStatuses(reply, row.want)
				runs := l.all()
				if len(runs) != row.runs || l.asked() != 2 {
					t.Errorf("%d runs and %d probes, want %d and 2", len(runs), l.asked(), row.runs)
				}
				if len(runs) == 2 && (runs[1].key != runs[0].key || runs[1].fence <= runs[0].fence) {
					t.Errorf("run again as %+v after %+v", runs[1], runs[0])
				}
			})
		})
	}
}

// A run of a checkable write is stopped by its timeout. Its worker probes at once whether the
// write was applied.
func TestATimedOutCheckableWriteIsProbed(t *testing.T) {
	for applied, want := range map[bool]string{true: "ok", false: "timeout"} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			l := f.recordedTool(schemas.Tool{Name: "book", Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable, TimeoutMS: 3000}, func(ctx context.Context, _ int) (tool.Output, error) { return waitForStop(ctx) })
			l.probe = func(context.Context, int) (bool, error) { return applied, nil }
			f.worker(worker.Config{})
			f.coordinator(coordinator.Config{})
			f.wantStatuses(f.run(canonical("s", "b", call{"book", ""})), want)
			if len(l.all()) != 1 || l.asked() != 1 {
				t.Errorf("%d runs, %d probes", len(l.all()), l.asked())
			}
		})
	}
}

// A worker takes over a lost checkable write and is stopped during the probe. The next worker
// probes again.
func TestATakeoverThatIsStoppedIsProbedAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		l := f.recordedTool(schemas.Tool{Name: "book", Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable}, func(ctx context.Context, n int) (tool.Output, error) { return waitForStop(ctx) })
		l.probe = func(ctx context.Context, n int) (bool, error) {
			if n < 3 {
				<-ctx.Done()
				return false, ctx.Err()
			}
			return true, nil
		}
		kill := f.killableWorker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"book", ""})
		f.submit(b)
		f.hasRun(l, 1)
		kill()
		second := f.worker(worker.Config{Drain: time.Millisecond})
		f.until("the second worker probes", func() bool { return l.asked() == 2 })
		second.stop()
		f.worker(worker.Config{})
		f.wantStatuses(f.reply(b, 2*time.Minute), "ok")
		if len(l.all()) != 1 {
			t.Errorf("it ran %d times", len(l.all()))
		}
	})
}

// An idempotent write is stopped while it runs, so it may have been applied. If it cannot run
// again under the same key, its result must not say that it was not applied.
func TestAStoppedWriteMayHaveBeenApplied(t *testing.T) {
	for _, row := range []struct {
		name string
		then func(f *fleet)
	}{
		{"no other worker", func(*fleet) {}},
		{"aborted", func(f *fleet) { f.abort("s", "b") }},
		{"denied by the next worker", func(f *fleet) { f.worker(worker.Config{Rules: denyAll()}) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				l := f.recordedTool(schemas.Tool{Name: "make", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, func(ctx context.Context, n int) (tool.Output, error) {
					if n == 1 {
						return waitForStop(ctx)
					}
					return tool.Text("made"), nil
				})
				first := f.worker(worker.Config{Drain: time.Millisecond})
				f.coordinator(coordinator.Config{})
				b := canonical("s", "b", call{"make", ""})
				f.submit(b)
				f.hasRun(l, 1)
				first.stop()
				row.then(f)
				f.wantStatuses(f.reply(b, 10*time.Minute), "outcome_unknown")
				if len(l.all()) != 1 {
					t.Errorf("it ran %d times", len(l.all()))
				}
			})
		})
	}
}

// A write is stopped while it runs, and its hook would make other arguments for the next
// attempt. Other arguments mean another idempotency key, so that the effect could happen
// twice. The hook does not run again, and the call keeps its arguments.
func TestAStoppedWriteKeepsItsArguments(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var asked atomic.Int32
		number := hook.Hook{Name: "number", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
			return hook.Verdict{Input: json.RawMessage(fmt.Sprintf(`{"n":%d}`, asked.Add(1)))}, nil
		}}
		l := f.recordedTool(schemas.Tool{Name: "make", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent}, func(ctx context.Context, n int) (tool.Output, error) {
			if n == 1 {
				return waitForStop(ctx)
			}
			return tool.Text("made"), nil
		})
		first := f.worker(worker.Config{Drain: time.Millisecond, Hooks: hooks(t, number)})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"make", ""})
		f.submit(b)
		f.hasRun(l, 1)
		first.stop()
		f.worker(worker.Config{Hooks: hooks(t, number)})
		f.wantStatuses(f.reply(b, 10*time.Minute), "ok")
		runs := l.all()
		if len(runs) != 2 || runs[0].key != runs[1].key || runs[0].input != `{"n":1}` || runs[1].input != runs[0].input || asked.Load() != 1 {
			t.Errorf("the hook ran %d times; runs: %+v", asked.Load(), runs)
		}
	})
}

// A write ends with an unknown outcome. The setting after_unknown decides whether the later
// writes of its batch are skipped or run.
func TestAfterUnknown(t *testing.T) {
	for policy, want := range map[coordinator.AfterUnknown]string{
		coordinator.Stop: "outcome_unknown ok skipped ok skipped", coordinator.Continue: "outcome_unknown ok ok ok ok",
	} {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			f := newFleet(t, srv)
			defer f.close()
			f.recordedTool(schemas.Tool{Name: "pay", Kind: messages.KindWrite, TimeoutMS: 1000}, func(ctx context.Context, n int) (tool.Output, error) {
				if n == 1 {
					return waitForStop(ctx)
				}
				return tool.Text("paid"), nil
			})
			var reads atomic.Int64
			sleepTool(f, "look", messages.KindRead, time.Minute, "", &reads)
			f.worker(worker.Config{})
			f.coordinator(coordinator.Config{AfterUnknown: policy})
			reply := f.run(canonical("s", "b", call{"pay", ""}, call{"look", ""}, call{"pay", ""}, call{"look", ""}, call{"pay", ""}))
			f.wantStatuses(reply, want)
			if policy == coordinator.Stop {
				f.wantWords(reply.Results[2], "earlier write")
			}
			f.wantStatuses(f.run(canonical("s", "next", call{"pay", ""})), "ok")
		})
	}
}
