package batch

import "time"

// pollSoon plans a reading of the journal after FirstPoll, unless an earlier one is planned.
func (m *Machine) pollSoon(now time.Time) {
	if at := now.Add(m.cfg.FirstPoll); m.pollAt.IsZero() || at.Before(m.pollAt) {
		m.pollAt = at
	}
}

// poll asks for a reading of the journal when one is due. Notices of workers may be lost, so a
// batch cannot do without these readings. A reading that was planned for calls that have ended waits
// until one of the open calls has waited for FirstPoll, but no longer than Poll after the last one.
func (m *Machine) poll(now time.Time, looked bool) []Effect {
	if looked || m.pollAt.IsZero() || now.Before(m.pollAt) {
		return nil
	}
	if at := m.waitingSince().Add(m.cfg.FirstPoll); now.Before(at) && now.Before(m.lookedAt.Add(m.cfg.Poll)) {
		m.pollAt = at
		return nil
	}
	m.pollAt, m.lookedAt = now.Add(m.cfg.Poll), now
	return []Effect{Look{}}
}

// waitingSince returns since when the open call that has waited longest has a job and no sign of a
// worker; zero: no open call has a job.
func (m *Machine) waitingSince() (first time.Time) {
	calls, _ := m.runnable()
	for _, i := range calls {
		if c := &m.calls[i]; c.published && (first.IsZero() || c.since.Before(first)) {
			first = c.since
		}
	}
	return first
}

// Wake returns when the machine needs its next [Tick]. It returns false if only another event can
// change anything.
func (m *Machine) Wake() (time.Time, bool) {
	calls, _ := m.runnable()
	if !m.began || m.finished || len(calls) == 0 {
		return time.Time{}, false
	}
	wake := m.pollAt
	earlier := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	for _, i := range calls {
		c := &m.calls[i]
		switch {
		case c.state() == ending:
			earlier(c.endAt.Add(m.cfg.Poll))
		case m.silent(c) && !c.held:
			earlier(m.lapse(c))
			if c.record.DeadlineMS > 0 {
				earlier(m.due(c))
			}
		default:
			earlier(m.notAfter().Add(1))
			earlier(m.waitsUntil(i, c))
			earlier(m.timeUp(c))
			earlier(m.unservedUntil(i, c))
		}
	}
	return wake, !wake.IsZero()
}

// waitsUntil returns when something is due for the call: its job is published again, or it is given
// up. The time of the batch does not count here. Zero: nothing before an event.
func (m *Machine) waitsUntil(i int, c *call) time.Time {
	switch {
	case c.base == parked:
		return c.expires
	case c.held: // the end of another call is the event
	case c.base == released:
		return c.notBefore
	case c.published:
		return c.since.Add(m.patience(i, c))
	}
	return time.Time{}
}

// timeUp returns when the call is given up because the time of the batch is up; zero: never.
func (m *Machine) timeUp(c *call) time.Time {
	if m.cfg.Timeout == 0 || m.activeSince.IsZero() || c.hasClaim() {
		return time.Time{}
	}
	switch c.base {
	case waiting, queued, released:
		return m.activeSince.Add(m.cfg.Timeout - m.active + m.slack(c))
	}
	return time.Time{}
}

// unservedUntil returns when the call is given up because no worker has its tool; zero: never.
func (m *Machine) unservedUntil(i int, c *call) time.Time {
	if m.cfg.Unserved == 0 || c.unserved.IsZero() || c.hasClaim() || c.base != queued && c.base != released {
		return time.Time{}
	}
	if c.gone != "" {
		return c.unserved
	}
	return c.unserved.Add(m.cfg.Unserved + m.unheard(i))
}
