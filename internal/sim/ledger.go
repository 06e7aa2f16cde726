package sim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// ledger is the outside view: what really ran, and the rules that it must keep. It is looked at by
// nobody in the fleet.
type ledger struct {
	*agreements
	fleet    *Fleet
	batches  map[wire.BatchKey]*account
	order    []*account                  // as accepted
	aborted  map[wire.BatchKey]time.Time // when the newest abort of a batch by its id was stored
	lost     map[wire.CallKey]int        // deliveries of a job that were lost with their worker, at most
	controls map[string][]control        // by session
}

// control is something that was said to a session.
type control struct {
	record wire.ControlRecord
	at     time.Time
}

// account is what happened to one batch.
type account struct {
	sub     *Submission
	seq     uint64          // in the log, when it was first accepted
	at      time.Time       // when that was
	reply   *messages.Reply // the stored one
	replied time.Time       // when it was stored
	// By call:
	runs    [][]*run
	claimed []bool
	ended   []bool // has, or had, a terminal record
	durable []bool // which survives power loss
	aborted bool   // by its id, before it was accepted: no call of it runs
	// What was stored as the end of a call, by call: in its own journal, in a plan record, and
	// among the results.
	recorded, planned []*messages.Result
	results           [][]messages.Result
}

// run is one run of a tool.
type run struct {
	worker  *world.Process
	attempt int
	index   int
	tool    string
	call    messages.CallID
	takes   time.Duration
	started time.Time
	done    bool // it came to its end
	dead    bool // it was killed
	claimed bool // under a claim
	fails   bool
	again   bool // it fails so that nothing was applied, and another attempt may do better
}

// violation is a rule that was broken.
type violation string

func (v violation) Error() string { return string(v) }

func newLedger(f *Fleet) *ledger {
	return &ledger{agreements: newAgreements(), fleet: f, batches: map[wire.BatchKey]*account{}, aborted: map[wire.BatchKey]time.Time{}, lost: map[wire.CallKey]int{}, controls: map[string][]control{}}
}

