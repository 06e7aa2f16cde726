package judge

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// agreements is the part of the ledger about people: what each person has signed, which
// answers the people got, and what ran afterwards.
type agreements struct {
	decidedAt map[string]time.Time      // when a decision was stored, by the nonce of its record
	yes       map[words]map[string]bool // the people who have signed for exactly these words
	settled   map[askedAt]int           // how many people were told that they settled the question
	chain     map[wire.CallKey][]stored // all records of a call
	jobs      map[wire.CallKey]time.Time
	slowest   time.Duration // the longest time between a grant and its job
	nextLook  time.Time
}

// words is what a person agrees to: these arguments of this call under this policy.
type words struct {
	key              wire.CallKey
	argsHash, policy string
}

type askedAt struct {
	key wire.CallKey
	at  time.Time
}

type stored struct {
	record wire.CallRecord
	seq    uint64
	at     time.Time
}

func newAgreements() *agreements {
	return &agreements{
		decidedAt: map[string]time.Time{}, yes: map[words]map[string]bool{}, settled: map[askedAt]int{}, chain: map[wire.CallKey][]stored{},
		jobs: map[wire.CallKey]time.Time{},
	}
}

// Said records a decision that a person has signed.
func (l *Ledger) Said(key wire.CallKey, d messages.Decision) {
	hash := d.ArgsHash
	l.Logf("", "SIGNS", "%s: %s to %s", d.By, d.Verdict, key)
	switch d.Verdict {
	case messages.VerdictDeny:
		return
	case messages.VerdictEdit:
		hash = HashOf(d.Input)
	}
	w := words{key, hash, d.Policy}
	if l.yes[w] == nil {
		l.yes[w] = map[string]bool{}
	}
	l.yes[w][d.By] = true
}

// Told checks the answer to a person's decision. At most one decision settles a question, and
// the journal must have that decision.
func (l *Ledger) Told(key wire.CallKey, q messages.Approval, d messages.Decision, answer messages.DecisionAnswer) {
	if answer.Error != nil {
		l.Count("decisions refused: " + string(answer.Error.Class))
		return
	}
	l.Count("decisions: " + string(answer.State))
	if answer.State == messages.DecisionWaiting {
		return
	}
	at := askedAt{key, q.Asked}
	if l.settled[at]++; l.settled[at] > 1 {
		l.Fail("two people were told that the question about call %s has its answer by them", key)
	}
	want := map[messages.DecisionState]wire.CallState{messages.DecisionGranted: wire.Granted, messages.DecisionDenied: wire.Ended}[answer.State]
	for _, s := range l.chain[key] {
		if a := s.record.Approval; s.record.State == want && a != nil && a.Asked.Equal(q.Asked) && len(a.Decisions) > 0 && a.Decisions[len(a.Decisions)-1].Nonce == d.Nonce {
			return
		}
	}
	l.Fail("%s was told that the question about call %s is %s, and the journal does not say so", d.By, key, answer.State)
}

// Decided records when a decision was stored, by the nonce of its record.
func (l *Ledger) Decided(nonce string) { l.decidedAt[nonce] = l.Now }

// follows checks a new record of a call against the earlier ones.
func (l *Ledger) follows(key wire.CallKey, next wire.CallRecord, seq uint64) {
	chain, now := l.chain[key], l.Now
	var last wire.CallRecord
	if len(chain) > 0 {
		last = chain[len(chain)-1].record
	}
	code := messages.Code("")
	if r := next.Result; r != nil && r.Err != nil {
		code = r.Err.Code
	}
	open := last.State == wire.Parked
	if newest := claims(chain); next.State == wire.Claimed && next.Attempt != newest+1 {
		l.Fail("call %s is claimed as attempt %d, after attempt %d", key, next.Attempt, newest)
	}
	if next.State == wire.Claimed && lapsed(chain) >= Lapses-1 && isClaim(last) {
		l.Fail("call %s is claimed, and %d workers were lost while they ran it", key, lapsed(chain)+1)
	}
	switch {
	case last.State == wire.Ended:
		l.Fail("call %s has ended, and %s follows", key, next.State)
	case open && next.State != wire.Parked && next.State != wire.Granted && next.State != wire.Ended:
		l.Fail("call %s waits for a person, and %s follows", key, next.State)
	case !open && (next.State == wire.Granted || code == messages.CodeDeniedByUser):
		l.Fail("call %s is decided (%s %s), and no question is open", key, next.State, code)
	case open && code == messages.CodeApprovalExpired && now.Before(last.Approval.Expires):
		l.Fail("the question about call %s has %v left, and has expired", key, last.Approval.Expires.Sub(now))
	case next.State == wire.Parked && !open && next.Approval.Policy == grantedUnder(chain):
		l.Fail("people have agreed to call %s, and are asked again under the same policy", key)
	case open && (next.State == wire.Granted || code == messages.CodeDeniedByUser) && !l.decidedAt[next.Nonce].Before(last.Approval.Expires):
		l.Fail("the question about call %s had expired when it was answered", key)
	case next.State == wire.Granted && next.Approval.Asked != last.Approval.Asked:
		l.Fail("call %s is granted by the answer to another question", key)
	}
	l.chain[key] = append(chain, stored{next, seq, now})
	if next.State == wire.Parked { // the first question, or one for another person
		l.Count("questions")
		l.fleet.Asked(key, *next.Approval)
	}
}

