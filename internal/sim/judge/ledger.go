package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/store"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Ledger records what really happens, and checks it against the rules.
type Ledger struct {
	*world.World
	*agreements
	fleet        Fleet
	coordinators int
	batches      map[wire.BatchKey]*account
	order        []*account                  // the accounts, in the order in which the log accepted the batches
	aborted      map[wire.BatchKey]time.Time // when the newest abort by the batch's id was stored
	lost         map[wire.CallKey]int        // by call: the most lost deliveries of one job
	controls     map[string][]control        // by session
}

// control is an abort or a steering message that was stored for a session.
type control struct {
	record wire.ControlRecord
	at     time.Time
}

// account records what happened to one batch.
type account struct {
	sub     *Submission
	seq     uint64          // sequence at which the log first accepted the batch
	at      time.Time       // when the log first accepted the batch
	reply   *messages.Reply // the stored reply
	replied time.Time       // when the reply was stored
	// The following fields are by call, except aborted, plan and plannedAt.
	runs      [][]*Run
	claimed   []bool
	ended     []bool             // a record that ends the call is stored, or was
	durable   []bool             // the record that ends the call survives a power loss
	handed    []bool             // the call was handed back
	silent    []bool             // a driver gave the call up after a worker was lost with it
	aborted   bool               // the batch was aborted before it was accepted, so no call may run
	plan      []wire.PlannedCall // the stored plan; nil if none is stored
	plannedAt time.Time          // when the plan was stored
	// sent is when each driver's first job was stored. It has only drivers with a call that
	// has started.
	sent map[string]time.Time
	// The stored ends of each call: recorded in the call's own journal, planned in a plan
	// record, and results in the stream of results.
	recorded, planned []*messages.Result
	results           [][]messages.Result
}

// Run is one run of a tool.
type Run struct {
	worker  *world.Process
	attempt int
	index   int
	tool    string
	call    messages.CallID
	Takes   time.Duration
	started time.Time
	Done    bool // the run ended by itself
	Dead    bool // the run was killed
	claimed bool // the run has a claim
	fails   bool
	again   bool // the run fails without being applied, and another attempt may succeed
}

// Violation is a rule that was broken.
type Violation string

func (v Violation) Error() string { return string(v) }

// New returns the ledger of a fleet with this many coordinators, before the fleet's first
// step.
func New(w *world.World, f Fleet, coordinators int) *Ledger {
	return &Ledger{
		World: w, agreements: newAgreements(), fleet: f, coordinators: coordinators, batches: map[wire.BatchKey]*account{},
		aborted: map[wire.BatchKey]time.Time{}, lost: map[wire.CallKey]int{}, controls: map[string][]control{},
	}
}

// Fail stops the history, because a rule is broken.
func (l *Ledger) Fail(format string, args ...any) { panic(Violation(fmt.Sprintf(format, args...))) }

// Stored records and checks every message that a stream stores.
func (l *Ledger) Stored(m *broker.Message) {
	switch body := m.Body.(type) {
	case *Submission:
		if l.batches[body.Key] == nil { // a batch that was submitted again runs nothing
			n := len(body.Plan.Calls)
			a := &account{
				sub: body, seq: m.Seq, at: m.Time, runs: make([][]*Run, n), ended: make([]bool, n), durable: make([]bool, n), handed: make([]bool, n), silent: make([]bool, n), claimed: make([]bool, n),
				recorded: make([]*messages.Result, n), planned: make([]*messages.Result, n), results: make([][]messages.Result, n),
			}
			if at, was := l.aborted[body.Key]; was && m.Time.Sub(at) <= BatchTTL {
				a.aborted = true
				l.Count("batches aborted before they came")
			}
			l.batches[body.Key] = a
			l.order = append(l.order, a)
		}
	case wire.Job:
		l.published(wire.KeyOf(messages.OneTenant, body.Session, body.Batch).Call(body.Index), body)
	case wire.ControlRecord:
		tenant, session, err := store.Names.Session(m.Subject)
		l.meansTheLog(session, body, m.Time)
		l.controls[session] = append(l.controls[session], control{body, m.Time})
		id, _ := body.AbortTarget()
		if id != "" && err == nil {
			l.aborted[wire.BatchKey{Tenant: tenant, Session: session, Batch: messages.Token(id)}] = m.Time
		}
	case wire.CallRecord:
		a, i := l.call(m.Subject)
		l.follows(a.sub.Key.Call(i), body, m.Seq)
		a.claimed[i] = a.claimed[i] || body.State == wire.Claimed
		if body.State == wire.Ended {
			a.ended[i], a.durable[i], a.recorded[i] = true, true, body.Result
		}
	case messages.Result:
		a, i := l.call(m.Subject)
		l.isFirst(m)
		a.ended[i] = true
		a.results[i] = append(a.results[i], body)
	case wire.HandBack:
		l.isFirst(m)
		a, i := l.call(m.Subject)
		a.handed[i] = true
	case wire.PlanRecord:
		if len(body.Calls) > 0 { // only the first record has the calls
			l.isFirst(m)
			a := l.batch(m.Subject)
			a.plan, a.plannedAt = body.Calls, m.Time
		}
		for _, r := range body.Results {
			a := l.batch(m.Subject)
			a.ended[r.Index], a.durable[r.Index] = true, true
			if a.planned[r.Index] == nil {
				a.planned[r.Index] = &r
			}
		}
	case messages.Reply:
		a := l.batch(m.Subject)
		l.isFirst(m)
		a.reply, a.replied = &body, m.Time
		l.isWhole(a)
		l.isOver(a)
		for i, result := range body.Results { // a person may still answer a question that is closed
			l.isStored(a, i, result)
		}
	}
}

