package attempt

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// leaseState is the state of a claim's lease.
type leaseState uint8

const (
	unclaimed leaseState = iota // no claim is stored, or the attempt is closed
	kept                        // the next renewal is not due yet
	renewing                    // a renewal is being written
	lost                        // the claim may have lapsed, and is not renewed any more
)

var leaseNames = [...]string{"unclaimed", "kept", "renewing", "lost"}

func (s leaseState) String() string { return leaseNames[s] }

// lease is the lease of the attempt's claim. It is renewed each time a third of it has
// passed, until the end of the call is stored. If a renewal fails, it is tried again
// sooner. The worker counts the lease from the time before it sends the write. The coordinator
// counts it from a later time, so the lease never ends later for the worker than for the
// coordinator.
//
//	unclaimed -> kept                 the claim is stored
//	unclaimed -> renewing             the claim is stored, and storing it took long
//	kept      -> renewing             a third of the lease is over
//	renewing  -> kept                 stored, or failed with time left for another try
//	renewing  -> lost                 another writer's record came first
//	kept, renewing -> lost            until is reached: the tool must be dead
type lease struct {
	state leaseState
	until time.Time // the tool must be dead by then; zero: no tool has started
	next  time.Time // when the next renewal is due, in the state kept
	// record is the newest renewal, and asked is when its first try was sent.
	record wire.CallRecord
	asked  time.Time
	bound  time.Time // when the tries of the renewal end; zero: no limit
	count  int       // number of renewals, so that each has another nonce
}

// keep sets the lease and the time of the next renewal.
func (l *lease) keep(until, next time.Time) { l.state, l.until, l.next = kept, until, next }

func (l *lease) wake() time.Time {
	switch {
	case l.state == kept && l.next.Before(l.until):
		return l.next
	case l.state == kept, l.state == renewing:
		return l.until
	}
	return time.Time{}
}

// holds reports whether this attempt has claimed the call.
func (m *Machine) holds() bool { return m.lease.state != unclaimed }

// tickLease ends a run whose lease was not renewed in time, and renews a lease that is due.
func (m *Machine) tickLease() {
	l := &m.lease
	switch {
	// While the connection hangs, no answer comes. Only the clock shows that the lease is
	// over.
	case (l.state == kept || l.state == renewing) && reached(m.now, l.until):
		m.loseLease(fmt.Errorf("%w in time", ErrLeaseLost))
	case l.state == kept && reached(m.now, l.next):
		// This try ends well before the lease, so that another one can follow.
		m.renew(m.now.Add(m.cfg.Lease / 5))
	}
}

// renew writes a renewal after this attempt's newest record.
func (m *Machine) renew(bound time.Time) {
	m.lease.state, m.lease.asked, m.lease.bound = renewing, m.now, bound
	m.writeRenewal()
}

func (m *Machine) writeRenewal() {
	l := &m.lease
	l.count++
	l.record = m.record
	l.record.State, l.record.Nonce = wire.Renewed, fmt.Sprintf("%s-%d", m.call.Nonce, l.count)
	m.do(Write{l.record, m.last, l.bound})
}

// renewed reports whether an answer belongs to the newest renewal.
func (m *Machine) renewed(nonce string) bool {
	return m.lease.record.Nonce != "" && nonce == m.lease.record.Nonce
}

func (m *Machine) renewalStored(seq uint64) {
	l := &m.lease
	m.last, m.record = seq, l.record
	switch {
	case l.state != renewing: // the lease is lost already, or the attempt is closed
	case m.state == Claiming:
		m.granted(l.asked)
	default:
		l.keep(l.asked.Add(m.cfg.Lease-m.cfg.Grace), l.asked.Add(m.cfg.Lease/3))
		m.alive()
	}
}

// renewalOvertaken handles a record that was stored before a renewal. It may be an earlier
// renewal of this attempt, whose acknowledgement was lost. Then another renewal is written
// after it. If it is another writer's record, the lease is lost.
func (m *Machine) renewalOvertaken(newest Entry) {
	switch {
	case m.isOurs(newest):
		m.last, m.record = newest.Seq, newest.Record
		if m.lease.state == renewing {
			m.writeRenewal()
		}
	case m.lease.state != renewing:
	// The newest record is the end or the release that this attempt itself is writing. The
	// answer to that write is still to come.
	case newest.Record.Nonce == m.writing.Nonce:
		m.lease.state = lost
	default:
		m.loseLease(fmt.Errorf("%w: another record is the newest: %s at %d", ErrLeaseLost, newest.Record.State, newest.Seq))
	}
}

func (m *Machine) renewalFailed(err error) {
	switch l := &m.lease; {
	case l.state != renewing:
	case m.state == Claiming:
		m.loseLease(fmt.Errorf("%w: %v", ErrLeaseLost, err))
	default:
		l.keep(l.until, m.now.Add(min(250*time.Millisecond, m.cfg.Lease/10)))
	}
}

// loseLease cancels a run whose claim may have lapsed.
func (m *Machine) loseLease(why error) {
	m.lease.state = lost
	m.do(Count{LeaseMissed})
	claiming := m.state == Claiming
	m.cancel(why)
	if claiming {
		m.refuse(m.cause)
	}
}

// isOurs reports whether a record is a renewal of this attempt's claim.
func (m *Machine) isOurs(e Entry) bool {
	return e.Record.State == wire.Renewed && e.Record.Fence == m.record.Fence && m.record.Fence != 0
}