// claims returns the highest attempt that was claimed, or 0.
func claims(chain []stored) (newest int) {
	for _, s := range chain {
		if s.record.State == wire.Claimed {
			newest = max(newest, s.record.Attempt)
		}
	}
	return newest
}

// lapsed counts the claims of a call that another claim took over.
func lapsed(chain []stored) (n int) {
	for i := 1; i < len(chain); i++ {
		if chain[i].record.State == wire.Claimed && isClaim(chain[i-1].record) {
			n++
		}
	}
	return n
}

func isClaim(r wire.CallRecord) bool { return r.State == wire.Claimed || r.State == wire.Renewed }

// Slowest returns the longest time between a grant and the job that follows it.
func (l *Ledger) Slowest() time.Duration { return l.slowest }

// grantedUnder returns the policy of the newest grant, or "".
func grantedUnder(chain []stored) string {
	for _, s := range slices.Backward(chain) {
		if s.record.State == wire.Granted {
			return s.record.Approval.Policy
		}
	}
	return ""
}

// published records a job and checks it against the rules for jobs.
func (l *Ledger) published(key wire.CallKey, job wire.Job) {
	l.jobs[key] = l.Now
	if a := l.batches[key.BatchKey]; job.Kind == messages.KindWrite && (a.plan == nil || a.plan[key.Index].InputHash != wire.InputHash(job.Input)) {
		l.Fail("the job of write %s is published, and no stored plan has its input, so no worker runs it", key)
	}
	s, waits := l.waits(key)
	switch {
	case !waits:
	case s.record.State == wire.Granted:
		l.slowest = max(l.slowest, l.Now.Sub(s.at))
	case s.record.State == wire.Parked && job.TakeOver == s.seq:
		l.Fail("call %s waits for a person, and its job is published", key)
	}
}

// waits returns the newest record of a call, and whether the call has a record.
func (l *Ledger) waits(key wire.CallKey) (stored, bool) {
	chain := l.chain[key]
	if len(chain) == 0 {
		return stored{}, false
	}
	return chain[len(chain)-1], true
}

// mayStart checks the start of a run against the decisions of people. Enough people must have
// agreed to exactly these arguments under this policy. The call must not have ended.
func (l *Ledger) mayStart(a *Attempt) {
	people := staff.People(a.Job.Tool)
	if people == 0 {
		return
	}
	l.Count("runs that were allowed")
	if n := len(l.yes[words{a.Key, a.ArgsHash, a.Policy}]); n < people {
		l.Fail("call %s runs with %s under policy %s, which %d people have agreed to", a.Key, a.Input, a.Policy, n)
	}
	granted := false
	for _, s := range l.chain[a.Key] {
		switch r := s.record; {
		case r.State == wire.Parked:
			granted = false
		case r.State == wire.Granted:
			granted = r.Approval.ArgsHash == a.ArgsHash && r.Approval.Policy == a.Policy
		case r.Result != nil && r.Result.Err != nil && (r.Result.Err.Code == messages.CodeDeniedByUser || r.Result.Err.Code == messages.CodeApprovalExpired):
			l.Fail("call %s runs, and has ended as %s", a.Key, r.Result.Err.Code)
		}
	}
	if !granted {
		l.Fail("call %s runs, and its journal holds no grant of %s", a.Key, a.Input)
	}
}

// restAtMost is the longest time for which no coordinator may read a suspended batch.
const restAtMost = 5 * time.Minute

// slack is added to every time limit of the rules, for lost messages and dying processes.
const slack = 4 * time.Minute

// prompt is the longest time that a person or an agent waits if there is no fault.
const prompt = 2 * time.Minute

