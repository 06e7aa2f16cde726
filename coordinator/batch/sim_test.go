package batch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// world is a simple model of what surrounds the machine. It has a journal, workers that may
// take any job that was ever published, and coordinators that may die between any two effects.
// In every history the batch must end with one result per call, and the order of calls must
// hold for every job.
type world struct {
	t    testing.TB
	seed uint64
	rng  *rand.Rand
	now  time.Time
	plan plan.Plan

	plans   []wire.PlanRecord
	records map[int][]wire.CallRecord // journals of calls that need a claim; sequences count across all calls
	seqs    map[int]uint64
	results map[int]messages.Result // results of calls that run without a claim
	seq     uint64
	jobs    map[int]bool // published and not settled

	ran map[int]int // how often the tool of a call was started
}

const window = 3

func config(nonce string) batch.Config {
	return batch.Config{
		Digest: "d", Nonce: nonce, Window: window, FirstPoll: 200 * time.Millisecond, Poll: 3 * time.Second,
		QueueTimeout: time.Minute, Grace: 2 * time.Second, NotAfter: epoch.Add(time.Hour), Waits: time.Hour,
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), now: epoch,
		records: map[int][]wire.CallRecord{}, seqs: map[int]uint64{}, results: map[int]messages.Result{},
		jobs: map[int]bool{}, ran: map[int]int{},
	}
	names := []string{"read", "read", "read", "read", "read", "write", "sum", "nope", "again"}
	var calls []messages.ToolCall
	for i := range w.rng.IntN(14) {
		calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint(i)), Name: names[w.rng.IntN(len(names))], Input: []byte("{}")})
	}
	catalog, err := schemas.NewCatalog(
		schemas.Tool{Name: "read", Kind: messages.KindRead}, schemas.Tool{Name: "sum", Kind: messages.KindCompute},
		schemas.Tool{Name: "write", Kind: messages.KindWrite}, schemas.Tool{Name: "again", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent},
	)
	if err != nil {
		t.Fatal(err)
	}
	w.plan = plan.New(calls, catalog)
	return w
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s", w.seed, fmt.Sprintf(format, args...))
}

// over reports whether the journal shows that a call has ended.
func (w *world) over(i int) bool {
	if w.plan.Calls[i].Refused != nil {
		return true
	}
	if rs := w.records[i]; len(rs) > 0 && rs[len(rs)-1].State == wire.Ended {
		return true
	}
	_, ok := w.results[i]
	return ok
}

// durable reports whether the result of a call would survive the loss of every stream that is
// not synced.
func (w *world) durable(i int) bool {
	if w.plan.Calls[i].Refused != nil || w.plan.Calls[i].Claims() || len(w.records[i]) > 0 {
		return w.over(i)
	}
	for _, p := range w.plans {
		for _, r := range p.Results {
			if r.Index == i {
				return true
			}
		}
	}
	return false
}

func (w *world) write(i int, rec wire.CallRecord, last uint64) bool {
	if w.seqs[i] != last {
		return false
	}
	w.seq++
	w.seqs[i] = w.seq
	w.records[i] = append(w.records[i], rec)
	return true
}

// coordinator is one life of a coordinator with its machine.
type coordinator struct {
	w       *world
	m       *batch.Machine
	backlog []batch.Effect
	done    []messages.Result
}

func (w *world) coordinator(nonce string) *coordinator {
	c := &coordinator{w: w, m: batch.New(w.plan, config(nonce))}
	for n, p := range w.plans {
		c.step(batch.Planned{Record: p, Seq: uint64(n + 1)})
	}
	resumed := len(w.plans) > 0
	resumed = c.look() || resumed
	c.step(batch.Begin{Resumed: resumed, Late: resumed})
	return c
}

func (c *coordinator) step(ev batch.Event) { c.backlog = append(c.backlog, c.m.Step(c.w.now, ev)...) }

func (c *coordinator) look() (found bool) {
	for i := range c.w.plan.Calls {
		if rs := c.w.records[i]; len(rs) > 0 {
			found = true
			told := batch.Recorded{Index: i, Record: rs[len(rs)-1], Seq: c.w.seqs[i]}
			if q := told.Record.Approval; q != nil {
				told.Expires = q.Expires
			}
			c.step(told)
		}
		if r, ok := c.w.results[i]; ok && !c.m.Claims(i) {
			found = true
			c.step(batch.Ended{Index: i, Result: r})
		}
	}
	return found
}

