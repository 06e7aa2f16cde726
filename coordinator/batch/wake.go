package batch

import "time"

// pollSoon plans a read of the journal after FirstPoll, unless an earlier read is planned.
func (m *Machine) pollSoon(now time.Time) {
	if at := now.Add(m.cfg.FirstPoll); m.pollAt.IsZero() || at.Before(m.pollAt) {
		m.pollAt = at
	}
}

// poll asks for a read of the journal when one is due. The reads are necessary, because
// notices of workers can get lost. A read may have been planned for calls that have ended
// meanwhile. It is then put off until an open call has waited for FirstPoll, but not for
// longer than Poll after the last read.
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

// waitingSince returns the earliest c.since of the open calls that have a job. It returns zero
// if no call has one.
func (m *Machine) waitingSince() (first time.Time) {
	calls, _ := m.runnable()
	for _, i := range calls {
		if c := &m.calls[i]; c.published && (first.IsZero() || c.since.Before(first)) {
			first = c.since
		}
	}
	return first
}

// Wake returns when the machine needs its next [Tick]. It returns false if time alone
// changes nothing.
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

// waitsUntil returns when the call's job is published again or the call is given up, apart
// from the time limits of the batch. Zero means that the call waits for an event.
func (m *Machine) waitsUntil(i int, c *call) time.Time {
	switch {
	case c.base == parked:
		return c.expires
	case c.held: // the call waits for the end of another one
	case c.base == released:
		return c.notBefore
	case c.published:
		return c.since.Add(m.patience(i, c))
	}
	return time.Time{}
}

// timeUp returns when the call is given up because the time of the batch is used up. Zero
// means never.
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

// unservedUntil returns when the call is given up because no worker serves its tool. Zero
// means never.
func (m *Machine) unservedUntil(i int, c *call) time.Time {
	if m.cfg.Unserved == 0 || c.unserved.IsZero() || c.hasClaim() || c.base != queued && c.base != released {
		return time.Time{}
	}
	if c.gone != "" {
		return c.unserved
	}
	return c.unserved.Add(m.cfg.Unserved + m.unheard(i))
}
