package lane

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// errOtherInput ends a takeover whose frozen input differs from that of the lost attempt. Under
// another idempotency key the effect could happen twice. This is only a guard, because the input
// comes from the lost attempt's record.
var errOtherInput = errors.New("the input is not that of the attempt before")

// room is the headroom of a record, in bytes of a message. It is for the header and all fields but
// the heavy ones (arguments, hooks, approval, permission): renewals and releases have more of these
// fields than the claim before them.
const room = 1 << 10

// claim writes to the journal that the call now starts, and renews the lease from then on. When the
// lease cannot be renewed, the run is cancelled before the coordinator may treat the claim as
// lapsed.
//
// Watchers get the running event only now, and not when the call was picked up. By then the start
// of a call that claims is durable, and a call that is refused or waits for a person never shows as
// running.
func (a *attempt) claim(ctx context.Context, want call.Frozen) (call.Grant, error) {
	held, err := a.begin(ctx, want)
	if err == nil {
		a.event(messages.Event{Type: messages.EventRunning})
	}
	return held, err
}

// begin writes the claim behind the record that the job takes over from, and starts the goroutine
// that renews the lease. It refuses a claim that is too large to be renewed later. The claim is
// durable before begin returns, so the tool never runs without a trace of it. A call that does not
// claim gets its attempt number only.
func (a *attempt) begin(ctx context.Context, want call.Frozen) (call.Grant, error) {
	if !a.claims() {
		return call.Grant{Attempt: a.runs}, nil
	}
	before, last := a.mine()
	unsure := a.unsure()
	if unsure && before.ArgsHash != want.ArgsHash {
		return call.Grant{}, errOtherInput
	}
	record := wire.CallRecord{
		V: messages.Version, State: wire.Claimed, Nonce: a.nonce, Attempt: before.Attempt + 1, Worker: a.cfg.Worker,
		ArgsHash: want.ArgsHash, ToolDigest: a.job.ToolDigest, OnCrash: want.OnCrash, Input: changed(want.Input, a.job.Input), Hooks: want.Hooks, Approval: before.Approval,
		LeaseMS: a.cfg.Lease.Milliseconds(), DeadlineMS: want.Deadline.Milliseconds(), Lapsed: before.Lapsed, Span: a.parent,
		Permission: want.Permission, Started: a.began,
	}
	if lapsed(before) {
		record.Lapsed++
	}
	// The question holds the input.
	if q := before.Approval; q != nil && q.ArgsHash == want.ArgsHash {
		record.Input = nil
	}
	// All of this is in every record from now on, so it has to fit beside the headroom.
	heavy := wire.CallRecord{Input: record.Input, Hooks: record.Hooks, Approval: record.Approval, Permission: record.Permission}
	if size := len(rawjson.MustMarshal(heavy)); size > a.conn.MaxPayload()-room {
		return call.Grant{}, fmt.Errorf("claim with %d bytes of arguments, which could not be renewed: %w", size, bus.ErrTooLarge)
	}
	asked := time.Now()
	seq, err := a.insist(a.running, record, last)
	var other *journal.Lost
	if errors.As(err, &other) {
		a.claimRefused()
		return call.Grant{}, errNotMine
	}
	if err != nil {
		return call.Grant{}, fmt.Errorf("claim: %w", err)
	}
	record.Fence = seq
	a.mu.Lock()
	a.last, a.record, a.claimed = seq, record, true
	a.mu.Unlock()
	a.count(Claimed)
	// The claim took long to be stored. Renew it first, so that nothing starts on half a lease.
	if time.Since(asked) > a.cfg.Lease/3 {
		asked = time.Now()
		if err := a.renew(a.running); err != nil {
			a.loseLease(fmt.Errorf("%w: %v", ErrLeaseLost, err))
			return call.Grant{}, context.Cause(a.running)
		}
	}
	a.keeper.Go(func() { a.keep(asked) })
	return call.Grant{Attempt: record.Attempt, Fence: seq, Probe: unsure && want.OnCrash == messages.OnCrashCheckable}, nil
}

