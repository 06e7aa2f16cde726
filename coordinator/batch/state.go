package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// state is the state of a call as far as this driver knows. The package comment has the table
// of states.
type state uint8

const (
	waiting  state = iota // the queue has no job of the call from this driver
	queued                // a job is published, and no worker has reported
	running               // a worker has reported a run, and the newest record is not a claim
	claimed               // a worker's claim is the newest record, live or lapsed
	released              // the job has left the queue; the next one is due at notBefore
	parked                // people are asked whether the call may run
	ending                // the machine has asked for an End, and what is stored is not known yet
	ended                 // the call has a result
)

var stateNames = [...]string{"waiting", "queued", "running", "claimed", "released", "parked", "ending", "ended"}

func (s state) String() string { return stateNames[s] }

// call is what the machine knows about one call, apart from its plan.
type call struct {
	// base is the state without ending and ended. Only become changes it. A call can leave the
	// states ending and ended again: the machine may take an End back, and a stored plan may
	// know a tool that this machine's plan refused.
	base state

	// since is the time of the last sign of life: a worker's report, the end of the pause that
	// the worker asked for, or the first dispatch. It has no meaning in parked. In waiting it
	// has a meaning only if the newest record is a claim.
	since time.Time
	// published says that this driver has published the job, and that the call has held a
	// place in the window since then. It is always true in queued, and never in waiting and
	// parked.
	published bool
	// held says that the job was due in the last step but was not published, because the
	// window was full or an earlier batch came first.
	held      bool
	notBefore time.Time // no dispatch before this time, in any state
	expires   time.Time // when the question expires; only in parked
	endAt     time.Time // when the machine last asked for an End; zero: the call is not ending

	result  *messages.Result // nil until the call has ended
	told    bool             // the end was published to watchers; only in ended
	durable bool             // a record has the result, so it survives a power loss; only in ended

	// The next fields mean the same in every state.

	handedBack bool          // a worker has handed the call back: see Machine.handedBack
	taken      bool          // a worker had the call, and nothing newer is known about it
	unserved   time.Time     // since when no present worker serves the tool; zero: a worker does
	gone       string        // why no other version of the tool can be used, for the model
	stopped    bool          // the machine asked for a Stop
	dispatches int           // how many times this driver has published the job
	attempts   int           // failed attempts of a call that runs without a claim
	waits      time.Duration // how long people get to answer the call's question
	seq        uint64        // of the newest journal record; 0: none
	record     wire.CallRecord
	seen       time.Time // when this driver first saw that record
	claimSeen  time.Time // when this driver first saw a record of the current claim
}

// state returns the state of the call, with ending and ended.
func (c *call) state() state {
	switch {
	case c.result != nil:
		return ended
	case !c.endAt.IsZero():
		return ending
	}
	return c.base
}

// become changes the base state and the fields that depend on it.
func (c *call) become(s state, now time.Time) {
	switch s {
	case waiting, parked:
		c.published = false // no job of the call can be used, so it leaves the window
	case queued:
		c.published = true
	case running, claimed:
		c.since = now
	}
	c.base = s
}

// reported reports whether a worker is known to run the call: it has said so, or it has a
// claim.
func (c *call) reported() bool { return c.base == running || c.base == claimed }

// hasClaim reports whether the newest record is a claim. In the state claimed it always is. In
// waiting, queued and released it may be one, after a worker's hint that contradicts the
// record. The claim protects the call until it lapses.
func (c *call) hasClaim() bool { return isClaim(c.record.State) }

// isClaim reports, from the state of a call's newest record, whether a worker may be running
// the call. It returns true for a record that cannot be read, and for a state that this
// version does not know.
func isClaim(newest wire.CallState) bool {
	switch newest {
	case "", wire.Released, wire.Parked, wire.Granted, wire.Ended:
		return false
	}
	return true
}

