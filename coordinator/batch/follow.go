package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// planFirst wants the plan stored before an exclusive call, when there is none yet or reads have ended
// since that are in no record: a write never starts on a read whose result is not durable. It does so too before a
// batch rests that has used some of its time.
func (m *Machine) planFirst(call int) ([]Effect, bool) {
	if m.storing {
		return nil, true
	}
	record := wire.PlanRecord{
		V: messages.Version, Nonce: m.cfg.Nonce, Digest: m.cfg.Digest, Stage: m.plan.Calls[call].Stage, ActiveMS: m.active.Milliseconds(),
	}
	for i, c := range m.calls {
		if c.result != nil && !c.recorded && m.plan.Calls[i].Refused == nil {
			record.Results = append(record.Results, *c.result)
		}
	}
	// Whoever takes the batch over must know how much of its time is used, within an eighth of it.
	told := m.cfg.Timeout == 0 || m.calls[call].dispatched || m.active-m.activeSaid < m.cfg.Timeout/8
	if m.planned && len(record.Results) == 0 && told {
		return nil, false
	}
	if !m.planned {
		record.Calls = m.plan.Record()
	}
	m.storing = true
	return []Effect{StorePlan{record, m.planSeq}}, true
}

func (m *Machine) applyRefusals() {
	for i, c := range m.plan.Calls {
		if c.Refused != nil {
			m.end(i, *c.Refused)
		}
	}
}

// planStored follows a stored plan record. The first record of another coordinator is adopted whole.
func (m *Machine) planStored(ev Planned) {
	if ev.Seq <= m.planSeq {
		return
	}
	m.planned, m.planSeq, m.storing = true, ev.Seq, false
	m.activeSaid = time.Duration(ev.Record.ActiveMS) * time.Millisecond
	if !m.began {
		m.active = max(m.active, m.activeSaid)
	}
	if len(ev.Record.Calls) > 0 && ev.Record.Nonce != m.cfg.Nonce {
		m.adopt(ev.Record)
	}
	for _, r := range ev.Record.Results {
		if r.Index < 0 || r.Index >= len(m.calls) || m.calls[r.Index].recorded {
			continue
		}
		// What is recorded is what the next write builds on, even if a read was run twice and we saw the other result.
		m.calls[r.Index].result, m.calls[r.Index].recorded = &r, true
	}
}

// adopt follows the plan of a coordinator that was faster. What our own refused and it does not is open again.
func (m *Machine) adopt(record wire.PlanRecord) {
	adopted, err := m.plan.Adopt(record)
	if err != nil { // not a record of this batch; the shell has compared the digests
		return
	}
	for i := range m.calls {
		if c := &m.calls[i]; m.plan.Calls[i].Refused != nil && adopted.Calls[i].Refused == nil && !c.recorded {
			c.result, c.told = nil, false
		}
	}
	m.plan = adopted
	m.applyRefusals()
}