func (l *ledger) fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// stored is told of everything that a stream takes.
func (l *ledger) stored(m *broker.Message) {
	switch body := m.Body.(type) {
	case *Submission:
		if l.batches[body.Key] == nil { // else it was taken before, and runs nothing
			n := len(body.Plan.Calls)
			a := &account{
				sub: body, seq: m.Seq, at: m.Time, runs: make([][]*run, n), ended: make([]bool, n), durable: make([]bool, n), claimed: make([]bool, n),
				recorded: make([]*messages.Result, n), planned: make([]*messages.Result, n), results: make([][]messages.Result, n),
			}
			if at, was := l.aborted[body.Key]; was && m.Time.Sub(at) <= BatchTTL {
				a.aborted = true
				l.fleet.Count("batches aborted before they came")
			}
			l.batches[body.Key] = a
			l.order = append(l.order, a)
		}
	case wire.Job:
		l.published(wire.KeyOf(messages.OneTenant, body.Session, body.Batch).Call(body.Index), body)
	case wire.ControlRecord:
		tenant, session, err := names.Session(m.Subject)
		l.meansTheLog(session, body, m.Time)
		l.controls[session] = append(l.controls[session], control{body, m.Time})
		id, _ := body.Batch()
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
	case wire.PlanRecord:
		if len(body.Calls) > 0 { // only the first record has them
			l.isFirst(m)
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
		for i, result := range body.Results { // a person may answer later what nobody asks any more
			l.isStored(a, i, result)
		}
	}
}

// isFirst holds what is stored to its subject, which takes one message only.
func (l *ledger) isFirst(m *broker.Message) {
	stream := map[wire.Verb]string{wire.VerbResult: resultsStream, wire.VerbFinal: repliesStream}[verbOf(m.Subject)]
	if stream == "" {
		stream = callsStream
	}
	if len(l.fleet.Stream(stream).All(m.Subject)) > 1 {
		l.fail("%s holds a message, and another is stored", m.Subject)
	}
}

func (l *ledger) batch(subject string) *account {
	_, key, err := names.Batch(subject)
	if err != nil {
		panic(err)
	}
	return l.batches[key]
}

func (l *ledger) call(subject string) (*account, int) {
	_, key, err := names.Call(subject)
	if err != nil {
		panic(err)
	}
	return l.batches[key.BatchKey], key.Index
}

// began is told of every run that starts, and holds it to the rules.
func (l *ledger) began(a *attempt) *run {
	account := l.batches[a.key.BatchKey]
	i := a.key.Index
	if account == nil {
		l.fail("call %s runs, and its batch was never accepted", a.key)
	}
	if account.aborted {
		l.fail("call %s runs, and its batch was aborted before it was accepted", a.key)
	}
	l.inOrder(account, i)
	l.mayStart(a)
	l.isClaimed(a)
	if a.lost >= poison {
		l.fail("call %s runs, and its job has lost %d workers", a.key, a.lost)
	}
	before := account.runs[i]
	if len(before) > 0 && a.claims() {
		l.mayRepeat(a, before[len(before)-1])
	}
	r := &run{
		worker: a.Process, claimed: a.claims(), attempt: a.grant.Attempt, index: i, tool: a.job.Tool, call: a.job.CallID,
		started: a.Now, takes: l.takes(a.claims()), fails: l.fleet.Rng.IntN(12) == 0,
	}
	if n := len(before); n > 0 && before[n-1].again { // what has failed is likely to fail again
		r.fails = l.fleet.Rng.IntN(2) == 0
	}
	r.again = r.fails && l.fleet.Rng.IntN(2) == 0
	l.fleet.Count("runs")
	if account.ended[i] {
		l.fleet.Count("runs after the end")
	}
	if l.fleet.Disturbed.IsZero() && !a.claims() && len(before) >= attempts*l.fleet.shape.Coordinators {
		l.fail("nothing goes wrong, and call %s is run for the %d. time; its tool has %d attempts", a.key, len(before)+1, attempts)
	}
	if len(before) > 0 && !(before[len(before)-1].done && before[len(before)-1].again) {
		l.fleet.Count("runs again")
	}
	l.fleet.Logf(a.Name, "RUNS", "%s, for %v", a.key, r.takes)
	account.runs[i] = append(before, r)
	return r
}

// isClaimed holds a start to its claim: it is in the journal, and it was when the tool was started.
func (l *ledger) isClaimed(a *attempt) {
	if !a.claims() {
		return
	}
	for _, s := range l.chain[a.key] {
		if s.seq == a.grant.Fence && s.record.State == wire.Claimed && s.record.Worker == a.Name && s.record.Attempt == a.grant.Attempt {
			return
		}
	}
	l.fail("call %s runs as attempt %d under fence %d, and its journal holds no such claim", a.key, a.grant.Attempt, a.grant.Fence)
}

// takes is how long a run takes: mostly a moment, sometimes longer than a lease.
func (l *ledger) takes(write bool) time.Duration {
	rng := l.fleet.Rng
	switch {
	case rng.IntN(3) > 0:
		return time.Duration(rng.IntN(50)) * time.Millisecond
	case write:
		return time.Duration(rng.IntN(25000)) * time.Millisecond
	}
	return time.Duration(rng.IntN(4500)) * time.Millisecond
}

// over is told of every run that ends, however it does: before the end of its lease, by the grace,
// unless its worker slept.
func (l *ledger) over(a *attempt) {
	until := a.run.started
	for _, m := range l.fleet.Stream(callsStream).All(names.OfCall(wire.VerbCall, a.key)) {
		if record := m.Body.(wire.CallRecord); record.Attempt == a.run.attempt && record.State != wire.Ended {
			until = m.Time.Add(Lease - Grace)
		}
	}
	if a.claims() && a.Now.After(until) && a.Slept.Before(until) {
		l.fail("the run of call %s at %s went on for %v after the time its lease gave it", a.key, a.Name, a.Now.Sub(until))
	}
}

// end is the result of a run that came to its end, or was stopped in the middle.
func (r *run) end(now time.Time, stopped bool) messages.Result {
	r.done, r.dead = !now.Before(r.started.Add(r.takes)), stopped
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

// inOrder holds a start to guarantee 2: every call of an earlier stage has ended, and where one of
// the two is alone the result is durable. Every earlier batch of the session is answered; a call
// that may run beside others starts when what runs alone in them has ended durably. A call that has
// ended itself may run again: that is a read whose result was delivered twice, and what it says is
// not heard.
func (l *ledger) inOrder(a *account, i int) {
	call := a.sub.Plan.Calls[i]
	if a.ended[i] && !call.Claims() {
		return
	}
	handedBack := l.fleet.handsBack(call.PlannedCall.Tool)
	for j, other := range a.sub.Plan.Calls {
		before := other.Stage < call.Stage
		if other.Stage == call.Stage && handedBack { // it runs at the end of its stage, after those before it that do too
			before = j != i && (j < i || !l.fleet.handsBack(other.PlannedCall.Tool))
		}
		switch {
		case !before || other.Refused != nil:
		case !a.ended[j]:
			l.fail("call %d of %s starts before call %d has ended", i, a.sub.Key, j)
		case (!call.ConcurrencySafe || handedBack || !other.ConcurrencySafe || l.fleet.handsBack(other.PlannedCall.Tool)) && !a.durable[j]:
			l.fail("call %d of %s starts on the result of call %d, which is not durable", i, a.sub.Key, j)
		case j < i && call.Claims() && (!call.ConcurrencySafe || handedBack) && a.isUnknown(j):
			l.fail("call %d of %s starts, and what became of call %d before it is unknown", i, a.sub.Key, j)
		}
	}
	alone := !call.ConcurrencySafe || handedBack
	for _, other := range l.order {
		if other == a {
			return
		}
		if other.sub.Key.Session != a.sub.Key.Session || other.reply != nil {
			continue
		}
		if alone {
			l.fail("call %d of %s starts, and %s before it is not answered", i, a.sub.Key, other.sub.Key)
		}
		l.fleet.Count("overlaps")
		for j, before := range other.sub.Plan.Calls {
			if (!before.ConcurrencySafe || l.fleet.handsBack(before.PlannedCall.Tool)) && before.Refused == nil && !other.durable[j] {
				l.fail("call %d of %s starts, and call %d of %s before it has not ended durably", i, a.sub.Key, j, other.sub.Key)
			}
		}
	}
}

// mayRepeat holds a second run to guarantee 3: the tool allows it, and the run before is dead or
// its lease and grace are over.
func (l *ledger) mayRepeat(a *attempt, before *run) {
	if before.done && before.again {
		l.fleet.Count("retries of writes")
		return // nothing was applied
	}
	l.fleet.Count("takeovers")
	if a.job.Kind == messages.KindWrite && l.fleet.tool(a.job.Tool).OnCrash != messages.OnCrashIdempotent {
		l.fail("%s of call %s, which may run once, is started again", a.job.Tool, a.key)
	}
	if before.done || before.dead || !l.alive(before.worker) {
		return
	}
	var newest time.Time
	for _, m := range l.fleet.Stream(callsStream).All(names.OfCall(wire.VerbCall, a.key)) {
		if m.Body.(wire.CallRecord).Attempt != before.attempt {
			continue
		}
		if over := m.Time.Add(Lease + Grace); a.Now.Before(over) {
			l.fail("call %s is started again by %s; %s may run it for another %v", a.key, a.Name, before.worker.Name, over.Sub(a.Now))
		}
		newest = m.Time
	}
	if before.worker.Slept.Before(newest.Add(Lease - Grace)) {
		l.fail("call %s is started again by %s; %s, which was awake, still runs it", a.key, a.Name, before.worker.Name)
	}
}

func (l *ledger) alive(p *world.Process) bool {
	for _, other := range l.fleet.Processes {
		if other == p {
			return true
		}
	}
	return false
}

// atTheEnd holds the whole to guarantee 1: no batch that was accepted is without its reply.
func (l *ledger) atTheEnd() {
	for _, a := range l.order {
		if a.reply == nil {
			l.fail("%s was accepted and has no reply", a.sub.Key)
		}
		l.isWhole(a) // still
		l.fleet.Count("batches")
		for _, r := range a.reply.Results {
			l.fleet.Count("results: " + string(r.Status))
		}
	}
}

// isOver holds the moment of a reply to guarantee 2: every call has a terminal record, and no
// claimed run goes on, since the next write of the session may start now.
func (l *ledger) isOver(a *account) {
	if a.sub.Refused {
		return
	}
	for i, call := range a.sub.Plan.Calls {
		if call.Refused == nil && !a.ended[i] {
			l.fail("%s is answered, and its call %d has not ended", a.sub.Key, i)
		}
		for _, r := range a.runs[i] {
			lapses := r.worker.Slept
			for _, m := range l.fleet.Stream(callsStream).All(names.OfCall(wire.VerbCall, a.sub.Key.Call(i))) {
				if record := m.Body.(wire.CallRecord); record.Attempt == r.attempt && (record.State == wire.Claimed || record.State == wire.Renewed) {
					lapses = m.Time.Add(Lease)
				}
			}
			if r.claimed && !r.done && !r.dead && l.alive(r.worker) && l.fleet.Now.Before(lapses) {
				l.fail("%s is answered, and %s still runs its call %d", a.sub.Key, r.worker.Name, i)
			}
		}
	}
}

// isWhole holds a reply to guarantees 1 and 3.
func (l *ledger) isWhole(a *account) {
	if r := a.reply; (r.Status == messages.ReplyRefused) != a.sub.Refused || len(r.Results) != len(a.sub.Plan.Calls) {
		l.fail("%s has %d calls and %d results (%s)", a.sub.Key, len(a.sub.Plan.Calls), len(r.Results), r.Status)
	}
	for i, result := range a.reply.Results {
		l.isTrue(a, i, result)
		l.isWanted(a, i, result)
	}
}

// isUnknown reports whether the end of a call is stored, and is that its outcome is unknown.
func (a *account) isUnknown(i int) bool {
	return a.recorded[i] != nil && a.recorded[i].Status == messages.StatusOutcomeUnknown
}

// isStored holds the result of a call to what is stored of its end: its own journal counts before a
// plan record, and that before the results. What a power loss took back was stored all the same.
// Where several drive a batch, one may know the result of a read that was taken back, and another
// have stored the next one in a record: both are true.
func (l *ledger) isStored(a *account, i int, r messages.Result) {
	call, alone := a.sub.Plan.Calls[i], l.fleet.shape.Coordinators == 1
	stored := a.results[i]
	for _, s := range []struct {
		result *messages.Result
		counts bool
	}{{a.planned[i], alone}, {a.recorded[i], alone || call.Claims()}} {
		switch {
		case s.result == nil:
		case s.counts:
			stored = []messages.Result{*s.result}
		default:
			stored = append(slices.Clone(stored), *s.result)
		}
	}
	if call.Refused == nil && !slices.ContainsFunc(stored, func(s messages.Result) bool { return equal(s, r) }) {
		l.fail("the result of call %d of %s (%s, attempt %d) is none that is stored: %+v", i, a.sub.Key, r.Status, r.Attempt, stored)
	}
}

func equal(a, b messages.Result) bool {
	a.WasConcurrent, b.WasConcurrent = false, false // the reply says it, from all results
	return bytes.Equal(rawjson.MustMarshal(a), rawjson.MustMarshal(b))
}

// isWanted holds the result of a call that was not run to what was said: somebody has aborted or
// steered this batch, or an earlier outcome is unknown.
func (l *ledger) isWanted(a *account, i int, r messages.Result) {
	if r.Err == nil {
		return
	}
	unknown := slices.ContainsFunc(a.reply.Results[:i], func(r messages.Result) bool { return r.Status == messages.StatusOutcomeUnknown })
	switch {
	case r.Err.Code == messages.CodeAborted && !l.isSaid(a, world.Never, control.aborts):
		l.fail("call %d of %s is aborted, and nobody has said so", i, a.sub.Key)
	case r.Err.Code == messages.CodeSkipped && !unknown && !l.isSaid(a, world.Never, control.steers):
		l.fail("call %d of %s is skipped, and nobody has said so", i, a.sub.Key)
	}
}

// isSaid reports whether something was said to a batch before that.
func (l *ledger) isSaid(a *account, by time.Time, what func(control, *account) bool) bool {
	return slices.ContainsFunc(l.controls[a.sub.Key.Session], func(c control) bool { return c.at.Before(by) && what(c, a) })
}

func (c control) aborts(a *account) bool {
	return c.record.Aborts(c.at, a.sub.Key.Batch, a.seq, a.at, BatchTTL)
}

func (c control) steers(a *account) bool { return c.record.When != "" && c.record.UpTo >= a.seq }

func (c control) stops(a *account) bool {
	return c.steers(a) && c.record.When == messages.SteerImmediate
}

// meansTheLog holds a control to the log: it means every batch that was there well before it came.
func (l *ledger) meansTheLog(session string, record wire.ControlRecord, at time.Time) {
	for _, a := range l.order {
		if a.sub.Key.Session == session && a.reply == nil && at.Sub(a.at) > slack && record.UpTo < a.seq {
			l.fail("%s was accepted %v ago, and what is said to its session means batches up to %d, not %d", a.sub.Key, at.Sub(a.at), record.UpTo, a.seq)
		}
	}
}

// sends is told of every job that a driver sends, and holds it to what the driver has read when it
// began.
func (l *ledger) sends(d *drive, i int) {
	a := l.batches[d.sub.Key]
	switch {
	case l.isSaid(a, d.born, control.aborts):
		l.fail("%s was aborted before %s began to drive it, and the job of call %d is sent", d.sub.Key, d.Name, i)
	case a.sub.Plan.Calls[i].Claims() && len(l.chain[d.sub.Key.Call(i)]) == 0 && l.isSaid(a, d.born, control.stops):
		l.fail("%s was steered before %s began to drive it, and the job of call %d is sent", d.sub.Key, d.Name, i)
	case a.reply != nil && a.replied.Before(d.born) && a.durable[i]:
		l.fail("%s was answered before %s began to drive it, and the job of call %d is sent", d.sub.Key, d.Name, i)
	}
}

// isTrue holds one result to what really happened.
func (l *ledger) isTrue(a *account, i int, r messages.Result) {
	call, runs := a.sub.Plan.Calls[i], a.runs[i]
	if r.Index != i || r.CallID != call.ID {
		l.fail("result %d of %s is that of call %d (%s)", i, a.sub.Key, r.Index, r.CallID)
	}
	came := false    // the run of the result came to a good end
	applied := false // a run may have changed the world
	for _, run := range runs {
		applied = applied || !run.again || !run.done
		came = came || run.done && !run.fails && (!call.Claims() || run.attempt == r.Attempt)
	}
	switch {
	case r.Err != nil && r.Err.Code == messages.CodeWorkerLost && l.lost[a.sub.Key.Call(i)] < poison:
		l.fail("call %d of %s is given up after %d lost deliveries", i, a.sub.Key, l.lost[a.sub.Key.Call(i)])
	case r.Status == messages.StatusOK && !came:
		l.fail("call %d of %s is reported as done by attempt %d; runs: %d", i, a.sub.Key, r.Attempt, len(runs))
	case r.Status == messages.StatusOutcomeUnknown && !a.claimed[i]:
		l.fail("call %d of %s is reported as unknown, and was never claimed", i, a.sub.Key)
	case r.Err != nil && r.Err.Code == messages.CodeInternal && l.fleet.Tally()["broken drivers"] == 0:
		l.fail("call %d of %s ended with an internal error, and no driver broke", i, a.sub.Key)
	case call.Claims() && applied && r.Err != nil && r.Err.Code == messages.CodeInternal:
		l.fail("call %d of %s is reported as not known to have run, and has run", i, a.sub.Key)
	case call.Claims() && applied && (r.Status == messages.StatusExpired || r.Status == messages.StatusSkipped || r.Status == messages.StatusAborted || r.Status == messages.StatusDenied):
		l.fail("call %d of %s is reported as not run (%s), and has run", i, a.sub.Key, r.Status)
	}
}