// isFirst checks that the message is the only one under its subject.
func (l *Ledger) isFirst(m *broker.Message) {
	stream := map[wire.Verb]string{wire.VerbResult: store.Results, wire.VerbFinal: store.Replies}[store.VerbOf(m.Subject)]
	if stream == "" {
		stream = store.Calls
	}
	if len(l.Stream(stream).All(m.Subject)) > 1 {
		l.Fail("%s holds a message, and another is stored", m.Subject)
	}
}

func (l *Ledger) batch(subject string) *account {
	_, key, err := store.Names.Batch(subject)
	if err != nil {
		panic(err)
	}
	return l.batches[key]
}

func (l *Ledger) call(subject string) (*account, int) {
	_, key, err := store.Names.Call(subject)
	if err != nil {
		panic(err)
	}
	return l.batches[key.BatchKey], key.Index
}

// Began records the start of a run, and checks it against the rules.
func (l *Ledger) Began(a *Attempt) *Run {
	account := l.batches[a.Key.BatchKey]
	i := a.Key.Index
	if account == nil {
		l.Fail("call %s runs, and its batch was never accepted", a.Key)
	}
	if account.aborted {
		l.Fail("call %s runs, and its batch was aborted before it was accepted", a.Key)
	}
	if !a.Served {
		l.Fail("call %s runs at %s, which does not have its tool in that version", a.Key, a.Name)
	}
	l.inOrder(account, a)
	l.mayStart(a)
	l.isClaimed(a)
	if a.Lost >= Poison {
		l.Fail("call %s runs, and its job has lost %d workers", a.Key, a.Lost)
	}
	before := account.runs[i]
	if len(before) > 0 && a.Claims {
		l.mayRepeat(a, before[len(before)-1])
	}
	r := &Run{
		worker: a.Process, claimed: a.Claims, attempt: a.Grant.Attempt, index: i, tool: a.Job.Tool, call: a.Job.CallID,
		started: a.Now, Takes: l.takes(a.Claims), fails: l.Rng.IntN(12) == 0,
	}
	if n := len(before); n > 0 && before[n-1].again { // a failed call is likely to fail again
		r.fails = l.Rng.IntN(2) == 0
	}
	r.again = r.fails && l.Rng.IntN(2) == 0
	l.Count("runs")
	if account.ended[i] {
		l.Count("runs after the end")
	}
	if l.Disturbed.IsZero() && !a.Claims && len(before) >= Attempts*l.coordinators {
		l.Fail("nothing goes wrong, and call %s is run for the %d. time; its tool has %d attempts", a.Key, len(before)+1, Attempts)
	}
	if len(before) > 0 && !(before[len(before)-1].Done && before[len(before)-1].again) {
		l.Count("runs again")
	}
	l.Logf(a.Name, "RUNS", "%s, for %v", a.Key, r.Takes)
	account.runs[i] = append(before, r)
	return r
}

// isClaimed checks that the journal has the claim under which a run starts.
func (l *Ledger) isClaimed(a *Attempt) {
	if !a.Claims {
		return
	}
	for _, s := range l.chain[a.Key] {
		if s.seq == a.Grant.Fence && s.record.State == wire.Claimed && s.record.Worker == a.Name && s.record.Attempt == a.Grant.Attempt {
			return
		}
	}
	l.Fail("call %s runs as attempt %d under fence %d, and its journal holds no such claim", a.Key, a.Grant.Attempt, a.Grant.Fence)
}