// onRecord applies the newest record of a call's journal.
func (m *Machine) onRecord(now time.Time, ev Recorded) {
	c, record := &m.calls[ev.Index], ev.Record
	if ev.Seq <= c.seq {
		return
	}
	if record.State != wire.Renewed || record.Fence != c.record.Fence && record.Fence != c.seq {
		c.claimSeen = now
	}
	c.seq, c.record, c.seen, c.endAt = ev.Seq, record, now, time.Time{}
	if q := record.Approval; q != nil {
		c.waits = max(c.waits, q.Expires.Sub(q.Asked))
	}
	switch {
	case record.State == wire.Parked:
		c.become(parked, now)
		if c.expires = ev.Expires; c.expires.IsZero() { // the record holds no question
			c.expires = now
		}
	case record.State == wire.Released, record.State == wire.Granted: // a worker has to claim it again
		c.become(released, now)
		c.notBefore = now.Add(time.Duration(record.RetryAfterMS) * time.Millisecond)
		c.since = c.notBefore
	case c.hasClaim():
		c.become(claimed, now)
	default:
		c.become(running, now)
		if record.State == wire.Ended && record.Result != nil {
			if m.plan.Calls[ev.Index].Refused != nil && !c.durable { // another driver's plan let it run
				c.result, c.told = nil, false
			}
			m.end(ev.Index, *record.Result)
			c.durable = true
		}
	}
}

// onRunning applies a worker's report that it runs the call. The report has no effect while
// people are asked about the call: the call does not run, so the report is old.
func (m *Machine) onRunning(now time.Time, i int) {
	c := &m.calls[i]
	c.taken = true
	switch {
	case c.base == parked:
	case c.hasClaim():
		c.become(claimed, now)
	default:
		c.become(running, now)
	}
}

// onUnserved records since when no worker has the tool of the call.
func (m *Machine) onUnserved(now time.Time, ev Unserved) {
	switch c := &m.calls[ev.Index]; {
	case !ev.Is:
		c.unserved = time.Time{}
	case c.unserved.IsZero():
		c.unserved = now
	}
	m.calls[ev.Index].gone = ev.Gone
	if c := &m.calls[ev.Index]; m.hasFailed(ev.Index, c) || c.taken && !m.Claims(ev.Index) {
		c.gone = "" // the text in gone says that the call did not run
	}
}

// JobOut reports whether a job of the call is published and may still be in a queue. It is
// false if a claim is live, or newer than the job: then a worker has the call. sign is when a
// worker last reported that it runs the call, or zero if none has since the job was published.
func (m *Machine) JobOut(now time.Time, i int) (sign time.Time, out bool) {
	c := &m.calls[i]
	if !c.published || c.state() == ended || c.base == released || m.live(now, c) || m.silent(c) {
		return sign, false
	}
	if c.base == running {
		sign = c.since
	}
	return sign, true
}

// Fresh reports whether the call has no record: no claim, no question and no end.
func (m *Machine) Fresh(i int) bool { return m.calls[i].seq == 0 }

// onHandedBack makes the call wait for the rest of its stage. Its job cannot be used any more:
// the call must run alone, and the job is in a queue of calls that run together.
func (m *Machine) onHandedBack(now time.Time, i int) {
	c := &m.calls[i]
	if !c.handedBack && c.base != parked {
		c.become(waiting, now)
	}
	c.handedBack = true
}

// handedBack reports whether the call runs alone at the end of its stage, because its final
// input must not run beside others.
//
// It returns false if the stored plan fixes the call. Then no input can make the call
// exclusive, and later batches may already run calls beside it. A worker that hands such a
// call back has another definition of the tool than the plan.
func (m *Machine) handedBack(i int) bool {
	return m.calls[i].handedBack && !(m.planned && m.plan.Calls[i].Fixed)
}

// onLetGo keeps the call waiting for the pause that the worker asked for. After the pause its
// job is published again. The limit on the time in the queue begins anew in three cases: an
// attempt has failed, a worker was lost, or a worker had reported that it runs the call.
// Otherwise the limit continues.
//
// A lost worker counts as a failed attempt, because the broker counts the deliveries of the
// next job from one again. If there is a claim, the lapse of the claim counts instead.
func (m *Machine) onLetGo(now time.Time, ev LetGo) {
	c := &m.calls[ev.Index]
	if !c.published || c.base == released {
		return
	}
	c.notBefore = now.Add(ev.After)
	failed := max(c.attempts, ev.Attempt)
	if ev.Lost && !c.hasClaim() {
		failed++
	}
	c.taken = ev.Lost || c.taken && ev.Attempt <= c.attempts
	if failed > c.attempts || c.reported() {
		c.attempts, c.since = failed, c.notBefore
	}
	c.become(released, now)
}

// end stores the first result of a call. Later results repeat it and are ignored.
func (m *Machine) end(index int, r messages.Result) {
	if c := &m.calls[index]; c.result == nil {
		c.result = &r
	}
}
