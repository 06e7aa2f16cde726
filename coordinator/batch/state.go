package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// state says where a call stands, as far as this driver knows. The package comment has the table of
// states and events.
type state uint8

const (
	waiting  state = iota // this driver has no job of it in the queue
	queued                // its job is published, and no worker has reported
	running               // a worker reported a run; the call's newest record is no claim
	claimed               // a worker's claim is the newest record, live or lapsed
	released              // its job left the queue; the next is published at notBefore or later
	parked                // people were asked whether it may run
	ending                // an End was asked for, and what is stored is not known yet
	ended                 // it has a result
)

var stateNames = [...]string{"waiting", "queued", "running", "claimed", "released", "parked", "ending", "ended"}

func (s state) String() string { return stateNames[s] }

// call is what is known about one call beyond its plan.
type call struct {
	// base is the state below ending and ended; only become changes it. Both of those can be taken
	// back: a driver reconsiders an End, and an adopted plan may know a tool that ours refused.
	base state

	// since is the last sign of life: a worker's report, the end of the pause that it asked for, or
	// the first dispatch. It means nothing in parked, nor in waiting without a claim.
	since time.Time
	// published: this driver published its job, and the call has kept its place in the window
	// since. True in queued, false in waiting and parked, either in running, claimed and
	// released.
	published bool
	// held: at the last step its job was due and the window was full. Never true when published.
	held      bool
	notBefore time.Time // of the next dispatch, in every base state; a past time means nothing
	expires   time.Time // parked: when its question does
	endAt     time.Time // ending: when an End was last asked for; zero: not ending

	result  *messages.Result // ended: how
	told    bool             // ended: its end was told
	durable bool             // ended: a record has the result, so it survives power loss

	// What follows means the same in every state.

	// handedBack: its input is stricter than its plan, so it runs alone at the end of its stage.
	handedBack bool
	stopped    bool          // a Stop was asked for
	dispatches int           // how often this driver published its job
	attempts   int           // that failed, of a call that does not claim
	waits      time.Duration // the time that people were given for its question
	seq        uint64        // of the newest journal record; 0: none
	record     wire.CallRecord
	seen       time.Time // when this driver first saw that record
	claimSeen  time.Time // when it first saw the claim that the record continues
}

// state is the state of the call, ending and ended included.
func (c *call) state() state {
	switch {
	case c.result != nil:
		return ended
	case !c.endAt.IsZero():
		return ending
	}
	return c.base
}

// become changes the base state and what goes with it.
func (c *call) become(s state, now time.Time) {
	switch s {
	case waiting, parked:
		c.published = false // no job of it is of use: the place in the window is free
	case queued:
		c.published = true
	case running, claimed:
		c.since = now
	}
	c.base = s
}

// reported reports whether a worker said that it runs the call, and has not given it up since.
func (c *call) reported() bool { return c.base == running || c.base == claimed }

// hasClaim reports whether the newest record is a claim. It is in claimed, and also in waiting,
// queued and released when a worker's hint contradicted the record: then too the claim protects the
// call until it lapses.
func (c *call) hasClaim() bool { return isClaim(c.record.State) }

// isClaim reports whether a worker may be running the call whose newest record has this state. An
// unknown state, also that of a record that cannot be read, counts as a claim.
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
			m.end(ev.Index, *record.Result)
			c.durable = true
		}
	}
}

// onRunning applies a worker's report that it runs the call. A parked call does not run: the report
// is late.
func (m *Machine) onRunning(now time.Time, i int) {
	switch c := &m.calls[i]; {
	case c.base == parked:
	case c.hasClaim():
		c.become(claimed, now)
	default:
		c.become(running, now)
	}
}

// onHandedBack makes the call wait for the rest of its stage. Its job is of no more use: it was for
// a lane that the call may not use.
func (m *Machine) onHandedBack(now time.Time, i int) {
	c := &m.calls[i]
	if !c.handedBack && c.base != parked {
		c.become(waiting, now)
	}
	c.handedBack = true
}

// onLetGo has the job published again after the pause. Without a failed attempt the call still
// waits for its first worker, and its patience is not renewed.
func (m *Machine) onLetGo(now time.Time, ev LetGo) {
	c := &m.calls[ev.Index]
	if !c.published || c.base == released {
		return
	}
	c.notBefore = now.Add(ev.After)
	if ev.Attempt > c.attempts || c.reported() {
		c.attempts, c.since = max(c.attempts, ev.Attempt), c.notBefore
	}
	c.become(released, now)
}

// end keeps the first result of a call. Later ones repeat it.
func (m *Machine) end(index int, r messages.Result) {
	if c := &m.calls[index]; c.result == nil {
		c.result = &r
	}
}