// takes returns a random duration for a run: mostly short, but sometimes longer than a lease.
func (l *Ledger) takes(write bool) time.Duration {
	rng := l.Rng
	switch {
	case rng.IntN(3) > 0:
		return time.Duration(rng.IntN(50)) * time.Millisecond
	case write:
		return time.Duration(rng.IntN(25000)) * time.Millisecond
	}
	return time.Duration(rng.IntN(4500)) * time.Millisecond
}

// Over records the end of a run. The run must end at least one grace before its lease ends,
// unless the worker slept.
func (l *Ledger) Over(a *Attempt) {
	until := a.Run.started
	for _, m := range l.Stream(store.Calls).All(store.Names.OfCall(wire.VerbCall, a.Key)) {
		if record := m.Body.(wire.CallRecord); record.Attempt == a.Run.attempt && record.State != wire.Ended {
			until = m.Time.Add(Lease - Grace)
		}
	}
	if a.Claims && a.Now.After(until) && a.Slept.Before(until) {
		l.Fail("the run of call %s at %s went on for %v after the time its lease gave it", a.Key, a.Name, a.Now.Sub(until))
	}
}

// End returns the result of a run that has ended by itself or was stopped.
func (r *Run) End(now time.Time, stopped bool) messages.Result {
	r.Done, r.Dead = !now.Before(r.started.Add(r.Takes)), stopped
	result := messages.Result{
		Index: r.index, CallID: r.call, Tool: r.tool, Attempt: r.attempt, Started: r.started,
		DurationMS: float64(now.Sub(r.started).Milliseconds()), Status: messages.StatusOK,
	}
	switch {
	case stopped && r.claimed:
		r.again = false
		result.Status, result.Outcome = messages.StatusOutcomeUnknown, messages.Failed(messages.CodeOutcomeUnknown, "stopped")
	case stopped:
		result.Status, result.Outcome = messages.StatusAborted, messages.Failed(messages.CodeAborted, "stopped")
	case r.fails:
		result.Status, result.Outcome = messages.StatusError, messages.Failed(messages.CodeToolError, "no")
		result.Err.Retryable = r.again
	}
	return result
}

// inOrder checks the start of a run against guarantee 2:
//
//   - Every call of an earlier stage has ended. If one of the two calls runs alone, the
//     end is durable.
//   - Earlier batches of the session are answered. For a call that may run beside others,
//     less is enough: the plans of the earlier batches are stored, and each call in them that
//     could run alone has ended durably.
//
// A read that has ended may run again if its job was delivered twice. Its second result is
// ignored.
func (l *Ledger) inOrder(a *account, at *Attempt) {
	i := at.Key.Index
	call := a.plannedCall(i)
	if first, known := a.sent[at.Job.Notify]; !known || at.Queued.Before(first) {
		if a.sent == nil {
			a.sent = map[string]time.Time{}
		}
		a.sent[at.Job.Notify] = at.Queued
	}
	if a.ended[i] && !call.Claims() {
		return
	}
	handedBack := staff.HandsBack(at.Job.Tool)
	alone := !at.Job.ConcurrencySafe || handedBack || staff.Alone(at.Job.Tool, at.Job.ToolDigest)
	switch {
	case alone && a.plan == nil:
		l.Fail("call %d of %s starts, runs alone, and no plan is stored", i, a.sub.Key)
	case alone || call.ConcurrencySafe && !a.replanned(a.sent[at.Job.Notify]): // else the driver had another plan
		l.inStage(a, i, handedBack)
	}
	for _, other := range l.order {
		if other == a {
			return
		}
		if other.sub.Key.Session != a.sub.Key.Session || other.reply != nil {
			continue
		}
		if alone {
			l.Fail("call %d of %s starts, and %s before it is not answered", i, a.sub.Key, other.sub.Key)
		}
		if other.plan == nil {
			l.Fail("call %d of %s starts, and no plan of %s before it is stored", i, a.sub.Key, other.sub.Key)
		}
		l.Count("overlaps")
		for j, before := range other.plan {
			if !staff.Fixed(before.Tool, before.ToolDigest) && before.Refused == nil && !other.durable[j] {
				l.Fail("call %d of %s starts, and call %d of %s before it has not ended durably", i, a.sub.Key, j, other.sub.Key)
			}
		}
	}
}

// replanned reports whether a plan with other stages was stored after a time. If all calls of
// a batch are reads that overlap, its driver stores no plan, so the next driver may plan with
// other definitions. Jobs of the first driver then still run in the stages of the first
// driver's plan: see docs/rough-edges.md.
func (a *account) replanned(after time.Time) bool {
	return a.plan != nil && after.Before(a.plannedAt) && slices.ContainsFunc(a.plan, func(c wire.PlannedCall) bool {
		return c.Stage != a.sub.Plan.Calls[c.Index].Stage
	})
}

