package attempt

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// answers reports whether an answer belongs to the request that the current state waits
// for.
func (m *Machine) answers(nonce string) bool {
	return m.due.IsZero() && nonce == m.writing.Nonce && (m.state.asks() || m.state == Claiming && nonce != "")
}

func (m *Machine) stored(ev Stored) {
	if m.renewed(ev.Nonce) {
		m.renewalStored(ev.Seq)
		return
	}
	if !m.answers(ev.Nonce) {
		return
	}
	switch m.state {
	case Claiming:
		m.claimStored(ev.Seq)
	case Offloading:
		m.result = ev.Result
		m.writeEnd()
	case Storing:
		if ev.Result != nil {
			m.result = ev.Result
		}
		m.resultStored(*m.result)
	case Releasing:
		record := light(m.writing)
		m.releaseEnded(settlement{how: Ack, notice: &wire.Notice{Record: &record, Seq: ev.Seq}})
	case Parking:
		m.parked(ev.Seq)
	case HandingBack:
		m.handedBack()
	}
}

func (m *Machine) overtaken(ev Overtaken) {
	if m.renewed(ev.Nonce) {
		m.renewalOvertaken(ev.Newest)
		return
	}
	if !m.answers(ev.Nonce) || ev.Nonce == "" {
		return
	}
	newest := ev.Newest
	// If the call has ended, the job is done. Otherwise another worker has the call and
	// settles the job.
	var s settlement
	if newest.Record.State == wire.Ended {
		s.how = Ack
	}
	switch {
	case m.state == Claiming:
		m.claimRefused()
		m.refuse(ErrNotMine)
	case m.state == Parking:
		m.parkOvertaken(newest)
	case m.isOurs(newest):
		m.last = newest.Seq
		m.do(Write{Record: m.writing, Behind: m.last})
	case m.state == Releasing:
		m.releaseEnded(s)
	case m.state == Storing:
		m.log(Warn, "result not stored: the call has ended or was taken over meanwhile", "state", newest.Record.State)
		m.close(s, nil)
	}
}

func (m *Machine) failed(ev Failed) {
	if m.renewed(ev.Nonce) {
		m.renewalFailed(ev.Err)
		return
	}
	if !m.answers(ev.Nonce) {
		return
	}
	switch m.state {
	case Looking, LookingAgain, HandingBack:
		m.close(settlement{}, ev.Err)
	case Claiming:
		m.claimFailed(ev)
	case Offloading:
		m.offloadFailed(ev)
	case Storing:
		m.storeFailed(ev)
	case Releasing:
		m.releaseFailed(ev)
	case Parking:
		m.parkFailed(ev)
	}
}

// retry plans the next try of a write. The pause begins with first and doubles up to most.
// Once the worker's drain is over, tries end after LastWords.
func (m *Machine) retry(err error, first, most time.Duration, text string, args ...any) {
	m.err = err
	m.pause = min(max(2*m.pause, first), most)
	m.log(Warn, text, append(args, "err", err, "wait", m.pause)...)
	if reached(m.now, m.words) {
		m.giveUp()
		return
	}
	m.due = m.now.Add(m.pause)
}

// again sends the write of the current state once more.
func (m *Machine) again() {
	switch m.state {
	case Offloading, Storing:
		m.store()
	case Claiming, Releasing, Parking:
		m.do(Write{Record: m.writing, Behind: m.last})
	}
}

// giveUp ends the tries. The broker then delivers the job to another worker.
func (m *Machine) giveUp() { m.close(settlement{}, errors.Join(m.err, ErrDraining)) }