// perform carries out the oldest effect of the backlog, unless it is not wanted any more.
func (c *coordinator) perform() {
	w := c.w
	effect := c.backlog[0]
	c.backlog = c.backlog[1:]
	switch e := effect.(type) {
	case batch.StorePlan:
		if uint64(len(w.plans)) == e.Expect {
			w.plans = append(w.plans, e.Record)
		}
		for n, p := range w.plans {
			c.step(batch.Planned{Record: p, Seq: uint64(n + 1)})
		}
	case batch.Dispatch:
		c.checkDispatch(e)
		w.jobs[e.Index] = true
	case batch.Look:
		c.look()
		c.step(batch.Looked{})
	case batch.End:
		if c.m.Claims(e.Index) {
			w.write(e.Index, wire.CallRecord{State: wire.Ended, Result: &e.Result}, e.Expect)
		} else if _, there := w.results[e.Index]; !there {
			w.results[e.Index] = e.Result
		}
		c.look()
	case batch.Finish:
		c.done = e.Results
	}
}

// checkDispatch checks a job that the machine publishes: the order of calls, the plan record
// before a write, and the window.
func (c *coordinator) checkDispatch(e batch.Dispatch) {
	w := c.w
	p := c.m.Plan()
	for i := range p.Calls[:e.Index] {
		if p.Calls[i].Stage == p.Calls[e.Index].Stage {
			continue
		}
		if !w.over(i) {
			w.fatalf("call %d dispatched while call %d before it is open", e.Index, i)
		}
		if e.Exclusive && !w.durable(i) {
			w.fatalf("exclusive call %d dispatched on call %d whose result is not durable", e.Index, i)
		}
	}
	if e.Exclusive && len(w.plans) == 0 {
		w.fatalf("exclusive call %d dispatched without a stored plan", e.Index)
	}
	open := 0
	for i := range w.plan.Calls {
		if w.jobs[i] && !w.over(i) && i != e.Index {
			open++
		}
	}
	if e.Again == 0 && open >= window && !w.jobs[e.Index] {
		w.fatalf("call %d dispatched beside %d others, window %d", e.Index, open, window)
	}
}

// work plays a worker that takes a job. The worker may die with it.
func (w *world) work(i int) {
	call := w.plan.Calls[i]
	if w.over(i) {
		delete(w.jobs, i)
		return
	}
	result := messages.Result{Index: i, CallID: call.ID, Status: messages.StatusOK, Outcome: messages.Text("ok")}
	if w.parked(i) || len(w.records[i]) == 0 && w.rng.IntN(8) == 0 {
		delete(w.jobs, i)
		if !w.parked(i) {
			q := &messages.Approval{Asked: w.now, Expires: w.now.Add(15 * time.Minute)}
			w.write(i, wire.CallRecord{State: wire.Parked, Approval: q}, w.seqs[i])
		}
		return
	}
	if !call.Claims() && len(w.records[i]) == 0 {
		w.ran[i]++
		if w.rng.IntN(5) > 0 { // otherwise the worker died, and the job stays
			w.results[i] = result
			delete(w.jobs, i)
		}
		return
	}
	attempt := 1
	if rs := w.records[i]; len(rs) > 0 && rs[len(rs)-1].State != wire.Granted {
		// A lapsed claim is taken over only if the promise of the tool allows it. The clock
		// jumps in this model, so every claim counts as lapsed.
		if call.Claims() && call.Tool.OnCrash != messages.OnCrashIdempotent {
			delete(w.jobs, i)
			return
		}
		attempt = rs[len(rs)-1].Attempt + 1
	}
	if !w.write(i, wire.CallRecord{State: wire.Claimed, Attempt: attempt, LeaseMS: 10_000, OnCrash: call.Tool.OnCrash}, w.seqs[i]) {
		return
	}
	w.ran[i]++
	if w.rng.IntN(4) == 0 {
		return // the worker died with the claim
	}
	result.Attempt = attempt
	w.write(i, wire.CallRecord{State: wire.Ended, Attempt: attempt, Result: &result}, w.seqs[i])
	delete(w.jobs, i)
}

func (w *world) parked(i int) bool {
	rs := w.records[i]
	return len(rs) > 0 && rs[len(rs)-1].State == wire.Parked
}

