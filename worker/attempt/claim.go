package attempt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// recordHeadroom is the number of bytes of a message that a claim leaves free for the light
// fields of later records. The heavy fields are arguments, hooks, approval and permission.
// Renewals and releases are larger than the claim that they follow, so the claim must leave
// this room.
const recordHeadroom = 1 << 10

// prior returns the record from which the job continues, or nil if there is none.
func (m *Machine) prior() *wire.CallRecord {
	if m.last == 0 {
		return nil
	}
	record := m.record
	return &record
}

// unsure reports whether an earlier attempt may have changed the world.
func (m *Machine) unsure() bool { return m.call.Claims && m.record.Unsure() }

// wanted answers the phases when they want to start the tool. A call that runs without a claim
// gets its attempt number even if its run was just cancelled. A refusal would end that call
// without a result.
func (m *Machine) wanted(f call.Frozen) {
	switch {
	case m.state == Running && m.Claims():
		m.claim(f)
	case m.state == Running:
		m.start(call.Grant{Attempt: m.runs})
	case m.state == Stopping && !m.Claims(): // the run is cancelled, and the phases report how it ended
		m.do(Grant{call.Grant{Attempt: m.runs}})
	case m.cause != nil:
		m.do(Refuse{m.cause})
	default:
		m.do(Refuse{errNotNow})
	}
}

// claim writes the claim after the record from which the job continues. The tool starts only
// when the claim is stored, so a tool never runs without a record. claim refuses a claim that
// is too large to be renewed later.
func (m *Machine) claim(f call.Frozen) {
	unsure := m.unsure()
	if unsure && m.record.ArgsHash != f.ArgsHash {
		m.refuse(ErrOtherInput)
		return
	}
	record := m.claimRecord(f)
	// Every later record of the claim repeats these fields, so a message must have room for
	// them and for the headroom.
	heavy := wire.CallRecord{Input: record.Input, Hooks: record.Hooks, Approval: record.Approval, Permission: record.Permission}
	if size := len(rawjson.MustMarshal(heavy)); size > m.cfg.MaxPayload-recordHeadroom {
		m.refuse(fmt.Errorf("claim with %d bytes of arguments, which could not be renewed: %w", size, ErrTooLarge))
		return
	}
	m.become(Claiming)
	m.asked, m.pause, m.writing = m.now, 0, record
	m.grant = call.Grant{Attempt: record.Attempt, Probe: unsure && f.OnCrash == messages.OnCrashCheckable}
	m.do(Write{Record: record, Behind: m.last})
}

func (m *Machine) claimRecord(f call.Frozen) wire.CallRecord {
	before := m.record
	record := wire.CallRecord{
		V: messages.Version, State: wire.Claimed, Nonce: m.call.Nonce, Attempt: before.Attempt + 1, Worker: m.cfg.Worker,
		ArgsHash: f.ArgsHash, ToolDigest: m.call.Job.ToolDigest, OnCrash: f.OnCrash, Input: changed(f.Input, m.call.Job.Input), Hooks: f.Hooks,
		Approval: before.Approval, LeaseMS: m.cfg.Lease.Milliseconds(), DeadlineMS: f.Deadline.Milliseconds(), Lapsed: before.Lapsed, Span: m.span,
		Permission: f.Permission, Started: m.began, MayHaveRun: before.Unsure(),
	}
	if lapsed(before) {
		record.Lapsed++
	}
	// The question in the record already has the input.
	if q := before.Approval; q != nil && q.ArgsHash == f.ArgsHash {
		record.Input = nil
	}
	return record
}

// changed returns the frozen input if it differs from the job's input, otherwise nil.
func changed(frozen, asked json.RawMessage) json.RawMessage {
	if bytes.Equal(frozen, asked) {
		return nil
	}
	return frozen
}

// claimStored starts keeping the lease and lets the tool start. If storing the claim took more
// than a third of the lease, claimStored first renews the claim.
func (m *Machine) claimStored(seq uint64) {
	record := m.writing
	record.Fence, m.grant.Fence = seq, seq
	m.last, m.record, m.writing = seq, record, wire.CallRecord{}
	m.do(Count{Claimed})
	if m.now.Sub(m.asked) > m.cfg.Lease/3 {
		m.renew(time.Time{})
		return
	}
	m.granted(m.asked)
}

// granted lets the tool start. since is when the lease began.
func (m *Machine) granted(since time.Time) {
	m.lease.keep(since.Add(m.cfg.Lease-m.cfg.Grace), m.now.Add(m.cfg.Lease/3))
	if m.cause != nil {
		m.become(Stopping)
	} else {
		m.become(Holding)
	}
	m.start(m.grant)
}

// start lets the phases start the tool and sends the running event to watchers. At this moment
// the claim is durable, if the call needs one. A call that is refused or waits for a person
// never shows as running.
func (m *Machine) start(g call.Grant) {
	m.emit(messages.Event{Type: messages.EventRunning})
	m.do(Grant{g})
}

// refuse makes the phases end without starting the tool.
func (m *Machine) refuse(err error) {
	if m.cause != nil {
		m.become(Stopping)
	} else {
		m.become(Running)
	}
	m.do(Refuse{err})
}

// claimFailed plans another try of the claim, with the same nonce, so that the journal
// stores it only once.
func (m *Machine) claimFailed(ev Failed) {
	switch err := fmt.Errorf("claim: %w", ev.Err); {
	case ev.Why == TooLarge:
		m.refuse(fmt.Errorf("%w: %w", ErrTooLarge, err))
	case ev.Why == Terminal:
		m.refuse(err)
	case m.cause != nil:
		m.refuse(errors.Join(err, m.cause))
	default:
		m.retry(ev.Err, 50*time.Millisecond, time.Second, "record not stored; trying again", "state", wire.Claimed)
	}
}
