package batch

import (
	"slices"
	"time"
)

// This file is about the overlapping batches of one session. Package session has the rule
// which calls of a batch may start beside earlier batches.

// mayStart reports whether earlier batches allow the calls of the current stage to start.
func (m *Machine) mayStart(exclusive bool) bool {
	return m.turn.May == Everything || m.turn.May == SafeCalls && !exclusive
}

// behind reports whether a call of the current stage waits only for an earlier batch: it may
// not start yet, and no worker has started it.
func (m *Machine) behind(c *call, exclusive bool) bool {
	return !m.mayStart(exclusive) && !c.published && !c.reported() && !c.hasClaim()
}

// crowdedOut reports whether the batch may have no call in the window, because the other
// batches of the session fill it.
func (m *Machine) crowdedOut(now time.Time) bool { return m.turn.Room <= 0 && m.Running(now) == 0 }

// Safe reports whether the calls that run next may run beside others.
func (m *Machine) Safe() bool {
	calls, exclusive := m.runnable()
	return len(calls) > 0 && !exclusive
}

// Passable reports whether later batches may start calls beside this batch. Its plan must be
// stored, and every call that they wait for must have ended with a stored result. Once true,
// it stays true.
func (m *Machine) Passable() bool {
	return m.planned && m.waitedFor(func(c *call) bool { return c.durable })
}

// letsPass reports whether the batch would be Passable if the plan record were stored: every
// call that later batches wait for has ended.
func (m *Machine) letsPass() bool {
	return !m.Passable() && m.waitedFor(func(c *call) bool { return c.state() == ended })
}

// waitedFor reports whether ok is true for each call that later batches wait for. They wait
// for exclusive calls and for calls that could become exclusive, except refused ones.
func (m *Machine) waitedFor(ok func(*call) bool) bool {
	for i := range m.calls {
		c, p := &m.calls[i], &m.plan.Calls[i]
		if (!p.Fixed || m.handedBack(i)) && p.Refused == nil && !ok(c) {
			return false
		}
	}
	return true
}

// Running counts the calls that take a place in the window.
func (m *Machine) Running(now time.Time) int {
	return m.count(func(c *call) bool { return m.inWindow(now, c) })
}

// Held counts the calls that will start as soon as the window has room for them.
func (m *Machine) Held() int {
	_, exclusive := m.runnable()
	if !m.mayStart(exclusive) {
		return 0
	}
	return m.count(func(c *call) bool { return c.held })
}

// count counts the open calls for which the function is returns true.
func (m *Machine) count(is func(*call) bool) (n int) {
	for i := range m.calls {
		if c := &m.calls[i]; c.state() != ended && is(c) {
			n++
		}
	}
	return n
}

// storesFirst reports whether the open calls of the current stage may have to wait for a plan
// record. Then planFirst decides whether they do.
func (m *Machine) storesFirst(calls []int, exclusive bool) bool {
	return slices.ContainsFunc(calls, m.wanted) &&
		(m.mayStart(exclusive) && (exclusive || m.unplannedClaim(calls)) || m.losesExclusive() || m.storesTime(calls, exclusive) || m.turn.Passed && m.letsPass())
}

// unplannedClaim reports whether no plan is stored yet and one of the calls must be claimed. A
// worker claims a call only if a stored plan names it. Workers of this version still make an
// exception: without any stored plan they claim a call that may overlap others.
func (m *Machine) unplannedClaim(calls []int) bool {
	return !m.planned && slices.ContainsFunc(calls, func(i int) bool { return m.plan.Calls[i].Claims() })
}

// losesExclusive reports whether a power loss could delete the result of an exclusive call.
// Then that call would run again, beside the calls that start now.
func (m *Machine) losesExclusive() bool {
	for i := range m.calls {
		c, p := &m.calls[i], &m.plan.Calls[i]
		if (!p.ConcurrencySafe || m.handedBack(i)) && p.Refused == nil && c.state() == ended && !c.durable {
			return true
		}
	}
	return false
}

// storesTime reports whether the used active time must be stored now, because the batch is
// about to be suspended.
func (m *Machine) storesTime(calls []int, exclusive bool) bool {
	if m.cfg.Timeout == 0 {
		return false
	}
	for _, i := range calls {
		c := &m.calls[i]
		if c.base != parked && (m.active.Milliseconds() == m.activeStored.Milliseconds() || !m.behind(c, exclusive)) {
			return false
		}
	}
	return true
}