// quietSince reports whether there was no fault since this time, and for some time before it.
func (l *Ledger) quietSince(at time.Time) bool {
	return l.calm(at.Add(-prompt)) == l.Now.Sub(at.Add(-prompt))
}

// calm returns how long there has been no fault. It counts from since, or from a later fault.
func (l *Ledger) calm(since time.Time) time.Duration {
	if l.Disturbed.After(since) {
		since = l.Disturbed
	}
	return l.Now.Sub(since)
}

// Look checks the rules about batches that make no progress. A suspended batch must have no
// driver. A decision or control that is stored for it must be applied within restAtMost.
func (l *Ledger) Look() {
	now := l.Now
	if now.Before(l.nextLook) {
		return
	}
	l.nextLook = now.Add(20 * time.Second)
	l.headsMove()
	l.queuesMove()
	for _, a := range l.order {
		if a.reply != nil {
			continue
		}
		if newest, rests := l.rests(a); rests {
			l.isFree(a, newest)
		}
	}
}

// headPatience is how long an answered batch may keep back a later one. Usually the next
// delivery of the later batch makes a coordinator find the answered batch. If that delivery is
// lost, the next sweep finds it.
const headPatience = SweepEvery + 2*AckWait

// headsMove checks guarantee 1 for later batches: an answered batch must not keep back a later
// batch of its session.
func (l *Ledger) headsMove() {
	heads := map[string]*broker.Message{}
	for _, m := range l.Stream(store.Log).Messages() {
		key := m.Body.(*Submission).Key
		head := heads[key.Session]
		if head == nil {
			heads[key.Session] = m
			continue
		}
		replies := l.Stream(store.Replies)
		replied := replies.Last(store.Names.Of(wire.VerbFinal, head.Body.(*Submission).Key))
		if waits := replies.Last(store.Names.Of(wire.VerbFinal, key)) == nil; waits && replied != nil && l.calm(replied.Time) > headPatience && l.calm(m.Time) > headPatience {
			l.Fail("%s was answered %v ago, is still in the log, and %s waits for it", head.Body.(*Submission).Key, l.Now.Sub(replied.Time), key)
		}
	}
}

// rests reports whether every open call of the current stage waits for people, and since when.
func (l *Ledger) rests(a *account) (since time.Time, rests bool) {
	now, stage := l.Now, -1
	for i := range a.sub.Plan.Calls {
		call := a.plannedCall(i)
		if call.Refused != nil || a.ended[i] || stage >= 0 && call.Stage != stage {
			continue
		}
		stage = call.Stage
		key := a.sub.Key.Call(i)
		s, has := l.waits(key)
		if !has {
			return since, false
		}
		switch age := l.calm(s.at); {
		case s.record.State == wire.Granted && age > restAtMost+slack && l.jobs[key].Before(s.at):
			l.Fail("call %s was granted %v ago, and no job was published since", key, age)
		case s.record.State == wire.Granted && l.quietSince(s.at) && now.Sub(s.at) > prompt && l.jobs[key].Before(s.at):
			l.Fail("call %s was granted %v ago, nothing went wrong, and no job was published since", key, now.Sub(s.at))
		case s.record.State == wire.Parked && l.calm(s.record.Approval.Expires) > slack:
			l.Fail("the question about call %s has expired %v ago, and the call has not ended", key, l.Now.Sub(s.record.Approval.Expires))
		}
		if s.record.State != wire.Parked {
			return since, false
		}
		if s.at.After(since) {
			since = s.at
		}
	}
	return since, stage >= 0
}

// isFree checks a batch that has waited for people since a time: no process may drive it, and
// every control must have been applied.
func (l *Ledger) isFree(a *account, since time.Time) {
	now := l.Now
	for _, d := range l.fleet.Drives(a.sub.Key) {
		if l.Alive(d.Process) && l.calm(since) > slack && l.calm(d.Born) > slack {
			l.Fail("%s only waits for people since %v, and %s drives it since %v", a.sub.Key, now.Sub(since), d.Name, now.Sub(d.Born))
		}
	}
	for _, c := range l.controls[a.sub.Key.Session] {
		if !c.aborts(a) {
			continue
		}
		both := since // when the later of the two was stored
		if c.at.After(both) {
			both = c.at
		}
		if l.calm(both) > restAtMost+slack || l.quietSince(both) && now.Sub(both) > prompt {
			l.Fail("%s was aborted %v ago, and still waits for people", a.sub.Key, now.Sub(c.at))
		}
	}
}