// decide plays people who answer some questions and let others expire.
func (w *world) decide() {
	for i := range w.plan.Calls {
		if w.parked(i) && w.rng.IntN(2) == 0 {
			w.write(i, wire.CallRecord{State: wire.Granted, Approval: w.records[i][len(w.records[i])-1].Approval}, w.seqs[i])
		}
	}
}

func TestWhateverHappensTheBatchEnds(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 300
	}
	rested := 0
	for seed := range seeds {
		w := newWorld(t, seed)
		c := w.coordinator("n0")
		lives := 1
		for step := 0; c.done == nil; step++ {
			if step > 5000 {
				w.fatalf("no end after %d steps: %d of %d calls ended", step, c.m.Ended(), len(w.plan.Calls))
			}
			switch {
			case w.rng.IntN(40) == 0 && lives < 4: // the coordinator dies, and another one replays the journal
				c = w.coordinator(fmt.Sprint("n", lives))
				lives++
			case len(c.backlog) > 0:
				c.perform()
			case len(w.jobs) > 0 && w.rng.IntN(4) > 0:
				open := []int{}
				for i := range w.plan.Calls {
					if w.jobs[i] {
						open = append(open, i)
					}
				}
				i := open[w.rng.IntN(len(open))]
				w.work(i)
				if w.rng.IntN(3) > 0 && w.over(i) { // otherwise the notice is lost
					c.look()
				}
			default:
				if until, rests := c.m.Rest(); rests && until.After(w.now) { // the batch is suspended, and a new machine takes it over later
					w.checkRest()
					rested++
					if w.decide(); w.rng.IntN(3) == 0 {
						w.now = until
					}
					c = w.coordinator(fmt.Sprint("r", step))
					continue
				}
				wake, ok := c.m.Wake()
				if !ok {
					w.fatalf("the machine neither wants anything nor waits for anything")
				}
				if wake.After(w.now) {
					w.now = wake
				}
				c.step(batch.Tick{})
			}
		}
		w.check(c.done)
	}
	if rested == 0 {
		t.Error("no batch ever rested")
	}
}

// checkRest fails the test if the machine rests while a job of the batch is published or while
// no call is parked.
func (w *world) checkRest() {
	waiting := 0
	for i := range w.plan.Calls {
		if w.over(i) {
			continue
		}
		if w.jobs[i] {
			w.fatalf("the machine rests while the job of call %d is out", i)
		}
		if w.parked(i) {
			waiting++
		}
	}
	if waiting == 0 {
		w.fatalf("the machine rests, and no call waits for a person")
	}
}

func (w *world) check(results []messages.Result) {
	if len(results) != len(w.plan.Calls) {
		w.fatalf("%d results for %d calls", len(results), len(w.plan.Calls))
	}
	for i, r := range results {
		call := w.plan.Calls[i]
		if r.Index != i || r.CallID != call.ID {
			w.fatalf("result %d is of call %d (%q)", i, r.Index, r.CallID)
		}
		if call.Tool.OnCrash == messages.OnCrashOnce && w.ran[i] > 1 {
			w.fatalf("call %d, a write that may run once, ran %d times", i, w.ran[i])
		}
		if r.Status == messages.StatusOK && w.ran[i] == 0 {
			w.fatalf("call %d is reported as done and never ran", i)
		}
		if r.Status == messages.StatusOutcomeUnknown && w.ran[i] == 0 {
			w.fatalf("call %d never ran, yet its outcome is reported as unknown", i)
		}
	}
}

// The machine wants nothing done: the time at which it wants to wake lies in the future.
// Otherwise its driver would loop without a pause.
func TestWakeLiesAhead(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(t, seed)
		c := w.coordinator("n")
		for step := 0; c.done == nil; step++ {
			if step > 5000 {
				w.fatalf("no end")
			}
			if len(c.backlog) > 0 {
				c.perform()
				continue
			}
			wake, ok := c.m.Wake()
			if !ok {
				w.fatalf("the machine waits for nothing and is not done")
			}
			if !wake.After(w.now) {
				w.fatalf("asked to be woken at %v, which is not after now %v", wake.Sub(epoch), w.now.Sub(epoch))
			}
			w.now = wake
			c.step(batch.Tick{})
		}
	}
}