// inStage checks the start of a run against the stages of its own batch.
func (l *Ledger) inStage(a *account, i int, handedBack bool) {
	call := a.plannedCall(i)
	for j := range a.sub.Plan.Calls {
		other := a.plannedCall(j)
		before := other.Stage < call.Stage
		// A call that was handed back runs at the end of its stage, after earlier calls that
		// were handed back.
		if other.Stage == call.Stage && handedBack {
			before = j != i && (j < i || !staff.HandsBack(other.PlannedCall.Tool))
		}
		switch {
		case !before || other.Refused != nil:
		case !a.ended[j]:
			l.Fail("call %d of %s starts before call %d has ended", i, a.sub.Key, j)
		case (!call.ConcurrencySafe || handedBack || !other.ConcurrencySafe || a.handed[j]) && !a.durable[j]:
			l.Fail("call %d of %s starts on the result of call %d, which is not durable", i, a.sub.Key, j)
		case j < i && call.Claims() && (!call.ConcurrencySafe || handedBack) && a.isUnknown(j):
			l.Fail("call %d of %s starts, and what became of call %d before it is unknown", i, a.sub.Key, j)
		}
	}
}

// plannedCall returns a call of the stored plan. If no plan is stored, it returns the call of
// the plan with the first version of every tool.
func (a *account) plannedCall(i int) plan.Call {
	call := a.sub.Plan.Calls[i]
	if a.plan != nil {
		call.PlannedCall = a.plan[i]
	}
	return call
}

// mayRepeat checks a second run of a call against guarantee 3. The tool must allow a second
// run. The first run must be dead, or its lease and grace must be over.
func (l *Ledger) mayRepeat(a *Attempt, before *Run) {
	if before.Done && before.again {
		l.Count("retries of writes")
		return // the run before has applied nothing
	}
	l.Count("takeovers")
	if a.Job.Kind == messages.KindWrite && staff.Tool(a.Job.Tool).OnCrash != messages.OnCrashIdempotent {
		l.Fail("%s of call %s, which may run once, is started again", a.Job.Tool, a.Key)
	}
	if before.Done || before.Dead || !l.Alive(before.worker) {
		return
	}
	var newest time.Time
	for _, m := range l.Stream(store.Calls).All(store.Names.OfCall(wire.VerbCall, a.Key)) {
		if r := m.Body.(wire.CallRecord); r.Attempt != before.attempt || !isClaim(r) { // such a record has no lease
			continue
		}
		if over := m.Time.Add(Lease + Grace); a.Now.Before(over) {
			l.Fail("call %s is started again by %s; %s may run it for another %v", a.Key, a.Name, before.worker.Name, over.Sub(a.Now))
		}
		newest = m.Time
	}
	if before.worker.Slept.Before(newest.Add(Lease - Grace)) {
		l.Fail("call %s is started again by %s; %s, which was awake, still runs it", a.Key, a.Name, before.worker.Name)
	}
}

// Lost records how many deliveries of a job were lost with their workers.
func (l *Ledger) Lost(key wire.CallKey, n int) { l.lost[key] = max(l.lost[key], n) }

// AtTheEnd checks guarantee 1: every accepted batch has its reply.
func (l *Ledger) AtTheEnd() {
	for _, a := range l.order {
		if a.reply == nil {
			l.Fail("%s was accepted and has no reply", a.sub.Key)
		}
		l.isWhole(a) // the reply must still have the true results
		l.Count("batches")
		for _, r := range a.reply.Results {
			l.Count("results: " + string(r.Status))
		}
	}
}

// isOver checks guarantee 2 when a reply is stored, because the next write of the session may
// start then. Every call must have a record that ends it, and no claimed run may continue.
func (l *Ledger) isOver(a *account) {
	if a.sub.Refused {
		return
	}
	for i := range a.sub.Plan.Calls {
		if a.plannedCall(i).Refused == nil && !a.ended[i] {
			l.Fail("%s is answered, and its call %d has not ended", a.sub.Key, i)
		}
		for _, r := range a.runs[i] {
			lapses := r.worker.Slept
			for _, m := range l.Stream(store.Calls).All(store.Names.OfCall(wire.VerbCall, a.sub.Key.Call(i))) {
				if record := m.Body.(wire.CallRecord); record.Attempt == r.attempt && (record.State == wire.Claimed || record.State == wire.Renewed) {
					lapses = m.Time.Add(Lease)
				}
			}
			if r.claimed && !r.Done && !r.Dead && l.Alive(r.worker) && l.Now.Before(lapses) {
				l.Fail("%s is answered, and %s still runs its call %d", a.sub.Key, r.worker.Name, i)
			}
		}
	}
}
