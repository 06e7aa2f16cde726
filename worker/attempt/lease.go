package attempt

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// leaseState says how things stand with the lease of a claim.
type leaseState uint8

const (
	unclaimed leaseState = iota // there is no claim, or the attempt is closed
	kept                        // the next renewal is due in a while
	renewing                    // a renewal is being written
	lost                        // the claim cannot be proved any more; nothing renews it
)

var leaseNames = [...]string{"unclaimed", "kept", "renewing", "lost"}

func (s leaseState) String() string { return leaseNames[s] }

// lease is the claim's time. It is renewed at every third until the end of the call is stored, and
// more often after a renewal that failed. It counts from before the write was sent, so this worker
// never takes the lease to be longer than the coordinator does.
//
//	unclaimed -> kept                 the claim is stored
//	unclaimed -> renewing             it is stored, and took long
//	kept      -> renewing             a third of the lease is over
//	renewing  -> kept                 stored, or failed with time left for another try
//	renewing  -> lost                 another writer's record came first
//	kept, renewing -> lost            the tool has to be dead by now
type lease struct {
	state leaseState
	until time.Time // the tool must be dead by then; zero: it has not started
	next  time.Time // of the next renewal, in kept
	// record is the newest renewal that was written, and asked is when its first try was sent.
	record wire.CallRecord
	asked  time.Time
	bound  time.Time // of the tries of that renewal; zero: none
	count  int       // of renewals so far, which tells their nonces apart
}

// keep waits for the next renewal.
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

// holds reports whether the call was claimed here.
func (m *Machine) holds() bool { return m.lease.state != unclaimed }

// tickLease ends a run whose lease was not renewed in time, and renews one that needs it.
func (m *Machine) tickLease() {
	l := &m.lease
	switch {
	// Renewals on a silent connection are answered late, so the time alone decides.
	case (l.state == kept || l.state == renewing) && reached(m.now, l.until):
		m.loseLease(fmt.Errorf("%w in time", ErrLeaseLost))
	case l.state == kept && reached(m.now, l.next):
		// Each try has a bound well before the end of the lease, so that another try can follow.
		m.renew(m.now.Add(m.cfg.Lease / 5))
	}
}

// renew writes a new record behind our newest one.
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

// renewed reports whether an answer is that of the newest renewal.
func (m *Machine) renewed(nonce string) bool {
	return m.lease.record.Nonce != "" && nonce == m.lease.record.Nonce
}

func (m *Machine) renewalStored(seq uint64) {
	l := &m.lease
	m.last, m.record = seq, l.record
	switch {
	case l.state != renewing: // too late
	case m.state == Claiming:
		m.granted(l.asked)
	default:
		l.keep(l.asked.Add(m.cfg.Lease-m.cfg.Grace), l.asked.Add(m.cfg.Lease/3))
		m.alive()
	}
}

// renewalOvertaken finds an earlier renewal of ours, which was stored without an acknowledgement,
// or another writer's record. An earlier renewal does not count as this one: the lease is only as
// old as that write, so another is written behind it.
func (m *Machine) renewalOvertaken(newest Entry) {
	switch {
	case m.isOurs(newest):
		m.last, m.record = newest.Seq, newest.Record
		if m.lease.state == renewing {
			m.writeRenewal()
		}
	case m.lease.state != renewing:
	// The end of the call, or of the claim, is stored: its own answer follows.
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

// loseLease ends a run that can no longer prove its claim.
func (m *Machine) loseLease(why error) {
	m.lease.state = lost
	m.do(Count{LeaseMissed})
	claiming := m.state == Claiming
	m.cancel(why)
	if claiming {
		m.refuse(m.cause)
	}
}

// isOurs reports whether a record is a renewal of our claim.
func (m *Machine) isOurs(e Entry) bool {
	return e.Record.State == wire.Renewed && e.Record.Fence == m.record.Fence && m.record.Fence != 0
}