// changed returns the frozen input if it differs from the job's, and nil if it does not.
func changed(frozen, asked json.RawMessage) json.RawMessage {
	if bytes.Equal(frozen, asked) {
		return nil
	}
	return frozen
}

// insist writes a record until it is stored, or lost to another writer, or ctx ends. The record has
// a nonce, so a repeated write cannot store it twice.
func (a *attempt) insist(ctx context.Context, record wire.CallRecord, last uint64) (seq uint64, err error) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		seq, err = a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		if err == nil || errors.As(err, &lost) || bus.IsTerminal(err) {
			return seq, err
		}
		a.log.Warn("record not stored; trying again", "state", record.State, "err", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, errors.Join(err, context.Cause(ctx))
		}
	}
}

// keep renews the lease at every third of it until the result is stored, and more often after a
// failed renewal. The lease counts from before the write was sent, so this worker never takes the
// lease to be longer than the coordinator does.
func (a *attempt) keep(since time.Time) {
	ctx := a.kept
	wait := a.cfg.Lease / 3
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		asked := time.Now()
		// The tool must be dead when the lease ends, and killing it takes a moment too.
		end := since.Add(a.cfg.Lease - a.cfg.Grace)
		// A timer ends the run, since renew may return late: on a silent connection it takes a
		// while to find out what became of its write.
		late := time.AfterFunc(time.Until(end), func() { a.loseLease(fmt.Errorf("%w in time", ErrLeaseLost)) })
		// Each try has a deadline well before the end of the lease, so that another try can follow.
		renewing, done := context.WithTimeout(ctx, a.cfg.Lease/5)
		err := a.renew(renewing)
		done()
		late.Stop()
		var lost *journal.Lost
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			since, wait = asked, a.cfg.Lease/3-time.Since(asked)
			a.alive()
		case errors.As(err, &lost), !time.Now().Before(end):
			a.loseLease(fmt.Errorf("%w: %v", ErrLeaseLost, err))
			return
		default:
			wait = min(250*time.Millisecond, a.cfg.Lease/10)
		}
	}
}

// renew writes a new record behind our newest one. An earlier renewal may have been stored without
// an acknowledgement. It does not count as this one: the lease is only as old as that write, so
// renew writes once more behind it.
func (a *attempt) renew(ctx context.Context) error {
	for {
		record, last := a.mine()
		record.State, record.Nonce = wire.Renewed, rand.Text()
		seq, err := a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		late := errors.As(err, &lost) && a.isOurs(lost.Newest)
		if late {
			seq, record = lost.Newest.Seq, lost.Newest.Record
		}
		if err == nil || late {
			a.mu.Lock()
			a.last, a.record = seq, record
			a.mu.Unlock()
		}
		if !late {
			return err
		}
	}
}

// close writes the record that ends our claim, or the call, behind our newest one. A *journal.Lost
// error names the record of the writer that came first.
func (a *attempt) close(ctx context.Context, record wire.CallRecord) (seq uint64, err error) {
	for {
		_, last := a.mine()
		seq, err = a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		if !errors.As(err, &lost) || !a.isOurs(lost.Newest) {
			return seq, err
		}
		a.mu.Lock()
		a.last = lost.Newest.Seq
		a.mu.Unlock()
	}
}

// mine returns our newest record, or the record that we claim behind, with its sequence.
func (a *attempt) mine() (wire.CallRecord, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.record, a.last
}

// holds reports whether we hold a claim.
func (a *attempt) holds() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claimed
}

// isOurs reports whether a record is a renewal of our claim.
func (a *attempt) isOurs(e journal.CallEntry) bool {
	record, _ := a.mine()
	return e.Record.State == wire.Renewed && e.Record.Fence == record.Fence && record.Fence != 0
}
