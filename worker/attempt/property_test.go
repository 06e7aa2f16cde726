package attempt_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

var seeds = flag.Uint64("attempt.seeds", 5000, "how many random attempts are run")

// TestAnyEventAtAnyTime gives machines random events in random order. Nothing panics, the
// phases start at most once, and no claim gets two answers. The delivery is settled at most
// once, as the last effect.
func TestAnyEventAtAnyTime(t *testing.T) {
	for seed := range *seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := &scenario{TB: t, now: epoch}
		kind := []string{"read", "write", "write takeover=5"}[rng.IntN(3)]
		s.begin(strings.Fields(kind))
		count, stored := map[string]int{}, false
		for range 60 {
			event := every[rng.IntN(len(every))]
			over := s.m.State() == attempt.Over
			list := strings.Fields(event)
			if d, err := time.ParseDuration(strings.TrimPrefix(list[0], "+")); err == nil {
				s.now, list = s.now.Add(d), list[1:]
			}
			count[list[0]]++
			stored = stored || list[0] == "stored" && s.m.State() == attempt.Claiming
			for _, effect := range s.m.Step(s.now, s.event(list[0], parse(list[1:]))) {
				s.show(effect)
				count[fmt.Sprintf("%T", effect)]++
				if _, refuse := effect.(attempt.Refuse); over && !refuse {
					t.Fatalf("seed %d: %T after the end", seed, effect)
				}
				if _, grant := effect.(attempt.Grant); grant && s.m.Claims() && !stored {
					t.Fatalf("seed %d: granted without a stored claim", seed)
				}
			}
		}
		if count["attempt.Run"] > 1 || count["attempt.Settle"] > 1 || count["attempt.Close"] > 1 {
			t.Fatalf("seed %d: want at most one Run, Settle and Close, got %v", seed, count)
		}
		if asked := count["wanted"]; count["attempt.Grant"]+count["attempt.Refuse"] > asked {
			t.Fatalf("seed %d: more answers than claims that were wanted: %v", seed, count)
		}
	}
}

// TestAnAttemptKeepsTheRules runs machines with a shell that carries out their effects on a
// model of one call's journal. Answers get lost or come late, and other writers store records
// first. At random times the call is stopped and the worker drains.
func TestAnAttemptKeepsTheRules(t *testing.T) {
	ends := map[string]int{}
	for seed := range *seeds {
		w := newWorld(t, seed)
		w.run()
		ends[w.end]++
	}
	t.Log(ends)
	for _, how := range []string{"ack", "term", "nak", "left"} {
		if ends[how] == 0 && *seeds >= 1000 {
			t.Errorf("no attempt ended with %s", how)
		}
	}
}

// world is the model of TestAnAttemptKeepsTheRules: one attempt, its shell and its journal.
type world struct {
	*testing.T
	seed  uint64
	rng   *rand.Rand
	now   time.Time
	m     *attempt.Machine
	queue []later // what happens later, in no order
	log   []string

	records []stored         // of the call's journal
	result  *messages.Result // the stored result of a call that runs without a claim
	back    bool             // whether a hand-back is stored
	nonces  map[string]string
	known   uint64 // sequence of the newest own record that the machine knows of

	runs, settles int
	cancelled     bool
	drained       time.Time
	running       bool // whether the tool runs
	wants         int  // claims that wait for a grant or a refusal
	end           string
	openMain      int // open requests to the journal, without writes
}

type stored struct {
	attempt.Entry
	at time.Time
}

