package batch

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// planFirst asks for a plan record before the call is dispatched, if one is needed. It is
// needed in three cases: no plan record is stored; a read has ended and no record has its
// result; the active time in the newest record is too old. So a write never builds on a result
// that a power loss could delete.
func (m *Machine) planFirst(call int) ([]Effect, bool) {
	if m.storing {
		return nil, true
	}
	record := wire.PlanRecord{
		V: messages.Version, Nonce: m.cfg.Nonce, Digest: m.cfg.Digest,
		Stage: m.plan.Calls[call].Stage, ActiveMS: m.active.Milliseconds(),
	}
	for i, c := range m.calls {
		if c.state() == ended && !c.durable && m.plan.Calls[i].Refused == nil {
			record.Results = append(record.Results, *c.result)
		}
	}
	// A later driver of the batch takes the used active time from the record. It may be behind
	// by at most an eighth of the limit.
	behind := m.cfg.Timeout > 0 && !m.calls[call].published && m.active-m.activeStored >= m.cfg.Timeout/8
	if m.planned && len(record.Results) == 0 && !behind {
		return nil, false
	}
	if !m.planned {
		record.Calls = m.plan.Record()
	}
	m.storing = true
	return []Effect{StorePlan{record, m.planSeq}}, true
}

// refusesUnstored reports whether this machine's plan refuses a call whose tool or version
// this coordinator does not know, and no plan is stored yet. Another coordinator may know the
// tool and let the call run. The plan that is stored first counts for both.
func (m *Machine) refusesUnstored() bool {
	return !m.planned && slices.ContainsFunc(m.plan.Calls, func(c plan.Call) bool {
		return c.Refused != nil && (c.Refused.Err.Code == messages.CodeUnknownTool || c.Refused.Err.Code == messages.CodeToolVersionGone)
	})
}

// applyRefusals ends the calls that the plan refuses.
func (m *Machine) applyRefusals() {
	for i, c := range m.plan.Calls {
		if c.Refused != nil {
			m.end(i, *c.Refused)
		}
	}
}

// onPlan applies a stored plan record. If another coordinator has made the plan in it, that
// plan replaces this machine's.
func (m *Machine) onPlan(ev Planned) {
	if ev.Seq <= m.planSeq {
		return
	}
	m.planned, m.planSeq, m.storing = true, ev.Seq, false
	m.activeStored = time.Duration(ev.Record.ActiveMS) * time.Millisecond
	if !m.began {
		m.active = max(m.active, m.activeStored)
	}
	if len(ev.Record.Calls) > 0 && ev.Record.Nonce != m.cfg.Nonce {
		m.adopt(ev.Record)
	}
	for _, r := range ev.Record.Results {
		if r.Index < 0 || r.Index >= len(m.calls) || m.calls[r.Index].durable {
			continue
		}
		// The next write builds on the result in the record. If the read has run twice, this
		// driver may have another result, from the other run.
		m.calls[r.Index].result, m.calls[r.Index].durable = &r, true
	}
}

// adopt takes over the plan that another coordinator has stored first. If only this machine's
// plan refused a call, the call is open again.
func (m *Machine) adopt(record wire.PlanRecord) {
	adopted, err := m.plan.Adopt(record)
	if err != nil { // cannot happen: the driver has compared the digests
		return
	}
	for i := range m.calls {
		c := &m.calls[i]
		if m.plan.Calls[i].Refused != nil && adopted.Calls[i].Refused == nil && !c.durable {
			c.result, c.told = nil, false
		}
	}
	m.plan = adopted
	m.applyRefusals()
}