// later is something that happens at a time.
type later struct {
	at time.Time
	do func()
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 2))
	w := &world{T: t, seed: seed, rng: rng, now: epoch, nonces: map[string]string{}}
	kind, takeOver, dispatch := messages.KindWrite, uint64(0), rng.IntN(2)
	if rng.IntN(3) == 0 {
		kind = messages.KindRead
	} else if rng.IntN(3) == 0 {
		before := wire.CallRecord{State: wire.Released, Nonce: "before", Attempt: 1, ArgsHash: "h", OnCrash: messages.OnCrashOnce}
		takeOver, dispatch = w.append(before), 1
	}
	job := wire.Job{Session: "s", Batch: "b", CallID: "c", Tool: "t", Kind: kind, Notify: "co", Dispatch: dispatch, TakeOver: takeOver, NotAfter: epoch.Add(time.Hour)}
	w.m = attempt.New(config(), attempt.Call{
		Job: job, Key: wire.KeyOf("_", "s", "b").Call(0), Claims: kind == messages.KindWrite, Attempts: 3,
		Backoff: func(int) time.Duration { return time.Second }, Nonce: "n", Jitter: rng.Float64(),
	})
	w.after(0, func() {
		w.step(attempt.Delivered{Count: 1 + rng.IntN(3)*rng.IntN(3), Seq: 1, Notify: "co", Served: rng.IntN(20) > 0, Queued: w.now, Now: w.now})
	})
	if rng.IntN(4) == 0 {
		w.after(w.any(20), func() { w.step(attempt.Stopped{}) })
	}
	if rng.IntN(3) == 0 {
		w.after(w.any(20), func() { w.drained = w.now; w.step(attempt.Draining{}) })
	}
	if rng.IntN(4) == 0 {
		w.after(w.any(30), w.other)
	}
	return w
}

// any returns a random time below the given number of seconds. In half of the cases the time
// is below one second.
func (w *world) any(seconds int) time.Duration {
	if w.rng.IntN(2) == 0 {
		seconds = 1
	}
	return time.Duration(w.rng.IntN(seconds*1000)) * time.Millisecond
}

func (w *world) after(d time.Duration, do func()) { w.queue = append(w.queue, later{w.now.Add(d), do}) }

func (w *world) fail(format string, args ...any) {
	w.Helper()
	w.Fatalf("seed %d: %s\n%s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

func (w *world) run() {
	for steps := 0; w.m.State() != attempt.Over; steps++ {
		if steps > 2000 {
			w.fail("no end after 2000 steps")
		}
		wake, next := w.m.Wake(), -1
		for i, l := range w.queue {
			if next < 0 || l.at.Before(w.queue[next].at) {
				next = i
			}
		}
		switch {
		case !wake.IsZero() && (next < 0 || wake.Before(w.queue[next].at)):
			w.now = maxTime(w.now, wake)
			w.step(attempt.Tick{})
		case next < 0:
			w.fail("nothing is on its way in state %s", w.m.State())
		default:
			l := w.queue[next]
			w.queue = slices.Delete(w.queue, next, next+1)
			w.now = maxTime(w.now, l.at)
			l.do()
		}
		w.leaseHolds()
	}
	if w.settles != 1 || w.wants > 0 || w.running {
		w.fail("settled %d times, %d claims without an answer, a tool runs: %v", w.settles, w.wants, w.running)
	}
	// After the drain, the attempt has to end: writes are repeated for LastWords at most, and each
	// answer comes within 5 s. 40 s are well above the sum.
	if !w.drained.IsZero() && w.now.Sub(w.drained) > 40*time.Second {
		w.fail("over %v after the drain", w.now.Sub(w.drained))
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leaseHolds checks the run of a call that needs a claim: the run ends before the lease that
// the journal has for the claim.
func (w *world) leaseHolds() {
	if !w.running || !w.m.Claims() {
		return
	}
	for _, s := range slices.Backward(w.records) {
		if s.Record.Nonce == "n" || strings.HasPrefix(s.Record.Nonce, "n-") {
			if end := s.at.Add(config().Lease - config().Grace); w.now.After(end) {
				w.fail("the tool runs %v past the end of its lease", w.now.Sub(end))
			}
			return
		}
	}
	w.fail("the tool runs without a stored claim")
}

func (w *world) step(ev attempt.Event) {
	w.log = append(w.log, fmt.Sprintf("%v in state %s: %T", w.now.Sub(epoch), w.m.State(), ev))
	for _, effect := range w.m.Step(w.now, ev) {
		w.log = append(w.log, "  "+(&scenario{TB: w, now: w.now}).show(effect))
		w.perform(effect)
	}
}

func (w *world) perform(effect attempt.Effect) {
	switch e := effect.(type) {
	case attempt.Begin:
		w.after(0, func() { w.step(attempt.Began{}) })
	case attempt.Run:
		w.runs++
		if w.runs > 1 {
			w.fail("a second run")
		}
		w.cancelled = e.Cause != nil
		w.phases()
	case attempt.Grant:
		w.wants--
		w.tool()
	case attempt.Refuse:
		w.wants--
		w.after(0, func() { w.step(attempt.Ended{Err: e.Err}) })
	case attempt.Cancel:
		w.cancelled = true
		if w.running {
			w.running = false
			cause := e.Cause
			w.after(w.any(2), func() {
				if w.rng.IntN(2) == 0 {
					w.step(attempt.Ended{Err: cause})
					return
				}
				w.step(attempt.Ended{Result: messages.Result{Status: messages.StatusOutcomeUnknown, Attempt: 1, Outcome: messages.Failed(messages.CodeOutcomeUnknown, "stopped")}})
			})
		}
	case attempt.Notify:
		w.truthful(e.Notice)
	case attempt.Close:
		w.after(0, func() { w.step(attempt.Closed{}) })
	case attempt.Settle:
		w.settle(e)
	case attempt.Write:
		w.write(e)
	case attempt.ReadResult, attempt.ReadRecord, attempt.WriteResult, attempt.Offload, attempt.WriteHandBack:
		w.ask(effect)
	}
}

// phases plays the start of the run. At a random time the run asks a person, hands the call
// back, or wants a claim.
func (w *world) phases() {
	w.after(w.any(5), func() {
		switch n := w.rng.IntN(10); {
		case w.cancelled:
			w.step(attempt.Ended{Err: errors.New("cancelled")})
		case n == 0:
			w.step(attempt.Ended{Err: &call.Ask{ArgsHash: "h"}})
		case n == 1 && !w.m.Claims():
			w.step(attempt.Ended{Err: &call.HandBack{ArgsHash: "h"}})
		case n == 2:
			w.step(attempt.Ended{Result: messages.Result{Status: messages.StatusDenied, Outcome: messages.Failed(messages.CodePolicyDenied, "no")}})
		default:
			w.wants++
			w.step(attempt.Wanted{Frozen: call.Frozen{ArgsHash: "h", OnCrash: messages.OnCrashOnce, Deadline: time.Minute}})
		}
	})
}

// tool plays the run of the tool until it has ended or is cancelled.
func (w *world) tool() {
	if w.cancelled {
		w.after(0, func() { w.step(attempt.Ended{Err: errors.New("cancelled")}) })
		return
	}
	w.running = true
	w.leaseHolds()
	w.after(w.any(40), func() {
		if !w.running {
			return // the tool was cancelled meanwhile
		}
		w.running = false
		r := messages.Result{Status: messages.StatusOK, Attempt: 1, Outcome: messages.Text("done")}
		switch w.rng.IntN(4) {
		case 0:
			r.Status, r.Outcome = messages.StatusError, messages.Failed(messages.CodeToolError, "busy")
			r.Err.Retryable = true
		case 1:
			r.Outcome = messages.Text(strings.Repeat("x", 300_000))
		}
		w.step(attempt.Ended{Result: r})
	})
}

// truthful checks that a notice names only records and results that are stored.
func (w *world) truthful(n wire.Notice) {
	switch {
	case n.Result != nil && w.result == nil && w.newest().Record.State != wire.Ended:
		w.fail("a result is announced that is not stored")
	case n.Record != nil && !slices.ContainsFunc(w.records, func(s stored) bool { return s.Seq == n.Seq && s.Record.State == n.Record.State }):
		w.fail("a record is announced that is not stored: %s at %d", n.Record.State, n.Seq)
	case n.Hand != nil && !w.back:
		w.fail("a hand-back is announced that is not stored")
	}
}

// settle checks that a delivery is settled only when the job has done its part.
func (w *world) settle(s attempt.Settle) {
	w.settles++
	newest := w.newest().Record
	switch s.How {
	case attempt.Ack:
		w.end = "ack"
		if state := newest.State; w.result == nil && state != wire.Ended && state != wire.Released && state != wire.Parked && len(w.records) < 2 {
			w.fail("acknowledged, and nothing is stored")
		}
	case attempt.Term:
		w.end = "term"
		if w.running {
			w.fail("given up, and a tool runs")
		}
	case attempt.Nak:
		w.end = "nak"
		if s.After < config().AckWait/3 {
			w.fail("comes again after %v", s.After)
		}
		if w.m.Claims() && newest.Nonce == "n" {
			w.fail("given back, and the claim is held")
		}
	case attempt.Unsettled:
		w.end = "left"
	}
}

func (w *world) newest() attempt.Entry {
	if len(w.records) == 0 {
		return attempt.Entry{}
	}
	return w.records[len(w.records)-1].Entry
}

func (w *world) append(r wire.CallRecord) uint64 {
	seq := w.newest().Seq + 1 + uint64(w.rng.IntN(3))
	w.records = append(w.records, stored{attempt.Entry{Seq: seq, Record: r}, w.now})
	return seq
}

// other plays another writer, which stores a claim or an end of the call.
func (w *world) other() {
	if w.newest().Record.State == wire.Ended {
		return
	}
	state := []wire.CallState{wire.Claimed, wire.Ended}[w.rng.IntN(2)]
	r := wire.CallRecord{State: state, Nonce: "other", Worker: "w0", Attempt: 1}
	if state == wire.Ended {
		r.Result = &messages.Result{Status: messages.StatusAborted}
	}
	w.append(r)
}

// write plays the journal's compare-and-set of a record. Its answer may be lost, and the write
// may arrive late.
func (w *world) write(e attempt.Write) {
	r := e.Record
	if e.Behind < w.known {
		w.fail("%s is written behind %d, and %d is known", r.State, e.Behind, w.known)
	}
	if state, used := w.nonces[r.Nonce]; used && (state != string(r.State) || r.State == wire.Renewed) {
		w.fail("the nonce %s of a %s record is used again for %s", r.Nonce, state, r.State)
	}
	w.nonces[r.Nonce] = string(r.State)
	seq := uint64(0)
	arrive := func() {
		if w.newest().Seq == e.Behind {
			seq = w.append(r)
		}
	}
	answer := func() {
		newest := w.newest()
		switch {
		case seq > 0 || newest.Record.Nonce == r.Nonce:
			if newest.Record.Nonce == r.Nonce {
				seq = newest.Seq
			}
			w.known = max(w.known, seq)
			w.step(attempt.Stored{Nonce: r.Nonce, Seq: seq})
		case newest.Seq > e.Behind:
			// A writer has to know only the renewals of its own attempt. The journal refuses a
			// write behind another writer's record, so that does no harm.
			if newest.Record.State == wire.Renewed && strings.HasPrefix(newest.Record.Nonce, "n-") {
				w.known = max(w.known, newest.Seq)
			}
			w.step(attempt.Overtaken{Nonce: r.Nonce, Newest: newest})
		default:
			w.step(attempt.Failed{Nonce: r.Nonce, Err: errors.New("no answer")})
		}
	}
	unknown := func() { w.step(attempt.Failed{Nonce: r.Nonce, Err: errors.New("no answer")}) }
	switch n := w.rng.IntN(10); {
	case n < 7:
		w.after(0, arrive)
		w.after(w.any(2), answer)
	case n == 7: // the write is lost
		w.after(w.any(5), unknown)
	case n == 8: // the write is stored, and the answer is lost
		w.after(0, arrive)
		w.after(w.any(5), unknown)
	default: // the write arrives late
		w.after(w.any(10), arrive)
		w.after(w.any(5), unknown)
	}
}

// ask plays the journal's answers to all requests but Write.
func (w *world) ask(question attempt.Effect) {
	w.openMain++
	if w.openMain > 1 {
		w.fail("two requests to the journal at a time")
	}
	w.after(w.any(3), func() {
		w.openMain--
		if w.rng.IntN(5) == 0 {
			w.step(attempt.Failed{Err: errors.New("no answer")})
			return
		}
		switch q := question.(type) {
		case attempt.ReadResult:
			w.step(attempt.ResultRead{Result: w.result})
		case attempt.ReadRecord:
			w.step(attempt.RecordRead{Newest: w.newest()})
		case attempt.WriteResult:
			if w.result == nil {
				w.result = &q.Result
			}
			w.step(attempt.Stored{Result: w.result})
		case attempt.Offload:
			q.Result.Outcome, q.Result.Ref = messages.Outcome{}, &messages.Ref{Digest: "x"}
			w.step(attempt.Stored{Result: &q.Result})
		case attempt.WriteHandBack:
			w.back = true
			w.step(attempt.Stored{})
		}
	})
}
